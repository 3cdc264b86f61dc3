"""nvgpu: compress and distil large language models on any GPU. docs/api.md shows the Python side.

Names are imported when they are first used: `import nvgpu` loads no other library.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "train": "nvgpu.train",
    "load": "nvgpu.train.api",
    "evaluate": "nvgpu.train.api",
    "Model": "nvgpu.train.api",
    "TrainOptions": "nvgpu.train.options",
    "SignOptions": "nvgpu.train.sign_options",
    "StateOptions": "nvgpu.train.run",
    "TrainReport": "nvgpu.train.run",
    "WatchOptions": "nvgpu.train.watch",
    "Evaluation": "nvgpu.train.evaluate",
    "TextSource": "nvgpu.formats.text",
    "NvgpuError": "nvgpu.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nvgpu' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return module if name == "train" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
