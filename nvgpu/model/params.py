"""The trainable parameters: one flat vector for values, and one each for gradients, moments, mask and floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.gpu import Buffer, Device
from nvgpu.gpu.buffer import VIEW_ALIGN, round_up

Array = np.ndarray[Any, Any]
_ALIGN = VIEW_ALIGN // 4
_FLOOR = 0.05  # of the RMS of the entries as loaded (design: training semantics)


@dataclass(frozen=True)
class ParamSpec:
    """A parameter as loaded: `live` entries train, the rest pads the rank and stays 0.

    `relative`: a metric scale (h, l, g), whose Adam steps are relative to its magnitude; norm gains take plain steps.
    """

    name: str
    values: Array
    live: int
    relative: bool

    @property
    def floor(self) -> float:
        if not self.relative:
            return 0.0
        return _FLOOR * float(np.sqrt(np.mean(np.square(self.values[: self.live], dtype=np.float64))))


class Params:
    """All trainable parameters of a net, each at a 256-byte boundary of the flat vectors.

    Without `trainable` there are only values.
    """

    def __init__(self, device: Device, specs: Sequence[ParamSpec], *, trainable: bool) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self._first: dict[str, int] = {}
        total = 0
        for spec in specs:
            self._first[spec.name] = total
            total += round_up(len(spec.values), _ALIGN)
        self.count = max(total, _ALIGN)
        self.values = device.upload("params", self._flat(lambda s: s.values))
        self.trainable = trainable
        if trainable:
            self.grads = device.buffer("params.grad", (self.count,))
            self.m1 = device.buffer("params.m1", (self.count,))
            self.m2 = device.buffer("params.m2", (self.count,))
            self.mask = device.upload("params.mask", self._flat(lambda s: np.arange(len(s.values)) < s.live))
            self.floor = device.upload("params.floor", self._flat(lambda s: np.full(len(s.values), s.floor)))

    def _flat(self, of: Any) -> Array:
        flat = np.zeros(self.count, np.float32)
        for name, spec in self.specs.items():
            first = self._first[name]
            flat[first : first + len(spec.values)] = of(spec)
        return flat

    def value(self, name: str) -> Buffer:
        return self._view(self.values, name)

    def grad(self, name: str) -> Buffer | None:
        """The gradient's view; None where nothing trains."""
        return self._view(self.grads, name) if self.trainable else None

    def _view(self, flat: Buffer, name: str) -> Buffer:
        return flat.view((len(self.specs[name].values),), self._first[name], name)

    def unpack(self, flat: Array) -> dict[str, Array]:
        """Live entries by name, from a host copy of one of the flat vectors."""
        return {n: flat[self._first[n] : self._first[n] + s.live] for n, s in self.specs.items()}

    def buffers(self) -> list[Buffer]:
        """Every allocation, for freeing."""
        rest = [self.grads, self.m1, self.m2, self.mask, self.floor] if self.trainable else []
        return [self.values, *rest]
