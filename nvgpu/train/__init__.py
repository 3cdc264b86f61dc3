"""Training and evaluation. The package itself can be called: `nvgpu.train(...)` is `nvgpu.train.api.train`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package's name is also that of what users call; it stays importable as a package."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        from nvgpu.train.api import train

        return train(*args, **given)


sys.modules[__name__].__class__ = _Callable
