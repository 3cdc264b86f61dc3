"""The 8-bit matrix codecs.

q8_row: `[i8 rows*cols][f16 row scale]`, w = q row. q8_2f: `[i8 rows*cols][f16 row scale][f16 column field]`,
w = q row col. Scales are rounded to f16 first and q is chosen for the rounded ones, so that the error stays
within half a step.

The two fields of q8_2f should minimise the sum of squared steps, (sum row^2)(sum col^2), under row col >=
|w|/127. From a column field c, row = max over the row of |w|/c and then col = max over the column of
|w|/row is a fixed point: no field can shrink alone. Of two starts, c = 1 and the field that balances the
RMS of rows and columns, the better fixed point is kept; so the sum of squared steps is never above that
of q8_row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numba
import numpy as np

from nvgpu.formats.quant.codec import (
    Array,
    Codec,
    Shape,
    by_rows,
    fixed,
    half_bytes,
    halves,
    round_scale,
)

_LEVELS = 127.0
_BALANCE_ROUNDS = 3


class Q8Row(Codec):
    """One scale a row."""

    def shape_error(self, shape: Shape) -> str | None:
        return None if len(shape) == 2 else "expected two axes"

    def nbytes(self, shape: Shape) -> int:
        rows, cols = shape
        return rows * cols + 2 * rows

    def encode(self, values: Array) -> Array | None:
        ones = np.ones(values.shape[1])
        row = round_scale(_row_max(fixed(values), ones), _LEVELS)
        return None if row is None else _join(_quantised(values, row, ones), row)

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        (row,) = self.factors(data, shape)
        return _expanded(data, shape[1], begin, end, row, None)

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        yield halves(data[shape[0] * shape[1] :])


class Q8TwoField(Q8Row):
    """A field over rows times a field over columns."""

    def nbytes(self, shape: Shape) -> int:
        return super().nbytes(shape) + 2 * shape[1]

    def encode(self, values: Array) -> Array | None:
        row_max, col_max = _fields(fixed(values))
        row = round_scale(row_max * _shift(row_max, col_max), _LEVELS)
        if row is None:
            return None
        col = round_scale(_col_max(fixed(values), row.astype(np.float64)), _LEVELS)
        if col is None:
            return None
        return _join(_quantised(values, row, col), row, col)

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        rows, cols = shape
        (fields,) = self.factors(data, shape)
        return _expanded(data, cols, begin, end, fields[:rows], fields[rows:])


def _fields(w: Array) -> tuple[Array, Array]:
    """The chosen (row, col) with row col >= |w|, tight in every row and column that is not zero."""
    best: tuple[float, Array, Array] | None = None
    for start in (np.ones(w.shape[1]), _balanced(w)):
        row = _row_max(w, start)
        col = _col_max(w, row)
        score = float(np.square(row).sum() * np.square(col).sum())
        if best is None or score < best[0]:
            best = score, row, col
    assert best is not None
    return best[1], best[2]


def _balanced(w: Array) -> Array:
    """A column field: alternate RMS of columns and rows until both are near 1."""
    row = np.ones(w.shape[0])
    col = np.ones(w.shape[1])
    for _ in range(_BALANCE_ROUNDS):
        col = _col_rms(w, row)
        row = _row_rms(w, col)
    return col


def _shift(row_max: Array, col_max: Array) -> float:
    """The power of two for rows (its inverse for columns) that makes the largest scales about equal."""
    row, col = row_max.max(initial=0.0) / _LEVELS, col_max.max(initial=0.0)
    return float(2.0 ** round((math.log2(col) - math.log2(row)) / 2)) if row > 0 and col > 0 else 1.0


def _join(q: Array, *scales: Array) -> Array:
    return np.concatenate([q.reshape(-1).view(np.uint8), *map(half_bytes, scales)])


def _quantised(w: Array, row: Array, col: Array) -> Array:
    """i8 `[rows, cols]`: w / (row col) to nearest, ties to even."""
    q = np.zeros(w.shape, np.int8)
    # the product of two f16 is exact in float32
    w, row, col = fixed(w), fixed(row.astype(np.float32)), fixed(col.astype(np.float32))
    by_rows(lambda begin, end: _quantise(w, row, col, begin, end, q), len(w), w.size)
    return q


def _expanded(data: Array, cols: int, begin: int, end: int, row: Array, col: Array | None) -> Array:
    """float32 `[end - begin, cols]`: q row, times col where there is one."""
    q = fixed(data[begin * cols : end * cols].view(np.int8).reshape(end - begin, cols))
    out = np.empty(q.shape, np.float32)
    row = row[begin:end]
    if col is None:
        by_rows(lambda a, b: _expand_row(q, row, a, b, out), len(q), q.size)
    else:
        by_rows(lambda a, b: _expand(q, row, col, a, b, out), len(q), q.size)
    return out


def _over_rows(kernel: Callable[..., None], w: Array, col: Array) -> Array:
    out, inverse = np.zeros(len(w)), _inverse(col)
    by_rows(lambda a, b: kernel(w, inverse, a, b, out), len(w), w.size)
    return out


def _over_cols(kernel: Callable[..., None], w: Array, row: Array) -> Array:
    out, inverse = np.zeros(w.shape[1]), _inverse(row)
    by_rows(lambda a, b: kernel(w, inverse, a, b, out), w.shape[1], w.size)
    return out


def _inverse(scale: Array) -> Array:
    """1 / scale, 0 for 0."""
    return fixed(np.divide(1.0, scale, out=np.zeros(len(scale)), where=scale > 0))


def _row_max(w: Array, col: Array) -> Array:
    """Largest |w|/col of every row."""
    return _over_rows(_row_max_kernel, w, col)


def _col_max(w: Array, row: Array) -> Array:
    """Largest |w|/row of every column."""
    return _over_cols(_col_max_kernel, w, row)


def _row_rms(w: Array, col: Array) -> Array:
    """Root mean square of w/col over every row."""
    rms: Array = np.sqrt(_over_rows(_row_squares_kernel, w, col) / w.shape[1])
    return rms


def _col_rms(w: Array, row: Array) -> Array:
    """Root mean square of w/row over every column."""
    rms: Array = np.sqrt(_over_cols(_col_squares_kernel, w, row) / len(w))
    return rms


@numba.njit(cache=True, nogil=True)
def _row_max_kernel(w: Array, inverse: Array, begin: int, end: int, out: Array) -> None:
    for o in range(begin, end):
        largest = 0.0
        for i in range(w.shape[1]):
            largest = max(largest, abs(w[o, i]) * inverse[i])
        out[o] = largest


@numba.njit(cache=True, nogil=True)
def _col_max_kernel(w: Array, inverse: Array, begin: int, end: int, out: Array) -> None:
    for o in range(w.shape[0]):
        for i in range(begin, end):
            out[i] = max(out[i], abs(w[o, i]) * inverse[o])


@numba.njit(cache=True, nogil=True)
def _row_squares_kernel(w: Array, inverse: Array, begin: int, end: int, out: Array) -> None:
    for o in range(begin, end):
        total = 0.0
        for i in range(w.shape[1]):
            v = w[o, i] * inverse[i]
            total += v * v
        out[o] = total


@numba.njit(cache=True, nogil=True)
def _col_squares_kernel(w: Array, inverse: Array, begin: int, end: int, out: Array) -> None:
    for o in range(w.shape[0]):
        for i in range(begin, end):
            v = w[o, i] * inverse[o]
            out[i] += v * v


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _quantise(w: Array, row: Array, col: Array, begin: int, end: int, q: Array) -> None:
    for o in range(begin, end):
        for i in range(w.shape[1]):
            step = row[o] * col[i]
            safe = step if step > np.float32(0.0) else np.float32(np.inf)
            value = np.rint(w[o, i] / safe)
            q[o, i] = np.int8(min(max(value, np.float32(-127.0)), np.float32(127.0)))


@numba.njit(cache=True, nogil=True)
def _expand(q: Array, row: Array, col: Array, begin: int, end: int, out: Array) -> None:
    for o in range(begin, end):
        for i in range(q.shape[1]):
            out[o, i] = np.float32(q[o, i]) * row[o] * col[i]


@numba.njit(cache=True, nogil=True)
def _expand_row(q: Array, row: Array, begin: int, end: int, out: Array) -> None:
    for o in range(begin, end):
        for i in range(q.shape[1]):
            out[o, i] = np.float32(q[o, i]) * row[o]
