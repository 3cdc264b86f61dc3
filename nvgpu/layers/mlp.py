"""SwiGLU MLP: y = down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from dataclasses import dataclass

from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.linear import Linear
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise


@dataclass(frozen=True)
class MlpSaved:
    """What the backward needs."""

    gate: Buffer  # [N, F]
    up: Buffer  # [N, F]
    act: Buffer  # [N, F]  down's input


@dataclass(frozen=True)
class Mlp:
    """Three linears; F is their inner width."""

    gate: Linear
    up: Linear
    down: Linear

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> MlpSaved:
        """x, y `[N, C]`; y is assigned, and what is saved lives until the next MLP runs."""
        inner = (x.shape[0], self.gate.out_features)
        gate, up, act = (ws.buf(f"late/mlp.{name}", inner) for name in ("gate_out", "up_out", "act"))
        # 1. gate and up
        self.gate.forward(rec, ws, x, gate)
        self.up.forward(rec, ws, x, up)
        # 2. act = silu(gate) * up
        elementwise.swiglu_fwd(rec, gate=gate, up=up, y=act)
        # 3. y = down(act)
        self.down.forward(rec, ws, act, y)
        return MlpSaved(gate, up, act)

    def backward(
        self, rec: Recorder, ws: Workspace, saved: MlpSaved, x: Buffer, dy: Buffer, dx: Buffer
    ) -> None:
        """dy, dx `[N, C]`: dx is assigned, parameter gradients accumulate."""
        inner = saved.act.shape
        dact, dgate, dup = (ws.buf(f"late/mlp.{name}", inner) for name in ("dact", "dgate", "dup"))
        # 3. y = down(act)
        self.down.backward(rec, ws, saved.act, dy, dact)
        # 2. act = silu(gate) * up
        elementwise.swiglu_bwd(rec, gate=saved.gate, up=saved.up, dy=dact, dgate=dgate, dup=dup)
        # 1. gate and up
        self.up.backward(rec, ws, x, dup, dx)
        self.gate.backward(rec, ws, x, dgate, dx, acc=True)
