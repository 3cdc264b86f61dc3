"""A safetensors file as arrays, bf16 included, with numpy alone: the goldens lean on no other reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def read_checkpoint(path: Path) -> dict[str, Array]:
    """Float32 arrays by tensor name."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: _array(data, start, entry) for name, entry in header.items()}


def _array(data: bytes, start: int, entry: dict[str, Any]) -> Array:
    first, last = (start + offset for offset in entry["data_offsets"])
    kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}[entry["dtype"]]
    values = np.frombuffer(data[first:last], kind).reshape(entry["shape"])
    if entry["dtype"] == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
