"""Codes of 3, 4, 5, 6 or 8 bits, one width a row: w = (code - L) scale, L = 2^(width - 1) - 1.

vbit: `[u8 width[rows]][f16 scale[rows, groups]]`, then each row's codes, most significant bit first, filled up to a
whole byte. vbit_ro: between scales and codes `u32 offset[rows + 1]`, where each row begins in what follows it.
"""

from __future__ import annotations

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
    round_scale,
)
from nvgpu.formats.quant.q4 import group_max

WIDTHS = np.array([3, 4, 5, 6, 8])
MEAN_WIDTH = 4.25  # bits of a code that `encode` may spend on average
_SHIFTS = 48  # halvings of the range of shifts, which is below 2^9 wide


class VBit(Grouped):
    """Rows found by summing the widths before them."""

    encodes = False
    tables = 0  # bytes a row, and once more, of the table of offsets

    def nbytes(self, shape: Shape) -> None:
        return None

    def bound(self, shape: Shape) -> int:
        rows, cols = shape
        return self._codes_at(shape) + int(rows * cols * MEAN_WIDTH) // 8 + rows

    def check(self, data: Array, shape: Shape, where: str) -> None:
        rows, head = shape[0], self._codes_at(shape)
        if len(data) < head:
            raise FormatError(
                f"{where}: payload of {len(data)} bytes, expected at least {head} before its codes"
            )
        widths = data[:rows]
        odd = ~np.isin(widths, WIDTHS)
        if odd.any():
            row = int(odd.argmax())
            raise FormatError(f"{where}: row {row} has codes of {widths[row]} bits, expected 3, 4, 5, 6 or 8")
        total = int(self._sizes(data, shape).sum())
        require_bytes(len(data), head + total, "for its widths", where)

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        rows, cols = shape
        groups = cols // GROUP
        scales = halves(data[rows + 2 * groups * begin : rows + 2 * groups * end]).reshape(-1, groups)
        offsets = np.cumsum(self._sizes(data, shape)) - self._sizes(data, shape)
        codes, starts, widths = map(
            fixed, (data[self._codes_at(shape) :], offsets[begin:end], data[begin:end])
        )
        scales = fixed(scales)
        out = np.empty((end - begin, cols), np.float32)
        by_rows(lambda a, b: _take(codes, starts, widths, scales, a, b, out), len(out), out.size)
        return out

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        rows, cols = shape
        yield halves(data[rows : rows + 2 * rows * (cols // GROUP)])

    def _codes_at(self, shape: Shape) -> int:
        rows, cols = shape
        return rows + 2 * rows * (cols // GROUP) + self.tables * (rows + 1)

    def _sizes(self, data: Array, shape: Shape) -> Array:
        """Bytes of every row's codes."""
        return data[: shape[0]].astype(np.int64) * (shape[1] // 8)


class VBitOffsets(VBit):
    """vbit_ro: a table says where rows begin."""

    encodes = True
    tables = 4

    def check(self, data: Array, shape: Shape, where: str) -> None:
        super().check(data, shape, where)
        expected = np.concatenate([[0], np.cumsum(self._sizes(data, shape))])
        wrong = self._table(data, shape) != expected
        if wrong.any():
            row = int(wrong.argmax())
            raise FormatError(
                f"{where}: row {row} begins at {self._table(data, shape)[row]}, expected {expected[row]} by the widths"
            )

    def encode(self, values: Array) -> Array | None:
        rows, cols = values.shape
        largest = group_max(values)
        widths = row_widths(largest.max(axis=1))
        levels = 2.0 ** (widths - 1) - 1
        scales = round_scale(largest, levels[:, None])
        sizes = widths * (cols // 8)
        ends = np.cumsum(sizes)
        if scales is None or ends[-1] >= 1 << 32:
            return None
        codes = np.zeros(int(ends[-1]), np.uint8)
        w, starts, bits, steps = map(
            fixed, (values, ends - sizes, widths.astype(np.uint8), scales.astype(np.float32))
        )
        by_rows(lambda a, b: _put(w, starts, bits, steps, a, b, codes), rows, values.size)
        table = np.concatenate([[0], ends]).astype("<u4").view(np.uint8)
        return np.concatenate([widths.astype(np.uint8), half_bytes(scales), table, codes])

    def _table(self, data: Array, shape: Shape) -> Array:
        end = self._codes_at(shape)
        return np.frombuffer(data[end - 4 * (shape[0] + 1) : end].tobytes(), "<u4")


def row_widths(largest: Array) -> Array:
    """Bits of every row's codes: the nearest width to log2 of its largest magnitude plus one shift for all.

    The shift is the largest that keeps the mean over the rows within MEAN_WIDTH. A row of zeros takes 3 bits and does
    not count. Of two widths equally near the smaller is taken.
    """
    live = largest > 0
    if not live.any():
        return np.full(len(largest), WIDTHS[0])
    logs = np.log2(largest[live])
    low, high = WIDTHS[0] - logs.max(), WIDTHS[-1] - logs.min()  # all at 3 bits; all at 8
    for _ in range(_SHIFTS):
        middle = (low + high) / 2
        low, high = (middle, high) if _nearest(logs + middle).mean() <= MEAN_WIDTH else (low, middle)
    widths = np.full(len(largest), WIDTHS[0])
    widths[live] = _nearest(logs + low)
    return widths


def _nearest(bits: Array) -> Array:
    nearest: Array = WIDTHS[np.abs(bits[:, None] - WIDTHS).argmin(axis=1)]
    return nearest


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _put(w: Array, starts: Array, widths: Array, scales: Array, begin: int, end: int, codes: Array) -> None:
    """Eight codes at a time: they are as many bytes as a code has bits."""
    for o in range(begin, end):
        bits = np.uint64(widths[o])
        level = np.float32((1 << (widths[o] - 1)) - 1)
        at = starts[o]
        for first in range(0, w.shape[1], 8):
            scale = scales[o, first // 32]
            inner = np.float32(1.0) if scale > 0.0 else np.float32(0.0)
            scale = scale if scale > 0.0 else np.float32(1.0)
            word = np.uint64(0)
            for i in range(8):
                q = np.rint(w[o, first + i] / scale) * inner + level
                q = min(max(q, np.float32(0.0)), np.float32(2.0) * level + np.float32(1.0))
                word = word << bits | np.uint64(q)
            for i in range(widths[o]):
                codes[at + i] = np.uint8(word >> np.uint64(8 * (widths[o] - 1 - i)) & np.uint64(255))
            at += widths[o]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _take(
    codes: Array, starts: Array, widths: Array, scales: Array, begin: int, end: int, out: Array
) -> None:
    for o in range(begin, end):
        bits = np.uint64(widths[o])
        mask = np.uint64((1 << widths[o]) - 1)
        level = np.float32((1 << (widths[o] - 1)) - 1)
        at = starts[o]
        for first in range(0, out.shape[1], 8):
            word = np.uint64(0)
            for i in range(widths[o]):
                word = word << np.uint64(8) | np.uint64(codes[at + i])
            at += widths[o]
            scale = scales[o, first // 32]
            for i in range(8):
                code = np.float32(word >> bits * np.uint64(7 - i) & mask)
                out[o, first + i] = (code - level) * scale
