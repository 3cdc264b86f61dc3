"""Scratch buffers by name: layers that run one after the other share them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from nvgpu.gpu import Buffer, Device


class Workspace:
    """Allocates each named buffer once, for the largest shape asked for so far, and hands out views.

    A name is `kind.part` or `group/kind.part`. Kinds of one group are never live at the same time: their buffers share memory.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._held: dict[str, Buffer] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Buffer] = {}
        self._pools: dict[str, list[Buffer]] = defaultdict(list)  # what a group has allocated
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
            held = self._held[name] = self._claim(name, math.prod(shape), dtype)
        view = self._views[name, shape] = held.view(shape, name=name)
        return view

    def _claim(self, name: str, size: int, dtype: str) -> Buffer:
        """The smallest buffer of the group that fits and that no name of this kind holds, else a new one."""
        group, kind = _place(name)
        if not group:
            return self.device.buffer(name, (size,), dtype)
        taken = {id(held) for other, held in self._held.items() if _place(other) == (group, kind)}
        free = [b for b in self._pools[group] if b.size >= size and b.dtype == dtype and id(b) not in taken]
        if free:
            return min(free, key=lambda b: b.size)
        self._pools[group].append(self.device.buffer(name, (size,), dtype))
        return self._pools[group][-1]

    def _drop(self, name: str) -> None:
        held = self._held.pop(name)
        for key in [k for k in self._views if k[0] == name]:
            del self._views[key]
        if any(other is held for other in self._held.values()):
            return
        pool = self._pools[_place(name)[0]]
        pool[:] = [b for b in pool if b is not held]
        self._outgrown.append(held)  # work that uses it may be recorded and not yet submitted

    def collect(self) -> None:
        """Release outgrown buffers; call when everything recorded has been submitted."""
        self.device.free(*self._outgrown)
        self._outgrown.clear()

    def free(self) -> None:
        """Release every buffer."""
        for name in list(self._held):
            self._drop(name)
        self.collect()


def _place(name: str) -> tuple[str, str]:
    """Group (empty for none) and kind of a name."""
    group, _, rest = name.rpartition("/")
    return group, rest.partition(".")[0]
