"""The 4-bit codecs: groups of 32 weights, two a byte, the earlier one in the low half; w = (nibble - 8) scale.

q4_block: groups over the flattened tensor, the last filled up with zeros, `[u8 groups*16][f16 scale[groups]]`.
q4_tiled: `[f16 scale][u8 16]` per group of a matrix row. q4tp: `[u8 groups*16]`, per row `f16 lo, f16 step`, per row
the groups' 5-bit codes, least significant bit first, filled up to a whole byte; scale = 2^(lo + code step).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np

from nvgpu.formats.quant.codec import (
    GROUP,
    Array,
    Codec,
    Grouped,
    Shape,
    by_rows,
    fixed,
    half_bytes,
    halves,
    matrix,
    round_scale,
)

LEVELS = 7.0
RUNGS = 32  # scales a q4tp row can choose from
_NIBBLES = GROUP // 2
_TILE = 2 + _NIBBLES


class Q4Block(Codec):
    """Nibbles first, then the scales; any shape."""

    def nbytes(self, shape: Shape) -> int:
        return -(-math.prod(shape) // GROUP) * _TILE

    def encode(self, values: Array) -> Array | None:
        groups = np.pad(values.reshape(-1), (0, -values.size % GROUP)).reshape(-1, GROUP)
        scale = round_scale(group_max(groups).reshape(-1), LEVELS)
        if scale is None:
            return None
        nibbles = np.zeros(len(groups) * _NIBBLES, np.uint8)
        put_nibbles(groups, scale.astype(np.float32), nibbles, 0, _NIBBLES)
        return np.concatenate([nibbles, half_bytes(scale)])

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        _, cols = matrix(shape)
        first, last = begin * cols // GROUP, -(-end * cols // GROUP)
        scales = halves(self._scales(data, shape)[2 * first : 2 * last])
        out = take_nibbles(data, first * _NIBBLES, _NIBBLES, scales).reshape(-1)
        skipped = begin * cols - first * GROUP
        return out[skipped : skipped + (end - begin) * cols].reshape(end - begin, cols)

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        yield halves(self._scales(data, shape))

    def _scales(self, data: Array, shape: Shape) -> Array:
        return data[-(-math.prod(shape) // GROUP) * _NIBBLES :]


class Q4Tiled(Grouped):
    """The nibbles of q4_block, each group's behind its scale."""

    def nbytes(self, shape: Shape) -> int:
        return math.prod(shape) // GROUP * _TILE

    def encode(self, values: Array) -> Array | None:
        groups = values.reshape(-1, GROUP)
        scale = round_scale(group_max(groups).reshape(-1), LEVELS)
        if scale is None:
            return None
        tiles = np.zeros((len(groups), _TILE), np.uint8)
        tiles[:, :2] = half_bytes(scale).reshape(-1, 2)
        put_nibbles(groups, scale.astype(np.float32), tiles.reshape(-1), 2, _TILE)
        return tiles.reshape(-1)

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        groups = shape[1] // GROUP
        part = data[begin * groups * _TILE : end * groups * _TILE]
        scales = halves(part.reshape(-1, _TILE)[:, :2])
        return take_nibbles(part, 2, _TILE, scales).reshape(end - begin, shape[1])

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        yield halves(data.reshape(-1, _TILE)[:, :2])


class Q4Ladder(Grouped):
    """q4tp: each group's scale is one of the 32 rungs of its row's geometric ladder."""

    def nbytes(self, shape: Shape) -> int:
        rows, cols = shape
        return rows * (cols // GROUP * _NIBBLES + 4 + _code_bytes(cols))

    def encode(self, values: Array) -> Array | None:
        rows, cols = values.shape
        groups = cols // GROUP
        exact = group_max(values) / LEVELS
        params = _fit_ladders(exact)
        rungs = ladders(params)
        codes = np.zeros((rows, groups), np.uint8)
        w, rungs, exact, lines = map(fixed, (values, rungs, exact, params.astype(np.float64)))
        by_rows(lambda a, b: _choose_rungs(w, rungs, exact, lines, a, b, codes), rows, values.size)
        scales = np.take_along_axis(rungs, codes.astype(np.intp), 1)
        if not np.isfinite(np.float32(8) * scales).all():
            return None
        nibbles = np.zeros(rows * groups * _NIBBLES, np.uint8)
        put_nibbles(values.reshape(-1, GROUP), scales.reshape(-1), nibbles, 0, _NIBBLES)
        return np.concatenate([nibbles, half_bytes(params), pack_codes(codes).reshape(-1)])

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        groups = shape[1] // GROUP
        scales = self._scales(data, shape, begin, end)
        out = take_nibbles(data, begin * groups * _NIBBLES, _NIBBLES, scales.reshape(-1))
        return out.reshape(end - begin, shape[1])

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            yield np.float32(8) * self._scales(
                data, shape, 0, shape[0]
            )  # the largest nibble must not overflow

    def _scales(self, data: Array, shape: Shape, begin: int, end: int) -> Array:
        """float32 `[end - begin, groups]`."""
        rows, cols = shape
        groups, width = cols // GROUP, _code_bytes(cols)
        params_at = rows * groups * _NIBBLES
        codes_at = params_at + 4 * rows
        params = halves(data[params_at + 4 * begin : params_at + 4 * end]).reshape(-1, 2)
        packed = data[codes_at + width * begin : codes_at + width * end].reshape(-1, width)
        return np.take_along_axis(ladders(params), unpack_codes(packed, groups).astype(np.intp), 1)


def ladders(params: Array) -> Array:
    """float32 `[rows, 32]` from `(lo, step)` `[rows, 2]`: 2^lo, then each rung the one before times 2^step in float32.

    The public decoder multiplies the same way, so that both get the same bits.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        first, ratio = np.exp2(params.astype(np.float64)).astype(np.float32).T
        rungs = np.empty((len(params), RUNGS), np.float32)
        rungs[:, 0] = first
        for i in range(1, RUNGS):
            rungs[:, i] = rungs[:, i - 1] * ratio
    return rungs


def pack_codes(codes: Array) -> Array:
    """5-bit codes `[rows, n]` to u8 `[rows, ceil(5 n / 8)]`, least significant bit first."""
    bits = codes[:, :, None] >> np.arange(5, dtype=np.uint8) & 1
    return np.packbits(bits.reshape(len(codes), -1), axis=1, bitorder="little")


def unpack_codes(packed: Array, n: int) -> Array:
    """The inverse of `pack_codes`."""
    bits = np.unpackbits(packed, axis=1, count=5 * n, bitorder="little").reshape(len(packed), n, 5)
    codes: Array = (bits << np.arange(5, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)
    return codes


def _code_bytes(cols: int) -> int:
    return -(-5 * (cols // GROUP) // 8)


def _fit_ladders(exact: Array) -> Array:
    """f16 `(lo, step)` `[rows, 2]` whose rungs span the scales `[rows, groups]` of each row; zeros do not count."""
    with np.errstate(divide="ignore"):
        logs = np.log2(exact)
    live = exact > 0
    low = np.min(logs, axis=1, where=live, initial=np.inf)
    high = np.max(logs, axis=1, where=live, initial=-np.inf)
    empty = ~live.any(axis=1)
    low[empty] = high[empty] = 0.0
    lo = low.astype(np.float16)
    span = np.maximum(high - lo.astype(np.float64), 0.0)
    step = (span / (RUNGS - 1)).astype(np.float16)
    short = step.astype(np.float64) * (RUNGS - 1) < span
    return np.stack([lo, np.where(short, np.nextafter(step, np.float16(np.inf)), step)], axis=1)


def group_max(values: Array) -> Array:
    """Largest magnitude of every group, float64 `[rows, groups]`."""
    out = np.zeros((len(values), values.shape[1] // GROUP))
    w = fixed(values)
    by_rows(lambda a, b: _group_max(w, a, b, out), len(w), w.size)
    return out


def put_nibbles(groups: Array, scales: Array, out: Array, offset: int, stride: int) -> None:
    """Write groups `[n, 32]` over their scales; group i's 16 bytes begin at offset + i stride."""
    w, scales = fixed(groups), fixed(scales)
    by_rows(lambda a, b: _put_nibbles(w, scales, a, b, out, offset, stride), len(w), w.size)


def take_nibbles(data: Array, offset: int, stride: int, scales: Array) -> Array:
    """float32 `[n, 32]` of the groups whose 16 bytes begin at offset + i stride."""
    out = np.empty((len(scales), GROUP), np.float32)
    data, scales = fixed(data), fixed(scales)
    by_rows(lambda a, b: _take_nibbles(data, offset, stride, scales, a, b, out), len(out), out.size)
    return out


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _group_max(w: Array, begin: int, end: int, out: Array) -> None:
    for o in range(begin, end):
        for g in range(out.shape[1]):
            largest = np.float32(0.0)
            for i in range(g * 32, g * 32 + 32):
                largest = max(largest, abs(w[o, i]))
            out[o, g] = largest


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _nibble(value: Any, scale: Any) -> Any:
    return np.uint8(min(max(np.rint(value / scale), np.float32(-8.0)), np.float32(7.0)) + np.float32(8.0))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _put_nibbles(w: Array, scales: Array, begin: int, end: int, out: Array, offset: int, stride: int) -> None:
    for g in range(begin, end):
        scale = scales[g] if scales[g] > 0.0 else np.float32(1.0)  # a group of zeros
        at = offset + g * stride
        for k in range(16):
            out[at + k] = _nibble(w[g, 2 * k], scale) | _nibble(w[g, 2 * k + 1], scale) << 4


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _take_nibbles(
    data: Array, offset: int, stride: int, scales: Array, begin: int, end: int, out: Array
) -> None:
    for g in range(begin, end):
        at = offset + g * stride
        for k in range(16):
            byte = data[at + k]
            out[g, 2 * k] = np.float32(np.int32(byte & 15) - 8) * scales[g]
            out[g, 2 * k + 1] = np.float32(np.int32(byte >> 4) - 8) * scales[g]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _choose_rungs(
    w: Array, rungs: Array, exact: Array, lines: Array, begin: int, end: int, codes: Array
) -> None:
    """Of the rung nearest to the exact scale, two below and one above it, the one of least squared error."""
    for o in range(begin, end):
        for g in range(codes.shape[1]):
            if exact[o, g] == 0.0 or lines[o, 1] <= 0.0:
                continue
            rung = np.rint((np.log2(exact[o, g]) - lines[o, 0]) / lines[o, 1])
            near = int(min(max(rung, 0.0), 31.0))
            best = np.inf
            for code in range(max(near - 2, 0), min(near + 2, 32)):
                error = _squared_error(w, o, g, rungs[o, code]) if rungs[o, code] > 0.0 else np.inf
                if error < best:
                    best = error
                    codes[o, g] = code


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _squared_error(w: Array, o: int, g: int, scale: Any) -> Any:
    error = 0.0
    for i in range(g * 32, g * 32 + 32):
        q = min(max(np.rint(w[o, i] / scale), np.float32(-8.0)), np.float32(7.0))
        difference = np.float64(w[o, i] - q * scale)
        error += difference * difference
    return error
