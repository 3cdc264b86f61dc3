"""The BLR payload (dtype 19): W = sum over paths of diag(h) U diag(l) V diag(g), U [m, r] and V [r, n] of ±1.

Header of 16 bytes: u8 0x4C, u8 version 1, u8 paths (1 or 2), u8 0, u32 r, u32 m, u32 n. Per path: h f16[m],
g f16[n], l f16[r], U as m rows of r/8 bytes, V as r rows of n/8 bytes. Bits LSB first, 1 is +1. r and n are
multiples of 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats.files import Bytes, byte_view
from nvgpu.formats.quant.codec import Array, Codec, Shape

MAGIC = 0x4C
VERSION = 1
MAX_PATHS = 2
HEADER = struct.Struct("<4B3I")


def pack_signs(values: Array) -> Array:
    """`[rows, cols]` to u8 `[rows, cols/8]`: LSB first, 1 where the value is >= 0 (the sign of 0 is +1)."""
    if values.ndim != 2 or values.shape[1] % 8:
        raise FormatError(f"signs of shape {list(values.shape)}: expected two axes, the last a multiple of 8")
    return np.packbits(values >= 0, axis=1, bitorder="little")


def unpack_signs(packed: Array) -> Array:
    """u8 `[rows, cols/8]` to float32 `[rows, cols]` of -1 and +1."""
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    signs: Array = bits.astype(np.float32) * np.float32(2) - np.float32(1)
    return signs


@dataclass(frozen=True, eq=False)
class BlrPath:
    """One path: h f16 `[m]`, l f16 `[r]`, g f16 `[n]`, u u8 `[m, r/8]`, v u8 `[r, n/8]` (packed signs)."""

    h: Array
    l: Array
    g: Array
    u: Array
    v: Array

    def dense(self, rows: slice = slice(None)) -> Array:
        """Rows of diag(h) U diag(l) V diag(g), float32 `[m, n]` without `rows`."""
        h, middle, g = (a.astype(np.float32) for a in (self.h[rows], self.l, self.g))
        core: Array = (unpack_signs(self.u[rows]) * middle) @ unpack_signs(self.v)
        core *= h[:, None]
        core *= g
        return core


@dataclass(frozen=True, eq=False)
class BlrTensor:
    """A matrix `[m, n]` = `[out, in]` of one or two paths of one rank."""

    m: int
    n: int
    rank: int
    paths: tuple[BlrPath, ...]

    @classmethod
    def parse(cls, data: Bytes, where: str, shape: tuple[int, ...] | None = None) -> Self:
        """Read a payload; u and v are views of `data`, the scales are copies.

        Raises:
            FormatError: a header or size that is wrong, or does not fit `shape` `(m, n)` where that is given.
        """
        view = byte_view(data)
        paths, r, m, n = check_payload(view, len(view), where, shape)
        cursor = _Cursor(np.frombuffer(view, np.uint8), HEADER.size)
        return cls(m, n, r, tuple(_read_path(cursor, m, n, r) for _ in range(paths)))

    def pack(self) -> bytes:
        """The payload. Raises FormatError where shapes or types of the parts do not fit."""
        if not 1 <= len(self.paths) <= MAX_PATHS or min(self.m, self.n, self.rank) < 1:
            raise FormatError(
                f"BLR tensor {self.m} x {self.n} of rank {self.rank} with {len(self.paths)} paths: "
                f"expected positive sizes and 1 to {MAX_PATHS} paths"
            )
        if self.rank % 8 or self.n % 8:
            raise FormatError(f"BLR rank {self.rank}, n {self.n}: expected multiples of 8")
        parts = [HEADER.pack(MAGIC, VERSION, len(self.paths), 0, self.rank, self.m, self.n)]
        for path in self.paths:
            parts += self._pack_path(path)
        return b"".join(parts)

    def _pack_path(self, path: BlrPath) -> list[bytes]:
        m, n, r = self.m, self.n, self.rank
        layout = (
            ("h", path.h, "<f2", (m,)),
            ("g", path.g, "<f2", (n,)),
            ("l", path.l, "<f2", (r,)),
            ("u", path.u, "u1", (m, r // 8)),
            ("v", path.v, "u1", (r, n // 8)),
        )
        for name, array, kind, shape in layout:
            if array.dtype != np.dtype(kind) or array.shape != shape:
                raise FormatError(
                    f"BLR part {name} is {array.dtype} {list(array.shape)}, "
                    f"expected {np.dtype(kind)} {list(shape)}"
                )
        return [array.astype(kind, copy=False).tobytes() for _, array, kind, _ in layout]

    @property
    def bits(self) -> int:
        """Bits of signs and scales: paths (r (m + n) + 16 (m + n + r)); the 16-byte header is not counted."""
        m, n, r = self.m, self.n, self.rank
        return len(self.paths) * (r * (m + n) + 16 * (m + n + r))

    @property
    def bpw(self) -> float:
        """Bits per weight."""
        return self.bits / (self.m * self.n)

    def dense(self, rows: slice = slice(None)) -> Array:
        """Rows of the matrix, float32 `[m, n]` without `rows`."""
        total = self.paths[0].dense(rows)
        for path in self.paths[1:]:
            total += path.dense(rows)
        return total


def payload_bytes(m: int, n: int, r: int, paths: int) -> int:
    """Size of a payload, header included."""
    return HEADER.size + paths * (2 * (m + n + r) + m * (r // 8) + r * (n // 8))


def check_payload(
    head: Bytes, nbytes: int, where: str, shape: tuple[int, ...] | None = None
) -> tuple[int, int, int, int]:
    """(paths, r, m, n) of a payload of `nbytes` that begins with `head` (its first 16 bytes or more).

    Raises:
        FormatError: a header field, the size, or (m, n) against `shape` that is not as it must be.
    """
    if nbytes < HEADER.size:
        raise FormatError(
            f"{where}: BLR payload has {nbytes} bytes, expected at least {HEADER.size} for its header"
        )
    paths, r, m, n = _parse_header(byte_view(head), where)
    if shape is not None and (m, n) != shape:
        raise FormatError(f"{where}: BLR payload is for shape {[m, n]}, the directory has {list(shape)}")
    expected = payload_bytes(m, n, r, paths)
    if nbytes != expected:
        raise FormatError(
            f"{where}: BLR payload has {nbytes} bytes, expected {expected} for "
            f"{paths} paths of rank {r}, {m} x {n}"
        )
    return paths, r, m, n


def _parse_header(head: memoryview, where: str) -> tuple[int, int, int, int]:
    magic, version, paths, zero, r, m, n = HEADER.unpack_from(head)
    for field, found, good, expected in (
        ("magic", magic, magic == MAGIC, hex(MAGIC)),
        ("version", version, version == VERSION, VERSION),
        ("path count", paths, 1 <= paths <= MAX_PATHS, f"1 to {MAX_PATHS}"),
        ("reserved byte", zero, zero == 0, 0),
        ("rank", r, r > 0 and r % 8 == 0, "a positive multiple of 8"),
        ("m", m, m > 0, "at least 1"),
        ("n", n, n > 0 and n % 8 == 0, "a positive multiple of 8"),
    ):
        if not good:
            raise FormatError(f"{where}: BLR {field} is {found}, expected {expected}")
    return paths, r, m, n


class BlrCodec(Codec):
    """dtype 19: packed by `BlrTensor.pack`, never made from dense values here."""

    encodes = False

    def shape_error(self, shape: Shape) -> str | None:
        return None if len(shape) == 2 else "expected two axes"

    def nbytes(self, shape: Shape) -> None:
        return None

    def check(self, data: Array, shape: Shape, where: str) -> None:
        check_payload(data[: HEADER.size], len(data), where, shape)

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        return BlrTensor.parse(data, where, shape).dense(slice(begin, end))

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        for path in BlrTensor.parse(data, "blr", shape).paths:
            yield from (scale.astype(np.float32) for scale in (path.h, path.l, path.g))


class _Cursor:
    def __init__(self, data: Array, offset: int) -> None:
        self.data = data
        self.offset = offset

    def take(self, count: int) -> Array:
        part = self.data[self.offset : self.offset + count]
        self.offset += count
        return part


def _read_path(cursor: _Cursor, m: int, n: int, r: int) -> BlrPath:
    h, g, middle = (np.frombuffer(cursor.take(2 * k).tobytes(), "<f2").copy() for k in (m, n, r))
    u = cursor.take(m * (r // 8)).reshape(m, r // 8)
    v = cursor.take(r * (n // 8)).reshape(r, n // 8)
    return BlrPath(h=h, l=middle, g=g, u=u, v=v)
