"""safetensors files: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.

The format is public (huggingface/safetensors). Its library has no bf16 for numpy and loads whole tensors;
here a tensor is a view of the mapped file, and files are written as a stream.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats.codecs import ITEM_BYTES, Dtype
from nvgpu.formats.files import AtomicFile, Bytes, map_file, parse_json_object

Array = np.ndarray[Any, Any]

FLOAT_NAMES = {"F32": Dtype.F32, "F16": Dtype.F16, "BF16": Dtype.BF16}
_NAMES = {dtype: name for name, dtype in FLOAT_NAMES.items()}
_OTHER_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16"), 2),
    **dict.fromkeys(("U32", "I32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
_MAX_HEADER = 100_000_000  # the limit of the public reader


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of an open file: its type as the header spells it, its shape, and its bytes `[begin, end)`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    _mapped: Any

    def raw(self) -> Array:
        """The bytes, a read-only u8 view."""
        return np.frombuffer(self._mapped, np.uint8, self.end - self.begin, self.begin)


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name; they keep the mapping alive.

    Raises:
        FormatError: a truncated or malformed file, or a Git LFS pointer.
        InputError: nothing readable at `path`.
    """
    mapped = map_file(path)
    if len(mapped) < 8:
        raise FormatError(
            f"{path}: {len(mapped)} bytes, expected at least the 8 of a safetensors header length"
        )
    length = int.from_bytes(mapped[:8], "little")
    if length > _MAX_HEADER:
        raise FormatError(f"{path}: safetensors header of {length} bytes, expected at most {_MAX_HEADER}")
    if 8 + length > len(mapped):
        raise FormatError(f"{path}: truncated: {len(mapped)} bytes, its header alone needs {8 + length}")
    header = parse_json_object(bytes(mapped[8 : 8 + length]), f"{path}: safetensors header")
    header.pop("__metadata__", None)
    tensors = {name: _parse_tensor(path, mapped, name, info, 8 + length) for name, info in header.items()}
    _check_layout(path, tensors, 8 + length, len(mapped))
    return tensors


def _parse_tensor(path: Path, mapped: Any, name: str, info: Any, data: int) -> StoredTensor:
    where = f"{path}: tensor {name}"
    if not isinstance(info, dict) or not {"dtype", "shape", "data_offsets"} <= info.keys():
        raise FormatError(f"{where}: its record has not dtype, shape and data_offsets")
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    item = _item_bytes(dtype) if isinstance(dtype, str) else None
    if item is None:
        raise FormatError(f"{where}: unknown dtype {dtype!r}")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise FormatError(f"{where}: shape or data_offsets is not a list of whole numbers")
    begin, end = offsets
    if end - begin != math.prod(shape) * item:
        raise FormatError(
            f"{where}: {end - begin} bytes, expected {math.prod(shape) * item} for {dtype} {shape}"
        )
    return StoredTensor(path, dtype, tuple(shape), data + begin, data + end, mapped)


def _item_bytes(dtype: str) -> int | None:
    return ITEM_BYTES[FLOAT_NAMES[dtype]] if dtype in FLOAT_NAMES else _OTHER_BYTES.get(dtype)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], begin: int, size: int) -> None:
    """Tensors follow each other without gap or overlap up to the end of the file."""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != begin:
            raise FormatError(f"{path}: tensor {name} begins at byte {tensor.begin}, expected {begin}")
        begin = tensor.end
        if begin > size:
            raise FormatError(f"{path}: truncated: {size} bytes, tensor {name} ends at byte {begin}")
    if begin != size:
        raise FormatError(f"{path}: {size} bytes, expected {begin}, where its last tensor ends")


def write_safetensors(
    path: Path,
    dtype: Dtype,
    shapes: Mapping[str, Sequence[int]],
    payloads: Iterable[Bytes],
    shown: Path | None = None,
) -> None:
    """Write tensors of one float type; `payloads` yields their bytes in the order of `shapes`. Errors name
    `shown` where `path` is temporary.

    Raises:
        OutputError: the file cannot be written.
    """
    offset = 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with AtomicFile(path, shown) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for payload in payloads:
            out.write(payload)
