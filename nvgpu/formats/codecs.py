"""Storage types of CMF tensors: sizes, encoding and decoding. docs/cmf.md has the layouts, `quant` the codecs."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.blr import BlrCodec
from nvgpu.formats.files import Bytes, byte_view
from nvgpu.formats.quant.codec import Codec, matrix
from nvgpu.formats.quant.floats import BFloat16, Float
from nvgpu.formats.quant.q1 import Q1, Q1Sparse, Q1Ternary
from nvgpu.formats.quant.q4 import Q4Block, Q4Ladder, Q4Tiled
from nvgpu.formats.quant.q8 import Q8Row, Q8TwoField
from nvgpu.formats.quant.vbit import VBit, VBitOffsets

Array = np.ndarray[Any, Any]


class Dtype(IntEnum):
    """Ids of the tensor directory; every one is decoded, `encode` writes those in `ENCODED`."""

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


CODECS: dict[Dtype, Codec] = {
    Dtype.F32: Float("<f4"),
    Dtype.F16: Float("<f2"),
    Dtype.BF16: BFloat16(),
    Dtype.Q8_ROW: Q8Row(),
    Dtype.Q4_BLOCK: Q4Block(),
    Dtype.VBIT: VBit(),
    Dtype.Q8_2F: Q8TwoField(),
    Dtype.VBIT_RO: VBitOffsets(),
    Dtype.Q4_TILED: Q4Tiled(),
    Dtype.Q1: Q1(),
    Dtype.Q1S: Q1Sparse(),
    Dtype.Q1T: Q1Ternary(),
    Dtype.Q4TP: Q4Ladder(),
    Dtype.BLR: BlrCodec(),
}
ITEM_BYTES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2}
ENCODED = tuple(dtype for dtype, codec in CODECS.items() if codec.encodes)
QUANTISED = tuple(dtype for dtype in ENCODED if dtype not in ITEM_BYTES)
FALLBACK = Dtype.Q8_2F  # for matrices whose rows are no whole groups of 32
TWO_FIELD = (Dtype.Q8_2F, Dtype.VBIT, Dtype.VBIT_RO)


def dtype_by_name(name: str) -> Dtype:
    """The type that `encode` knows by that lower-case name; raises InputError listing them."""
    known = {dtype.label: dtype for dtype in ENCODED}
    if name not in known:
        raise InputError(f"dtype {name!r}: unknown, expected one of {', '.join(known)}")
    return known[name]


def fitting(dtype: Dtype, shape: tuple[int, ...]) -> Dtype:
    """`dtype`, or FALLBACK for a matrix that `dtype` cannot hold."""
    return FALLBACK if len(shape) == 2 and CODECS[dtype].shape_error(shape) else dtype


def nbytes(dtype: Dtype, shape: tuple[int, ...], where: str) -> int | None:
    """Payload bytes; None for types whose payload states its own size (blr, vbit, vbit_ro, q1s, q1t).

    Raises:
        FormatError: a shape that the type cannot have.
    """
    problem = CODECS[dtype].shape_error(shape)
    if problem:
        raise FormatError(f"{where}: {dtype.label} with shape {list(shape)}, {problem}")
    return CODECS[dtype].nbytes(shape)


def size_bound(dtype: Dtype, shape: tuple[int, ...]) -> int:
    """Bytes that a payload of `encode` stays within; exact where the type implies the size."""
    return CODECS[dtype].bound(shape)


def check_payload(raw: Bytes, dtype: Dtype, shape: tuple[int, ...], where: str) -> None:
    """Raise FormatError where a payload is not one of that type and shape; reads its tables, not its weights."""
    nbytes(dtype, shape, where)
    CODECS[dtype].check(np.frombuffer(byte_view(raw), np.uint8), shape, where)


def encode(values: Array, dtype: Dtype, name: str) -> Array:
    """The payload, u8 `[nbytes]`, of `values` (rounded to float32 first); halves round to nearest even.

    Raises:
        InputError: non-finite values, values beyond the range of `dtype`, or a shape it cannot have.
    """
    if dtype not in ENCODED:
        raise InputError(f"tensor {name}: cannot be encoded as {dtype.label}")
    problem = CODECS[dtype].shape_error(values.shape)
    if problem:
        raise InputError(f"tensor {name}: {dtype.label} with shape {list(values.shape)}, {problem}")
    values = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"tensor {name}: holds infinite or NaN values")
    with np.errstate(over="ignore", under="ignore"):
        payload = CODECS[dtype].encode(values)
    if payload is None:
        largest = float(np.abs(values).max())
        raise InputError(f"tensor {name}: largest magnitude {largest:.6g} exceeds the range of {dtype.label}")
    return payload


def decode(raw: Bytes, dtype: Dtype, shape: tuple[int, ...], where: str) -> Array:
    """A new float32 array of `shape` from a payload.

    Raises:
        FormatError: a payload of the wrong size or structure; names `where`.
    """
    return decode_rows(raw, dtype, shape, 0, matrix(shape)[0], where).reshape(shape)


def decode_rows(raw: Bytes, dtype: Dtype, shape: tuple[int, ...], begin: int, end: int, where: str) -> Array:
    """float32 `[end - begin, columns]`: rows along the first axis, the others flattened; reads no other rows' weights.

    Raises:
        FormatError: as `decode`.
    """
    check_payload(raw, dtype, shape, where)
    data = np.frombuffer(byte_view(raw), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):  # scales of a damaged file: is_finite tells
        return CODECS[dtype].decode_rows(data, shape, begin, end, where)


def is_finite(raw: Bytes, dtype: Dtype, shape: tuple[int, ...]) -> bool:
    """Whether a payload that `check_payload` accepts decodes without NaN and infinity; looks at floats and scales."""
    data = np.frombuffer(byte_view(raw), np.uint8)
    return all(bool(np.isfinite(part).all()) for part in CODECS[dtype].factors(data, shape))
