"""One-bit and ternary codecs, with and without exact outliers.

q1: per group of 32 `[f16 scale][u8 4]`, bit i of byte j (least significant first) is weight 8 j + i, w = ±scale.
q1s: q1, then `u32 count` and count times `[u32 index][f16 value]`, which replace weights of the flattened matrix.
q1t: per group `[f16 scale][u8 7]` of base-3 digits, five a byte, the lowest power first: 0, +scale, -scale; then
`u32 first[rows + 1]` and per row `[u16 column][f16 value]`, which replace weights of that row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numba
import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats.quant.codec import (
    GROUP,
    Array,
    Grouped,
    Shape,
    by_rows,
    fixed,
    half_bytes,
    halves,
    require_bytes,
)

KEPT = 0.01  # share of the weights that q1t keeps exactly, at most
_Q1_TILE, _Q1T_TILE = 6, 9
_MOST_COLUMNS = 1 << 16
_DIGITS = 5
# the factors that the digits of every byte stand for
_TRITS = fixed(np.array([0, 1, -1], np.float32)[np.arange(256)[:, None] // 3 ** np.arange(_DIGITS) % 3])
_LEAST = np.float32(2.0**-149)  # the smallest magnitude above 0
_ENTRY = np.dtype([("index", "<u4"), ("value", "<f2")])
_COLUMN = np.dtype([("index", "<u2"), ("value", "<f2")])


class Q1(Grouped):
    """The mean magnitude of a group times the signs; the sign of 0 is +1."""

    def nbytes(self, shape: Shape) -> int | None:
        return math.prod(shape) // GROUP * _Q1_TILE

    def encode(self, values: Array) -> Array | None:
        groups = values.reshape(-1, GROUP)
        tiles, means, w = np.zeros((len(groups), _Q1_TILE), np.uint8), np.zeros(len(groups)), fixed(groups)
        by_rows(lambda a, b: _put_signs(w, a, b, tiles, means), len(w), w.size)
        scale = means.astype(np.float16)
        tiles[:, :2] = half_bytes(scale).reshape(-1, 2)
        return tiles.reshape(-1) if np.isfinite(scale).all() else None

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        groups = shape[1] // GROUP
        part = data[begin * groups * _Q1_TILE : end * groups * _Q1_TILE]
        scales, part = fixed(halves(part.reshape(-1, _Q1_TILE)[:, :2])), fixed(part)
        out = np.empty((len(scales), GROUP), np.float32)
        by_rows(lambda a, b: _take_signs(part, scales, a, b, out), len(out), out.size)
        return out.reshape(end - begin, shape[1])

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        size = math.prod(shape) // GROUP * _Q1_TILE
        yield halves(data[:size].reshape(-1, _Q1_TILE)[:, :2])


class Q1Sparse(Q1):
    """q1s: q1 with a list of exact weights."""

    encodes = False

    def nbytes(self, shape: Shape) -> None:
        return None

    def check(self, data: Array, shape: Shape, where: str) -> None:
        base = math.prod(shape) // GROUP * _Q1_TILE
        if len(data) < base + 4:
            raise FormatError(f"{where}: payload of {len(data)} bytes, expected at least {base + 4}")
        count = int.from_bytes(data[base : base + 4].tobytes(), "little")
        expected = base + 4 + count * _ENTRY.itemsize
        require_bytes(len(data), expected, f"for its {count} exact weights", where)

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        out = super().decode_rows(data, shape, begin, end, where)
        entries = self._entries(data, shape)
        index = entries["index"].astype(np.int64)
        if len(index) and index.max() >= math.prod(shape):
            raise FormatError(f"{where}: exact weight {index.max()} of {math.prod(shape)}")
        here = (index >= begin * shape[1]) & (index < end * shape[1])
        out.reshape(-1)[index[here] - begin * shape[1]] = entries["value"][here]
        return out

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        yield from super().factors(data, shape)
        yield self._entries(data, shape)["value"].astype(np.float32)

    def _entries(self, data: Array, shape: Shape) -> Array:
        return np.frombuffer(data[math.prod(shape) // GROUP * _Q1_TILE + 4 :].tobytes(), _ENTRY)


class Q1Ternary(Grouped):
    """q1t: the best ternary group in the least-squares sense; the largest weights of the matrix stand apart."""

    def shape_error(self, shape: Shape) -> str | None:
        if len(shape) == 2 and shape[1] > _MOST_COLUMNS:
            return f"expected at most {_MOST_COLUMNS} columns"
        return super().shape_error(shape)

    def nbytes(self, shape: Shape) -> None:
        return None

    def bound(self, shape: Shape) -> int:
        return self._entries_at(shape) + int(math.prod(shape) * KEPT) * _COLUMN.itemsize

    def check(self, data: Array, shape: Shape, where: str) -> None:
        head = self._entries_at(shape)
        if len(data) < head:
            raise FormatError(f"{where}: payload of {len(data)} bytes, expected at least {head}")
        first = self._firsts(data, shape)
        falls = np.diff(first) < 0
        if first[0] or falls.any():
            row = 0 if first[0] else int(falls.argmax())
            raise FormatError(
                f"{where}: exact weights of row {row} begin at {first[row]} and end before that"
            )
        require_bytes(
            len(data), head + int(first[-1]) * _COLUMN.itemsize, f"for its {first[-1]} exact weights", where
        )

    def encode(self, values: Array) -> Array | None:
        exact = outliers(values)
        groups = np.where(exact, np.float32(0), values).reshape(-1, GROUP)
        largest = np.abs(values).max(initial=0.0)
        if not np.isfinite(largest.astype(np.float16)):
            return None
        tiles = np.zeros((len(groups), _Q1T_TILE), np.uint8)
        scales, supports = best_supports(groups)
        tiles[:, :2] = half_bytes(scales).reshape(-1, 2)
        groups = fixed(groups)
        by_rows(lambda a, b: _put_trits(groups, supports, a, b, tiles), len(groups), groups.size)
        first = np.concatenate([[0], np.cumsum(exact.sum(axis=1))]).astype("<u4")
        entries = np.zeros(int(first[-1]), _COLUMN)
        entries["index"], entries["value"] = np.nonzero(exact)[1], values[exact]
        return np.concatenate([tiles.reshape(-1), first.view(np.uint8), entries.view(np.uint8)])

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        _, cols = shape
        groups = cols // GROUP
        part = data[begin * groups * _Q1T_TILE : end * groups * _Q1T_TILE]
        scales, part = fixed(halves(part.reshape(-1, _Q1T_TILE)[:, :2])), fixed(part)
        flat = np.empty((len(scales), GROUP), np.float32)
        by_rows(lambda a, b: _take_trits(part, scales, _TRITS, a, b, flat), len(flat), flat.size)
        out = flat.reshape(end - begin, cols)
        first = self._firsts(data, shape)[begin : end + 1]
        entries = self._entries(data, shape, int(first[0]), int(first[-1]))
        column = entries["index"].astype(np.intp)
        if len(column) and column.max() >= cols:
            raise FormatError(f"{where}: an exact weight in column {column.max()} of {cols}")
        out[np.repeat(np.arange(end - begin), np.diff(first)), column] = entries["value"]
        return out

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        size = math.prod(shape) // GROUP * _Q1T_TILE
        yield halves(data[:size].reshape(-1, _Q1T_TILE)[:, :2])
        yield self._entries(data, shape, 0, int(self._firsts(data, shape)[-1]))["value"].astype(np.float32)

    def _entries_at(self, shape: Shape) -> int:
        return math.prod(shape) // GROUP * _Q1T_TILE + 4 * (shape[0] + 1)

    def _firsts(self, data: Array, shape: Shape) -> Array:
        at = self._entries_at(shape)
        return np.frombuffer(data[at - 4 * (shape[0] + 1) : at].tobytes(), "<u4").astype(np.int64)

    def _entries(self, data: Array, shape: Shape, begin: int, end: int) -> Array:
        at = self._entries_at(shape)
        size = _COLUMN.itemsize
        return np.frombuffer(data[at + begin * size : at + end * size].tobytes(), _COLUMN)


def outliers(values: Array) -> Array:
    """The largest weights, at most KEPT of them and none that only ties with one left out: bool `[rows, cols]`."""
    count = int(values.size * KEPT)
    if not count:
        return np.zeros(values.shape, bool)
    magnitude = np.abs(values)
    limit = np.partition(magnitude.reshape(-1), -count - 1)[-count - 1]
    above: Array = magnitude > limit
    return above


def best_supports(groups: Array) -> tuple[Array, Array]:
    """(f16 scale, smallest magnitude that is not 0) of each group `[n, 32]`.

    Of the k largest weights the best scale is their mean and the squared error falls by (their sum)^2 / k.
    """
    scales, limits = np.zeros(len(groups)), np.zeros(len(groups), np.float32)
    w = fixed(groups)
    by_rows(lambda a, b: _best_supports(w, a, b, scales, limits), len(w), w.size)
    return scales.astype(np.float16), limits


@numba.njit(cache=True, nogil=True)
def _best_supports(w: Array, begin: int, end: int, scales: Array, limits: Array) -> None:
    falling = np.zeros(32, np.float32)
    for g in range(begin, end):
        for i in range(32):
            value, k = abs(w[g, i]), i
            while k > 0 and falling[k - 1] < value:
                falling[k] = falling[k - 1]
                k -= 1
            falling[k] = value
        total = best = 0.0
        for k in range(32):
            total += falling[k]
            if total * total > best * (k + 1):
                best = total * total / (k + 1)
                scales[g], limits[g] = total / (k + 1), falling[k]


@numba.njit(cache=True, nogil=True)
def _put_signs(w: Array, begin: int, end: int, tiles: Array, means: Array) -> None:
    for g in range(begin, end):
        total = 0.0
        for j in range(4):
            byte = 0
            for i in range(8):
                value = w[g, 8 * j + i]
                total += abs(value)
                byte |= (value >= 0.0) << i
            tiles[g, 2 + j] = byte
        means[g] = total / 32


@numba.njit(cache=True, nogil=True)
def _take_signs(data: Array, scales: Array, begin: int, end: int, out: Array) -> None:
    for g in range(begin, end):
        for j in range(4):
            byte = np.int32(data[g * 6 + 2 + j])
            for i in range(8):
                out[g, 8 * j + i] = np.float32((byte >> i & 1) * 2 - 1) * scales[g]


@numba.njit(cache=True, nogil=True)
def _put_trits(w: Array, limits: Array, begin: int, end: int, tiles: Array) -> None:
    for g in range(begin, end):
        least = max(limits[g], _LEAST)  # a group of zeros has the limit 0
        for j in range(7):
            byte = 0
            for i in range(5 * j + 4 if j < 6 else 31, 5 * j - 1, -1):
                value = w[g, i]
                byte = 3 * byte + (value >= least) + 2 * (value <= -least)
            tiles[g, 2 + j] = byte


@numba.njit(cache=True, nogil=True)
def _take_trits(data: Array, scales: Array, trits: Array, begin: int, end: int, out: Array) -> None:
    for g in range(begin, end):
        for j in range(7):
            byte = data[g * 9 + 2 + j]
            for i in range(5 if j < 6 else 2):
                out[g, 5 * j + i] = trits[byte, i] * scales[g]
