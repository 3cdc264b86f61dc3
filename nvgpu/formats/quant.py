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
from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, Any]

_LEVELS = 127.0
_CLIP = 127.5  # at most this many steps may lie in the largest value after a scale was rounded
_BALANCE_ROUNDS = 3


def encode_q8_row(w: Array) -> Array | None:
    """Payload u8 of finite float32 `[rows, cols]`; None where a scale would overflow f16."""
    row = round_scale(_row_max(w, np.ones(w.shape[1])))
    if row is None:
        return None
    q = _quantise(w, row.astype(np.float64), np.ones(w.shape[1]))
    return _join(q, row)


def encode_q8_2f(w: Array) -> Array | None:
    """Payload u8 of finite float32 `[rows, cols]`; None where a field would overflow f16."""
    row_max, col_max = _fields(w)
    row = round_scale(row_max * _shift(row_max, col_max))
    if row is None:
        return None
    col = round_scale(_col_max(w, row.astype(np.float64)))
    if col is None:
        return None
    q = _quantise(w, row.astype(np.float64), col.astype(np.float64))
    return _join(q, row, col)


def decode_q8_row(data: Array, shape: tuple[int, ...]) -> Array:
    """float32 `[rows, cols]` from a payload of the right size."""
    rows, cols = shape
    row = _scales(data[rows * cols :])
    return _expand_row(data[: rows * cols].view(np.int8).reshape(rows, cols), row)


def decode_q8_2f(data: Array, shape: tuple[int, ...]) -> Array:
    """float32 `[rows, cols]` from a payload of the right size."""
    rows, cols = shape
    scales = _scales(data[rows * cols :])
    return _expand_2f(data[: rows * cols].view(np.int8).reshape(rows, cols), scales[:rows], scales[rows:])


def round_scale(largest: Array) -> Array | None:
    """f16 scales that put magnitudes up to `largest` within ±127.5 steps, 0 for 0; None if one overflows."""
    with np.errstate(over="ignore", under="ignore"):
        scale = (largest / _LEVELS).astype(np.float16)
        short = scale.astype(np.float64) * _CLIP < largest
        scale = np.where(short, np.nextafter(scale, np.float16(np.inf)), scale)
    return scale if np.isfinite(scale).all() else None


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
    return np.concatenate([q.reshape(-1).view(np.uint8), *(s.astype("<f2").view(np.uint8) for s in scales)])


def _scales(data: Array) -> Array:
    return np.frombuffer(data.tobytes(), "<f2").astype(np.float32)


@numba.njit(cache=True)
def _row_max(w: Array, col: Array) -> Array:
    rows, cols = w.shape
    out = np.zeros(rows)
    inverse = np.array([1.0 / c if c > 0.0 else 0.0 for c in col])
    for o in range(rows):
        largest = 0.0
        for i in range(cols):
            largest = max(largest, abs(w[o, i]) * inverse[i])
        out[o] = largest
    return out


@numba.njit(cache=True)
def _col_max(w: Array, row: Array) -> Array:
    rows, cols = w.shape
    out = np.zeros(cols)
    for o in range(rows):
        inverse = 1.0 / row[o] if row[o] > 0.0 else 0.0
        for i in range(cols):
            out[i] = max(out[i], abs(w[o, i]) * inverse)
    return out


@numba.njit(cache=True)
def _row_rms(w: Array, col: Array) -> Array:
    rows, cols = w.shape
    out = np.zeros(rows)
    inverse = np.array([1.0 / c if c > 0.0 else 0.0 for c in col])
    for o in range(rows):
        total = 0.0
        for i in range(cols):
            v = w[o, i] * inverse[i]
            total += v * v
        out[o] = np.sqrt(total / cols)
    return out


@numba.njit(cache=True)
def _col_rms(w: Array, row: Array) -> Array:
    rows, cols = w.shape
    out = np.zeros(cols)
    for o in range(rows):
        inverse = 1.0 / row[o] if row[o] > 0.0 else 0.0
        for i in range(cols):
            v = w[o, i] * inverse
            out[i] += v * v
    rms: Array = np.sqrt(out / rows)
    return rms


@numba.njit(cache=True)
def _quantise(w: Array, row: Array, col: Array) -> Array:
    rows, cols = w.shape
    q = np.zeros((rows, cols), np.int8)
    for o in range(rows):
        for i in range(cols):
            step = row[o] * col[i]
            if step > 0.0:
                q[o, i] = np.int8(min(max(np.rint(w[o, i] / step), -127.0), 127.0))
    return q


@numba.njit(cache=True)
def _expand_row(q: Array, row: Array) -> Array:
    rows, cols = q.shape
    out = np.empty((rows, cols), np.float32)
    for o in range(rows):
        for i in range(cols):
            out[o, i] = np.float32(q[o, i]) * row[o]
    return out


@numba.njit(cache=True)
def _expand_2f(q: Array, row: Array, col: Array) -> Array:
    rows, cols = q.shape
    out = np.empty((rows, cols), np.float32)
    for o in range(rows):
        for i in range(cols):
            out[o, i] = np.float32(q[o, i]) * row[o] * col[i]
    return out
