"""Scratch buffers by name: layers that run one after the other share them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nvgpu.gpu import Buffer, Device


class Workspace:
    """Allocates each named buffer once, for the largest shape asked for so far, and hands out views."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._held: dict[str, Buffer] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Buffer] = {}
        self._outgrown: list[Buffer] = []

    def buf(self, name: str, shape: Sequence[int], dtype: str = "f32") -> Buffer:
        """The buffer `name` with `shape`; the content is whatever its last writer left."""
        shape = tuple(shape)
        view = self._views.get((name, shape))
        if view is not None and view.dtype == dtype:
            return view
        held = self._held.get(name)
        if held is None or held.size < math.prod(shape) or held.dtype != dtype:
            if held is not None:
                self._drop(name)
            held = self._held[name] = self.device.buffer(name, (math.prod(shape),), dtype)
        view = self._views[name, shape] = held.view(shape)
        return view

    def _drop(self, name: str) -> None:
        self._outgrown.append(self._held.pop(name))  # work that uses it may be recorded and not yet submitted
        for key in [k for k in self._views if k[0] == name]:
            del self._views[key]

    def collect(self) -> None:
        """Release outgrown buffers; call when everything recorded has been submitted."""
        self.device.free(*self._outgrown)
        self._outgrown.clear()

    def free(self) -> None:
        """Release every buffer."""
        for name in list(self._held):
            self._drop(name)
        self.collect()
