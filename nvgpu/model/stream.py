"""Layers streamed under a memory budget: the frozen matrices of one layer at a time, in buffers that all layers share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nvgpu.gpu import DTYPES, Buffer, Device, Recorder, Staging
from nvgpu.gpu.staging import offsets

Array = np.ndarray[Any, Any]
Fetch = Callable[[], Array]


class LayerStream:
    """Uploads a layer's matrices when it is about to run, filled by the host while the layer before it runs.

    The same kernels run on the same values as with resident layers, so the results have the same bits.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.uploads = 0
        self._shared: dict[tuple[str, tuple[int, ...], str], Buffer] = {}
        self._layers: dict[int, list[tuple[Buffer, Fetch]]] = defaultdict(list)
        self._held: int | None = None
        self._staging: Staging | None = None

    def add(self, layer: int, part: str, shape: tuple[int, ...], dtype: str, fetch: Fetch) -> Buffer:
        """The buffer of a layer's matrix; `part` tells the matrices of one layer apart, `fetch` gives the values."""
        key = (part, shape, dtype)
        if key not in self._shared:
            self._shared[key] = self.device.buffer(part, shape, dtype)
        self._layers[layer].append((self._shared[key], fetch))
        return self._shared[key]

    def load(self, rec: Recorder, layer: int) -> None:
        """Make the shared buffers hold this layer's matrices, for what is recorded from here on."""
        if self._held == layer or layer not in self._layers:
            return
        rec.flush()  # the layer before runs while the host fills the staging memory
        targets = [buffer for buffer, _ in self._layers[layer]]
        staging = self._ready()
        self._fill(staging, layer, offsets(targets))
        staging.send(rec, *targets)
        self._held = layer
        self.uploads += 1

    def _fill(self, staging: Staging, layer: int, places: Sequence[int]) -> None:
        memory = staging.view((staging.nbytes,), np.dtype(np.uint8))
        for (buffer, fetch), at in zip(self._layers[layer], places, strict=True):
            room = memory[at : at + buffer.nbytes].view(DTYPES[buffer.dtype]).reshape(buffer.shape)
            np.copyto(room, fetch(), casting="same_kind")

    @property
    def nbytes(self) -> int:
        """Bytes of all layers, which go up once a sweep."""
        return sum(buffer.nbytes for layer in self._layers.values() for buffer, _ in layer)

    def _ready(self) -> Staging:
        """Staging memory for the largest layer."""
        if self._staging is None:
            sizes = [
                offsets(buffers)[-1] + buffers[-1].nbytes
                for buffers in ([b for b, _ in layer] for layer in self._layers.values())
            ]
            self._staging = Staging(self.device, "layer staging", max(sizes))
        return self._staging

    def free(self) -> None:
        """Release the shared buffers and the staging memory."""
        self.device.free(*self._shared.values())
        if self._staging is not None:
            self._staging.free()
