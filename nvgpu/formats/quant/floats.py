"""f32, f16 and bf16: the values themselves, little-endian."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nvgpu.formats.quant.codec import Array, Codec, Shape, matrix

_BLOCK = 1 << 22  # values looked at at once


class Float(Codec):
    """A float type of `item` bytes; `kind` is how numpy reads its words."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.item = np.dtype(kind).itemsize

    def nbytes(self, shape: Shape) -> int:
        return math.prod(shape) * self.item

    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        _, cols = matrix(shape)
        part = data[begin * cols * self.item : end * cols * self.item]
        return self.widen(part.view(self.kind)).reshape(end - begin, cols)

    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        words = data.view(self.kind)
        yield from (self.widen(words[i : i + _BLOCK]) for i in range(0, len(words), _BLOCK))

    def widen(self, words: Array) -> Array:
        """A new float32 array."""
        return words.astype(np.float32)

    def encode(self, values: Array) -> Array | None:
        stored = values.astype(self.kind)
        return stored.reshape(-1).view(np.uint8) if np.isfinite(stored).all() else None


class BFloat16(Float):
    """The upper halves of f32, rounded to nearest even."""

    def __init__(self) -> None:
        super().__init__("<u2")

    def widen(self, words: Array) -> Array:
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def encode(self, values: Array) -> Array | None:
        bits = values.reshape(-1).view(np.uint32)
        bits = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        half = (bits >> np.uint32(16)).astype("<u2")
        return half.view(np.uint8) if ((half & 0x7F80) != 0x7F80).all() else None
