"""A mapped upload buffer that the host writes in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvgpu.gpu.buffer import VIEW_ALIGN, Buffer, round_up
from nvgpu.gpu.device import Device, translated
from nvgpu.gpu.recorder import Recorder


class Staging:
    """Host-visible memory for uploads: fill `view()`, then `send()`; it is mapped again when its copy has run."""

    def __init__(self, device: Device, name: str, nbytes: int) -> None:
        import wgpu

        self.device = device
        self.name = name
        self.nbytes = round_up(max(nbytes, 4), 4)
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        self._raw = device.allocate(name, self.nbytes, usage, mapped=True)
        self._remap: Any = None

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Writable mapped memory as an array; unusable after `send`.

        wgpu-py has no public writable view, hence its undocumented call (its `write_mapped` copies).
        """
        with translated(f"map of {self.name}"):
            if self._remap is not None:
                self._remap.sync_wait()
                self._remap = None
            count = int(np.prod(shape))
            mapped = self._raw._experimental_get_mapped_range(0, round_up(count * dtype.itemsize, 4))
            return np.frombuffer(mapped, dtype, count).reshape(shape)

    def send(self, recorder: Recorder, *targets: Buffer) -> None:
        """Copy the view's bytes to `targets`, which lie in it as `offsets` says, and submit: the next map waits for it."""
        with translated(f"upload to {targets[0].name}"):
            self._raw.unmap()
            for target, offset in zip(targets, offsets(targets), strict=True):
                recorder.copy_raw(self._raw, offset, target, round_up(target.nbytes, 4))
                self.device.uploaded += target.nbytes
            recorder.flush()
            self._remap = self._raw.map_async("WRITE")

    def free(self) -> None:
        self.device.free_raw(self._raw)


def offsets(targets: Sequence[Buffer]) -> list[int]:
    """Byte offset of each target's content in a staging buffer, one after the other, and no gap before the first."""
    found, at = [], 0
    for target in targets:
        found.append(at)
        at = round_up(at + target.nbytes, VIEW_ALIGN)
    return found
