"""The masks section of a CMF file: which neurons, heads, layers and experts a task uses. Read only."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats.envelope import Report, refuse
from nvgpu.formats.files import parse_json_object

Array = np.ndarray[Any, Any]

_HEAD = struct.Struct("<II")
_ALIGN = 8
_MOST = 1 << 24  # entries of an arch dimension that a mask may have


@dataclass(frozen=True)
class TaskMask:
    """A task's mask: active shares of neurons and heads, and how many layers run; `quality` is None if not measured."""

    task_id: int
    name: str
    neurons: float
    heads: float
    layers: int
    experts: bool
    quality: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Sizes:
    layers: int
    neurons: int
    heads: int
    experts: int


def read_masks(data: bytes, arch: Mapping[str, Any], where: str, report: Report = refuse) -> list[TaskMask]:
    """The masks of a section; one that is wrong goes to `report`.

    Raises:
        FormatError: a malformed section, or an arch without the sizes of masks.
    """
    if not data:
        return []
    where = f"{where}: masks"
    if len(data) < _HEAD.size:
        raise FormatError(f"{where}: {len(data)} bytes, expected at least {_HEAD.size}")
    count, length = _HEAD.unpack_from(data)
    if _HEAD.size + length > len(data):
        raise FormatError(f"{where}: JSON of {length} bytes in a section of {len(data)}")
    records = parse_json_object(data[_HEAD.size : _HEAD.size + length], where).get("masks")
    if not isinstance(records, list) or len(records) != count:
        raise FormatError(f"{where}: expected a list of {count} masks")
    sizes = _Sizes(
        _size(arch, "num_layers", where),
        _size(arch, "intermediate_size", where),
        _size(arch, "num_attention_heads", where),
        _experts(arch, where),
    )
    masks = []
    for i, record in enumerate(records):
        try:
            masks.append(_mask(data, record, sizes, f"{where}: mask {i}"))
        except FormatError as e:
            report(e)
    return masks


def _size(arch: Mapping[str, Any], key: str, where: str) -> int:
    value = arch.get(key)
    if type(value) is not int or not 0 < value < _MOST:
        raise FormatError(f"{where}: arch.{key} is {value!r:.80}, expected 1 to {_MOST - 1}")
    return value


def _experts(arch: Mapping[str, Any], where: str) -> int:
    moe = arch.get("moe")
    return _size(moe, "num_experts", where) if isinstance(moe, dict) else 0


def _mask(data: bytes, record: Any, sizes: _Sizes, where: str) -> TaskMask:
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        raise FormatError(f"{where}: not an object with a name")
    where = f"{where} ({record['name']!r:.80})"
    offset, length, task = (_whole(record, key, where) for key in ("blob_off", "blob_len", "task_id"))
    if offset % _ALIGN or offset + length > len(data):
        raise FormatError(
            f"{where}: spans bytes {offset} to {offset + length} of {len(data)}, expected a multiple of {_ALIGN} within"
        )
    quality = record.get("quality")
    if quality is not None and not isinstance(quality, dict):
        raise FormatError(f"{where}: quality is {type(quality).__name__}, expected an object or null")
    experts = record.get("has_expert_fields") is True
    parts = _fields(data[offset : offset + length], sizes, experts, where)
    gates = int(parts[2].sum())
    return TaskMask(
        task, record["name"], float(parts[0].mean()), float(parts[1].mean()), gates, experts, quality
    )


def _whole(record: Mapping[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or value < 0:
        raise FormatError(f"{where}: {key} is {value!r:.80}, expected a whole number")
    return value


def _fields(blob: bytes, sizes: _Sizes, experts: bool, where: str) -> list[Array]:
    """Bits of neurons and heads `[layers, n]`, gates `[1, layers]` and, with them, experts."""
    shapes = [(sizes.layers, sizes.neurons), (sizes.layers, sizes.heads), (1, sizes.layers)]
    if experts:
        shapes.append((sizes.layers, sizes.experts))
    expected = sum(rows * -(-n // 8) for rows, n in shapes)
    if len(blob) != expected:
        raise FormatError(
            f"{where}: {len(blob)} bytes, expected {expected} for its layers, neurons and heads"
        )
    fields, at = [], 0
    for rows, n in shapes:
        width = -(-n // 8)
        packed = np.frombuffer(blob, np.uint8, rows * width, at).reshape(rows, width)
        bits = np.unpackbits(packed, axis=1, bitorder="little")
        if bits[:, n:].any():
            raise FormatError(f"{where}: a bit beyond entry {n} of a row is set, expected 0")
        fields.append(bits[:, :n])
        at += rows * width
    return fields
