"""Device buffers as the layers see them: a name, a shape, a dtype, and a place inside an allocation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nvgpu.errors import LimitError

if TYPE_CHECKING:
    from nvgpu.gpu.device import Device

DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "u32": np.dtype("<u4"), "f16": np.dtype("<f2")}
VIEW_ALIGN = 256  # the portable offset alignment, whatever the adapter offers
BIND_ALIGN = 16  # shaders read rows as vec4<f32>: a binding must end on one


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True, eq=False)
class Buffer:
    """`shape` of `dtype` (f32, u32, f16) at byte `offset` of the allocation `raw`; compared by identity."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: Device
    raw: Any
    offset: int = 0
    tail: int = 0  # bytes behind the tensor that a binding covers too (the parity harness's guard band)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def bound_nbytes(self) -> int:
        """Bytes a shader binding covers."""
        return max(round_up(self.nbytes + self.tail, BIND_ALIGN), BIND_ALIGN)

    def view(self, shape: tuple[int, ...], first: int = 0, name: str | None = None) -> Buffer:
        """`shape` elements from element `first` on; `first` lies on a 256-byte boundary.

        Raises:
            LimitError: misaligned, or past the end.
        """
        name = name or self.name
        item = DTYPES[self.dtype].itemsize
        start = first * item
        if start % VIEW_ALIGN:
            raise LimitError(
                f"view {name} of {self.name}: byte offset {start} is not a multiple of {VIEW_ALIGN}"
            )
        if first + math.prod(shape) > self.size:
            raise LimitError(
                f"view {name} of {self.name}: elements {first}..{first + math.prod(shape)} of {self.size}"
            )
        return Buffer(name, shape, self.dtype, self.device, self.raw, self.offset + start)

    def reshaped(self, *shape: int) -> Buffer:
        """The same memory under another shape of as many elements."""
        return self if shape == self.shape else self.view(shape)

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share bytes."""
        return (
            self.raw is other.raw
            and self.offset < other.offset + other.bound_nbytes
            and other.offset < self.offset + self.bound_nbytes
        )

    def write(self, values: np.ndarray[Any, Any]) -> None:
        """Replace the content with `values` (converted to the buffer's dtype, same element count)."""
        self.device.write(self, values)

    def read(self) -> np.ndarray[Any, Any]:
        """The content on the host; waits for everything submitted before."""
        return self.device.read(self)
