"""Storage types of CMF tensors: sizes, encoding and decoding. docs/cmf.md has the layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from nvgpu.errors import FormatError, InputError
from nvgpu.formats import quant
from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.files import Bytes, byte_view

Array = np.ndarray[Any, Any]


class Dtype(IntEnum):
    """Ids of the tensor directory; any of them may stand in a file, `encode` writes those in `ENCODED`."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_ROW = 3
    Q4_BLOCK = 4
    VBIT = 8
    Q8_2F = 9
    VBIT_RO = 10
    Q4_TILED = 11
    Q1 = 12
    Q1S = 13
    Q1T = 14
    Q4TP = 15
    BLR = 19

    @property
    def label(self) -> str:
        """Lower-case name, as options and reports use it."""
        return self.name.lower()


ITEM_BYTES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2}
QUANTISED = (Dtype.Q8_ROW, Dtype.Q8_2F)
ENCODED = (*ITEM_BYTES, *QUANTISED)
_BLOCK = 1 << 22  # values checked at once
_EXPONENTS = {Dtype.F32: ("<u4", 0x7F800000), Dtype.F16: ("<u2", 0x7C00), Dtype.BF16: ("<u2", 0x7F80)}
TWO_FIELD = (Dtype.Q8_2F, Dtype.VBIT, Dtype.VBIT_RO)


def dtype_by_name(name: str) -> Dtype:
    """The type that `encode` knows by that lower-case name; raises InputError listing them."""
    known = {dtype.label: dtype for dtype in ENCODED}
    if name not in known:
        raise InputError(f"dtype {name!r}: unknown, expected one of {', '.join(known)}")
    return known[name]


def nbytes(dtype: Dtype, shape: tuple[int, ...], where: str) -> int | None:
    """Payload bytes; None for types whose payload states its own size (blr) or that have no codec here yet.

    Raises:
        FormatError: a shape that the type cannot have.
    """
    if dtype in ITEM_BYTES:
        return math.prod(shape) * ITEM_BYTES[dtype]
    if dtype in QUANTISED or dtype == Dtype.BLR:
        if len(shape) != 2:
            raise FormatError(f"{where}: {dtype.label} with shape {list(shape)}, expected two axes")
        if dtype == Dtype.BLR:
            return None
        rows, cols = shape
        return rows * cols + 2 * rows + (2 * cols if dtype == Dtype.Q8_2F else 0)
    return None


def encode(values: Array, dtype: Dtype, name: str) -> Array:
    """The payload, u8 `[nbytes]`, of `values` (rounded to float32 first); halves round to nearest even.

    Raises:
        InputError: non-finite values, values beyond the range of `dtype`, or a shape it cannot have.
    """
    if dtype not in ENCODED:
        raise InputError(f"tensor {name}: cannot be encoded as {dtype.label}")
    if dtype in QUANTISED and values.ndim != 2:
        raise InputError(f"tensor {name}: {dtype.label} with shape {list(values.shape)}, expected two axes")
    values = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"tensor {name}: holds infinite or NaN values")
    payload = _ENCODERS[dtype](values)
    if payload is None:
        largest = float(np.abs(values).max())
        raise InputError(f"tensor {name}: largest magnitude {largest:.6g} exceeds the range of {dtype.label}")
    return payload


def decode(raw: Bytes, dtype: Dtype, shape: tuple[int, ...], where: str) -> Array:
    """A new float32 array of `shape` from a payload.

    Raises:
        FormatError: a payload of the wrong size, or a type without a decoder; names `where`.
    """
    data = np.frombuffer(byte_view(raw), np.uint8)
    if dtype == Dtype.BLR:
        return BlrTensor.parse(data, where, shape).dense()
    if dtype not in ENCODED:
        raise FormatError(f"{where}: dtype {dtype.label} cannot be decoded yet")
    expected = nbytes(dtype, shape, where)
    if len(data) != expected:
        raise FormatError(f"{where}: {len(data)} bytes, expected {expected} for {dtype.label} {list(shape)}")
    values = _DECODERS[dtype](data, shape)
    return values.reshape(shape)


def is_finite(raw: Array, dtype: Dtype, shape: tuple[int, ...]) -> bool:
    """Whether a payload (u8) holds no NaN and no infinity; reads blocks and decodes nothing."""
    if dtype == Dtype.BLR:
        paths = BlrTensor.parse(raw, "BLR", shape).paths
        return all(bool(np.isfinite(scale).all()) for path in paths for scale in (path.h, path.l, path.g))
    if dtype in QUANTISED:  # scales in f16 stand behind the bytes
        raw, dtype = raw[math.prod(shape) :], Dtype.F16
    if dtype not in _EXPONENTS:  # no decoder: nothing here reads it
        return True
    kind, mask = _EXPONENTS[dtype]
    words = raw.view(kind)
    blocks = (words[i : i + _BLOCK] for i in range(0, len(words), _BLOCK))
    return all(bool(((block & mask) != mask).all()) for block in blocks)


def _bytes(values: Array) -> Array:
    return values.reshape(-1).view(np.uint8)


def _encode_f32(values: Array) -> Array | None:
    return _bytes(values.astype("<f4"))


def _encode_f16(values: Array) -> Array | None:
    with np.errstate(over="ignore", under="ignore"):
        half = values.astype("<f2")
    return _bytes(half) if np.isfinite(half).all() else None


def _encode_bf16(values: Array) -> Array | None:
    bits = values.view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    half = (bits >> np.uint32(16)).astype("<u2")
    return _bytes(half) if ((half & 0x7F80) != 0x7F80).all() else None


def _decode_bf16(data: Array, shape: tuple[int, ...]) -> Array:
    return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _decode_float(kind: str) -> Callable[[Array, tuple[int, ...]], Array]:
    return lambda data, shape: data.view(kind).astype(np.float32)


_ENCODERS: dict[Dtype, Callable[[Array], Array | None]] = {
    Dtype.F32: _encode_f32,
    Dtype.F16: _encode_f16,
    Dtype.BF16: _encode_bf16,
    Dtype.Q8_ROW: quant.encode_q8_row,
    Dtype.Q8_2F: quant.encode_q8_2f,
}
_DECODERS: dict[Dtype, Callable[[Array, tuple[int, ...]], Array]] = {
    Dtype.F32: _decode_float("<f4"),
    Dtype.F16: _decode_float("<f2"),
    Dtype.BF16: _decode_bf16,
    Dtype.Q8_ROW: quant.decode_q8_row,
    Dtype.Q8_2F: quant.decode_q8_2f,
}
