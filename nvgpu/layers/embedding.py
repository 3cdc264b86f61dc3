"""Token embeddings: the table stays on the host, rows are gathered into mapped upload memory."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from nvgpu.errors import GpuError, InputError
from nvgpu.gpu import Buffer, Device, Recorder, Staging
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise

Array = np.ndarray[Any, Any]


class Embedding:
    """`table` `[V, C]`: float32, or float16 (or its bits as uint16), which is widened on the device."""

    def __init__(self, device: Device, table: Array) -> None:
        self.device = device
        self.half = table.dtype != np.float32
        self._table = np.ascontiguousarray(table.view(np.uint16) if self.half else table)
        self._staging: Staging | None = None

    def forward(self, rec: Recorder, ws: Workspace, ids: Array, x: Buffer) -> None:
        """x `[N, C]` = the rows of `ids` `[N]`.

        Raises:
            InputError: an id outside the vocabulary.
        """
        vocab, width = self._table.shape
        outside = (ids < 0) | (ids >= vocab)
        if outside.any():
            raise InputError(
                f"token id {ids[np.argmax(outside)]}: expected less than {vocab}, the vocabulary's size"
            )
        if x.size != ids.size * width:
            raise GpuError(f"embedding: {x.name} has shape {list(x.shape)}, expected {[ids.size, width]}")
        # 1. gather on the host, in mapped memory
        staging = self._staging_for(ids.size * width * self._table.itemsize)
        self._fill(staging, ids)
        # 2. upload, and widen where the table is f16
        if not self.half:
            staging.send(rec, x)
            return
        half = ws.buf("embedding.half", (ids.size, width), "f16")
        staging.send(rec, half)
        elementwise.f16_to_f32(rec, x=half, y=x)

    def _fill(self, staging: Staging, ids: Array) -> None:
        _gather(self._table, ids, staging.view((ids.size, self._table.shape[1]), self._table.dtype))

    def _staging_for(self, nbytes: int) -> Staging:
        if self._staging is None or self._staging.nbytes < nbytes:
            self.free()
            self._staging = Staging(self.device, "embedding.staging", nbytes)
        return self._staging

    def free(self) -> None:
        """Release the upload memory."""
        if self._staging is not None:
            self._staging.free()
            self._staging = None


@numba.njit(parallel=True, cache=True)
def _gather(table: Array, ids: Array, out: Array) -> None:
    for i in numba.prange(ids.size):
        out[i] = table[ids[i]]
