"""The codecs once more in plain numpy, as someone would write them first: what tools/bench_codecs.py compares with.

They follow docs/cmf.md and give the same payloads and values, short of ties that float32 and float64 round apart; q8_2f alone
takes the column RMS for its field, one pass instead of our search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvgpu.formats.codecs import Dtype
from nvgpu.formats.quant.q1 import outliers
from nvgpu.formats.quant.vbit import row_widths

Array = np.ndarray[Any, Any]
Encoder = Callable[[Array], bytes]
Decoder = Callable[[bytes, tuple[int, int]], Array]


def _half(values: Array) -> bytes:
    return values.astype("<f2").tobytes()


def _halves(data: bytes, count: int, offset: int) -> Array:
    return np.frombuffer(data, "<f2", count, offset).astype(np.float32)


def _safe(scale: Array) -> Array:
    return np.where(scale > 0, scale, np.float32(1))


def encode_q8_row(w: Array) -> bytes:
    scale = (np.abs(w).max(axis=1) / 127).astype(np.float16)
    q = np.rint(w / _safe(scale.astype(np.float32))[:, None]).clip(-127, 127).astype(np.int8)
    return q.tobytes() + _half(scale)


def decode_q8_row(data: bytes, shape: tuple[int, int]) -> Array:
    rows, cols = shape
    q = np.frombuffer(data, np.int8, rows * cols).reshape(shape)
    return q * _halves(data, rows, rows * cols)[:, None]


def encode_q8_2f(w: Array) -> bytes:
    col = np.sqrt(np.square(w).mean(axis=0)).astype(np.float16)
    flat = w / _safe(col.astype(np.float32))
    return encode_q8_row(flat) + _half(col)


def decode_q8_2f(data: bytes, shape: tuple[int, int]) -> Array:
    rows, cols = shape
    return decode_q8_row(data, shape) * _halves(data, cols, rows * cols + 2 * rows)


def _nibbles(groups: Array, scale: Array) -> Array:
    q = (np.rint(groups / _safe(scale)[:, None]).clip(-8, 7) + 8).astype(np.uint8)
    return q[:, ::2] | q[:, 1::2] << 4


def _from_nibbles(packed: Array, scale: Array) -> Array:
    q = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), 32)
    return (q.astype(np.float32) - 8) * scale[:, None]


def encode_q4_block(w: Array) -> bytes:
    groups = w.reshape(-1, 32)
    scale = (np.abs(groups).max(axis=1) / 7).astype(np.float16)
    return _nibbles(groups, scale.astype(np.float32)).tobytes() + _half(scale)


def decode_q4_block(data: bytes, shape: tuple[int, int]) -> Array:
    n = shape[0] * shape[1] // 32
    packed = np.frombuffer(data, np.uint8, 16 * n).reshape(n, 16)
    return _from_nibbles(packed, _halves(data, n, 16 * n)).reshape(shape)


def encode_q4_tiled(w: Array) -> bytes:
    data, n = np.frombuffer(encode_q4_block(w), np.uint8), w.size // 32
    return np.concatenate([data[16 * n :].reshape(n, 2), data[: 16 * n].reshape(n, 16)], axis=1).tobytes()


def decode_q4_tiled(data: bytes, shape: tuple[int, int]) -> Array:
    tiles = np.frombuffer(data, np.uint8).reshape(-1, 18)
    scale = np.ascontiguousarray(tiles[:, :2]).view("<f2")[:, 0].astype(np.float32)
    return _from_nibbles(tiles[:, 2:], scale).reshape(shape)


def encode_q4tp(w: Array) -> bytes:
    rows = len(w)
    groups = w.reshape(rows, -1, 32)
    logs = np.log2(np.abs(groups).max(axis=2) / np.float32(7))
    lo = logs.min(axis=1).astype(np.float16)
    span = logs.max(axis=1) - lo.astype(np.float32)
    step = np.nextafter((span / 31).astype(np.float16), np.float16(np.inf))
    ladder = _ladder(lo, step)
    near = np.rint((logs - lo[:, None]) / step[:, None].astype(np.float32)).clip(0, 31).astype(int)
    best, codes = np.full(near.shape, np.inf), near
    for shift in (-2, -1, 0, 1):
        code = (near + shift).clip(0, 31)
        scale = np.take_along_axis(ladder, code, 1)[:, :, None]
        error = np.square(groups - np.rint(groups / scale).clip(-8, 7) * scale).sum(axis=2)
        codes, best = np.where(error < best, code, codes), np.minimum(error, best)
    nibbles = _nibbles(groups.reshape(-1, 32), np.take_along_axis(ladder, codes, 1).reshape(-1))
    bits = (codes[:, :, None] >> np.arange(5) & 1).astype(np.uint8).reshape(rows, -1)
    packed = np.packbits(bits, axis=1, bitorder="little")
    return nibbles.tobytes() + np.stack([lo, step], axis=1).tobytes() + packed.tobytes()


def decode_q4tp(data: bytes, shape: tuple[int, int]) -> Array:
    rows, n = shape[0], shape[1] // 32
    lo, step = np.frombuffer(data, "<f2", 2 * rows, rows * n * 16).reshape(rows, 2).T
    packed = np.frombuffer(data, np.uint8, offset=rows * (n * 16 + 4)).reshape(rows, -1)
    bits = np.unpackbits(packed, axis=1, count=5 * n, bitorder="little").reshape(rows, n, 5)
    scale = np.take_along_axis(_ladder(lo, step), bits @ (1 << np.arange(5)), 1)
    nibbles = np.frombuffer(data, np.uint8, rows * n * 16).reshape(-1, 16)
    return _from_nibbles(nibbles, scale.reshape(-1)).reshape(shape)


def _ladder(lo: Array, step: Array) -> Array:
    ratios = np.repeat(np.exp2(step.astype(np.float32))[:, None], 32, axis=1)
    ratios[:, 0] = np.exp2(lo.astype(np.float32))
    return np.cumprod(ratios, axis=1, dtype=np.float32)


def encode_vbit_ro(w: Array) -> bytes:
    groups = w.reshape(len(w), -1, 32)
    largest = np.abs(groups).max(axis=2)
    widths = row_widths(largest.max(axis=1))
    level = (2.0 ** (widths - 1) - 1).astype(np.float32)
    scale = (largest / level[:, None]).astype(np.float16)
    q = np.rint(groups / _safe(scale.astype(np.float32))[:, :, None]) + level[:, None, None]
    rows = []
    for codes, bits in zip(q.reshape(w.shape).astype(np.uint8), widths, strict=True):
        rows.append(np.packbits(codes[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.uint8) & 1).tobytes())
    table = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype("<u4")
    return widths.astype(np.uint8).tobytes() + _half(scale) + table.tobytes() + b"".join(rows)


def decode_vbit_ro(data: bytes, shape: tuple[int, int]) -> Array:
    rows, cols = shape
    n = cols // 32
    scale = np.repeat(_halves(data, rows * n, rows).reshape(rows, n), 32, axis=1)
    at = rows + 2 * rows * n
    begins = np.frombuffer(data, "<u4", rows + 1, at)
    codes = np.frombuffer(data, np.uint8, offset=at + 4 * (rows + 1))
    out = np.empty(shape, np.float32)
    for r in range(rows):
        width = data[r]
        bits = np.unpackbits(codes[begins[r] : begins[r + 1]]).reshape(cols, width)
        out[r] = bits @ (1 << np.arange(width - 1, -1, -1)) - (2 ** (width - 1) - 1)
    return out * scale


def encode_q1(w: Array) -> bytes:
    groups = w.reshape(-1, 32)
    scale = np.abs(groups).mean(axis=1).astype("<f2")
    signs = np.packbits(groups >= 0, axis=1, bitorder="little")
    return np.concatenate([scale[:, None].view(np.uint8), signs], axis=1).tobytes()


def decode_q1(data: bytes, shape: tuple[int, int]) -> Array:
    tiles = np.frombuffer(data, np.uint8).reshape(-1, 6)
    scale = np.ascontiguousarray(tiles[:, :2]).view("<f2").astype(np.float32)
    signs = np.unpackbits(tiles[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return (signs * scale).reshape(shape)


def encode_q1t(w: Array) -> bytes:
    exact = outliers(w)
    groups = np.where(exact, np.float32(0), w).reshape(-1, 32)
    falling = -np.sort(-np.abs(groups), axis=1)
    sums = np.cumsum(falling, axis=1)
    count = np.arange(1, 33)
    best = (np.square(sums) / count).argmax(axis=1)[:, None]
    scale = (np.take_along_axis(sums, best, 1) / count[best]).astype("<f2")
    kept = (np.abs(groups) >= np.take_along_axis(falling, best, 1)) & (groups != 0)
    trits = np.pad(np.where(kept, np.where(groups > 0, 1, 2), 0), ((0, 0), (0, 3))).reshape(-1, 7, 5)
    codes = (trits @ 3 ** np.arange(5)).astype(np.uint8)
    first = np.concatenate([[0], np.cumsum(exact.sum(axis=1))]).astype("<u4")
    entries = np.zeros(exact.sum(), np.dtype([("c", "<u2"), ("v", "<f2")]))
    entries["c"], entries["v"] = np.nonzero(exact)[1], w[exact]
    return (
        np.concatenate([scale.view(np.uint8), codes], axis=1).tobytes() + first.tobytes() + entries.tobytes()
    )


def decode_q1t(data: bytes, shape: tuple[int, int]) -> Array:
    rows, cols = shape
    n = rows * cols // 32
    tiles = np.frombuffer(data, np.uint8, 9 * n).reshape(n, 9)
    scale = np.ascontiguousarray(tiles[:, :2]).view("<f2").astype(np.float32)
    trits = (tiles[:, 2:, None] // 3 ** np.arange(5, dtype=np.uint8) % 3).reshape(n, 35)[:, :32]
    out = (np.array([0, 1, -1], np.float32)[trits] * scale).reshape(shape)
    first = np.frombuffer(data, "<u4", rows + 1, 9 * n)
    entries = np.frombuffer(data, np.dtype([("c", "<u2"), ("v", "<f2")]), offset=9 * n + 4 * (rows + 1))
    out[np.repeat(np.arange(rows), np.diff(first)), entries["c"]] = entries["v"]
    return out


PLAIN: dict[Dtype, tuple[Encoder, Decoder]] = {
    Dtype.Q8_ROW: (encode_q8_row, decode_q8_row),
    Dtype.Q8_2F: (encode_q8_2f, decode_q8_2f),
    Dtype.Q4_BLOCK: (encode_q4_block, decode_q4_block),
    Dtype.Q4_TILED: (encode_q4_tiled, decode_q4_tiled),
    Dtype.Q4TP: (encode_q4tp, decode_q4tp),
    Dtype.VBIT_RO: (encode_vbit_ro, decode_vbit_ro),
    Dtype.Q1: (encode_q1, decode_q1),
    Dtype.Q1T: (encode_q1t, decode_q1t),
}
