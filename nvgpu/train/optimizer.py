"""Adam over the flat parameters, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.gpu import Recorder
from nvgpu.layers.workspace import Workspace
from nvgpu.model.params import Params
from nvgpu.ops import optim

EPS = 1e-8
_BETA1, _BETA2 = float(np.float32(0.9)), float(np.float32(0.999))  # as the device holds them


class Adam:
    """Metric scales move by -lr·m̂/(√v̂ + eps)·max(|w|, floor), gains by -lr·m̂/(√v̂ + eps); gradients are zeroed."""

    def __init__(self, rec: Recorder, ws: Workspace, params: Params) -> None:
        self.rec = rec
        self.params = params
        self._hyper = ws.buf("adam.hyper", (8,))
        self._partial = ws.buf("adam.sumsq", (optim.sumsq_groups(params.count), 2))

    def grad_norm(self) -> float:
        """Global gradient norm of the live entries; not finite where any gradient is not."""
        with self.rec.phase("optimiser"):
            optim.sumsq(self.rec, g=self.params.grads, mask=self.params.mask, partial=self._partial)
            self.rec.flush()
            sums = self._partial.read().astype(np.float64)
        return float(np.sqrt(sums[:, 0].sum())) if not sums[:, 1].any() else float("nan")

    def step(self, lr: float, number: int, scale: float) -> None:
        """Update `number` (from 1) at rate `lr`, the gradients times `scale` (clipping)."""
        hyper: np.ndarray[Any, Any] = np.array(
            [lr, 1 / (1 - _BETA1**number), 1 / (1 - _BETA2**number), _BETA1, _BETA2, EPS, scale, 0],
            np.float32,
        )
        p = self.params
        held: dict[str, Any] = {"m1": p.m1, "m2": p.m2, "mask": p.mask, "floor": p.floor}
        with self.rec.phase("optimiser"):
            self.rec.flush()
            self._hyper.write(hyper)
            optim.adam(self.rec, w=p.values, g=p.grads, **held, hyper=self._hyper)
            self.rec.flush()

    def drop(self) -> None:
        """Forget the gradients of a skipped step."""
        self.rec.clear(self.params.grads)
        self.rec.flush()
