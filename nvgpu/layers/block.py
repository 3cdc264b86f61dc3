"""A decoder block: y = x2 + mlp(norm2(x2)), x2 = x + mixer(norm1(x))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.attention import Attention
from nvgpu.layers.gain import Gain
from nvgpu.layers.gdn import Gdn
from nvgpu.layers.mlp import Mlp
from nvgpu.layers.norm import norm_backward, norm_forward
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise


@dataclass(frozen=True)
class BlockSaved:
    """What the backward needs; rms statistics stay in the workspace under the norms' names."""

    n1: Buffer  # [N, C]
    mixer: Any  # AttentionSaved or GdnSaved
    x2: Buffer  # [N, C]
    n2: Buffer  # [N, C]
    mlp: Any  # MlpSaved


@dataclass(frozen=True)
class Block:
    """One layer; gains and scales train, everything else is frozen."""

    norm1: Gain
    mixer: Attention | Gdn
    norm2: Gain
    mlp: Mlp
    eps: float
    gemma: bool

    @property
    def kind(self) -> str:
        return "attention" if isinstance(self.mixer, Attention) else "gdn"

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> BlockSaved:
        """x, y `[N, C]`; the saved buffers live until the next block runs."""
        x2, branch = ws.buf("block.x2", x.shape), ws.buf("block.branch", x.shape)
        with rec.phase(self.kind):
            # 1. n1 = norm1(x)
            n1 = norm_forward(rec, ws, "norm1", self.norm1, x, self.eps, self.gemma)
            # 2. x2 = x + mixer(n1)
            mixer = self.mixer.forward(rec, ws, n1, branch)
            elementwise.add(rec, a=x, b=branch, y=x2)
        with rec.phase("mlp"):
            # 3. n2 = norm2(x2)
            n2 = norm_forward(rec, ws, "norm2", self.norm2, x2, self.eps, self.gemma)
            # 4. y = x2 + mlp(n2)
            mlp = self.mlp.forward(rec, ws, n2, branch)
            elementwise.add(rec, a=x2, b=branch, y=y)
        return BlockSaved(n1, mixer, x2, n2, mlp)

    def backward(
        self, rec: Recorder, ws: Workspace, saved: BlockSaved, x: Buffer, dy: Buffer, dx: Buffer
    ) -> None:
        """dy, dx `[N, C]`: dx is assigned, parameter gradients accumulate."""
        dn, dx2 = ws.buf("block.dn", x.shape), ws.buf("block.dx2", x.shape)
        with rec.phase("mlp"):
            # 4. y = x2 + mlp(n2)
            self.mlp.backward(rec, ws, saved.mlp, saved.n2, dy, dn)
            # 3. n2 = norm2(x2)
            norm_backward(rec, ws, "norm2", self.norm2, saved.x2, dn, dx2, self.gemma)
            elementwise.accumulate(rec, x=dy, y=dx2)
        with rec.phase(self.kind):
            # 2. x2 = x + mixer(n1)
            self.mixer.backward(rec, ws, saved.mixer, saved.n1, dx2, dn)
            # 1. n1 = norm1(x)
            norm_backward(rec, ws, "norm1", self.norm1, x, dn, dx, self.gemma)
            elementwise.accumulate(rec, x=dx2, y=dx)
