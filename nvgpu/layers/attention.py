"""Gated full attention: y = o(softmax attention of (rope(norm(q)), rope(norm(k)), v) * sigmoid(gate)).

Activation gradients are assigned; those of the q and k norm gains and of the linears' scales accumulate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.gain import Gain
from nvgpu.layers.linear import Linear
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import attention, elementwise


@dataclass(frozen=True)
class AttentionSaved:
    """What the backward needs."""

    q: Buffer  # [N, H*D]  before the norm
    gate: Buffer  # [N, H*D]
    k: Buffer  # [N, KV*D]  before the norm
    v: Buffer  # [N, KV*D]
    q_rot: Buffer  # [N, H*D]  normed and rotated
    q_rstd: Buffer  # [N, H]
    k_rot: Buffer  # [N, KV*D]
    k_rstd: Buffer  # [N, KV]
    o: Buffer  # [N, H*D]  before the gate
    lse: Buffer  # [N, H]
    gated: Buffer  # [N, H*D]  o_proj's input


@dataclass(frozen=True)
class Attention:
    """H query heads share KV kv heads of width D; windows of T rows do not see each other."""

    q: Linear  # per head, D rows of q and then D of the gate
    k: Linear
    v: Linear
    o: Linear
    q_norm: Gain
    k_norm: Gain
    rope: Buffer  # [T, half, 2]  cosines and sines
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    gemma: bool
    window: int  # T

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> AttentionSaved:
        """x (normed), y `[N, C]`, N whole windows: y is assigned; what is saved lives until the next attention runs."""
        rows, wide, narrow = self._shapes(x)
        # 1. q and gate
        qg = ws.buf("early/attn.qg", (rows, 2 * wide[1]))
        q, gate = ws.buf("early/attn.q_out", wide), ws.buf("early/attn.gate", wide)
        self.q.forward(rec, ws, x, qg)
        attention.split_q_gate(rec, qg=qg, q=q, gate=gate, H=self.heads, D=self.head_dim)
        # 2. k and v
        k, v = ws.buf("early/attn.k_out", narrow), ws.buf("early/attn.v_out", narrow)
        self.k.forward(rec, ws, x, k)
        self.v.forward(rec, ws, x, v)
        # 3. norm and rotation per head
        q_rot, q_rstd = ws.buf("early/attn.q_rot", wide), ws.buf("early/attn.q_rstd", (rows, self.heads))
        k_rot, k_rstd = ws.buf("early/attn.k_rot", narrow), ws.buf("early/attn.k_rstd", (rows, self.kv_heads))
        self._norm_rope(rec, self.q_norm, q, q_rot, q_rstd)
        self._norm_rope(rec, self.k_norm, k, k_rot, k_rstd)
        # 4. softmax attention
        o, lse = ws.buf("early/attn.o_in", wide), ws.buf("early/attn.lse", (rows, self.heads))
        attention.attention_fwd(rec, q=q_rot, k=k_rot, v=v, o=o, lse=lse, **self._dims())
        # 5. gate
        gated = ws.buf("early/attn.gated", wide)
        elementwise.sigmoid_gate_fwd(rec, x=o, gate=gate, y=gated)
        # 6. y = o(gated)
        self.o.forward(rec, ws, gated, y)
        return AttentionSaved(q, gate, k, v, q_rot, q_rstd, k_rot, k_rstd, o, lse, gated)

    def backward(
        self, rec: Recorder, ws: Workspace, saved: AttentionSaved, x: Buffer, dy: Buffer, dx: Buffer
    ) -> None:
        """dy, dx `[N, C]`: dx is assigned, parameter gradients accumulate."""
        s, (rows, wide, narrow) = saved, self._shapes(x)
        # 6. y = o(gated)
        dgated = ws.buf("late/attn.dgated", wide)
        self.o.backward(rec, ws, s.gated, dy, dgated)
        # 5. gate
        do, dgate = ws.buf("late/attn.do", wide), ws.buf("late/attn.dgate", wide)
        elementwise.sigmoid_gate_bwd(rec, x=s.o, gate=s.gate, dy=dgated, dx=do, dgate=dgate)
        # 4. softmax attention
        delta = ws.buf("late/attn.delta", s.lse.shape)
        dq_rot, dk_rot, dv = (
            ws.buf("late/attn.dq_rot", wide),
            ws.buf("late/attn.dk_rot", narrow),
            ws.buf("late/attn.dv", narrow),
        )
        given: dict[str, Any] = {
            "q": s.q_rot,
            "k": s.k_rot,
            "v": s.v,
            "dout": do,
            "lse": s.lse,
            "delta": delta,
        }
        attention.attention_delta(rec, o=s.o, dout=do, delta=delta, D=self.head_dim)
        attention.attention_bwd_dq(rec, **given, dq=dq_rot, **self._dims())
        attention.attention_bwd_dkv(rec, **given, dk=dk_rot, dv=dv, **self._dims())
        # 3. norm and rotation per head
        dq, dk = ws.buf("late/attn.dq", wide), ws.buf("late/attn.dk", narrow)
        self._norm_rope_backward(rec, ws, self.q_norm, s.q, s.q_rstd, dq_rot, dq)
        self._norm_rope_backward(rec, ws, self.k_norm, s.k, s.k_rstd, dk_rot, dk)
        # 2. k and v
        self.v.backward(rec, ws, x, dv, dx)
        self.k.backward(rec, ws, x, dk, dx, acc=True)
        # 1. q and gate
        dqg = ws.buf("late/attn.dqg", (rows, 2 * wide[1]))
        attention.merge_q_gate(rec, dq=dq, dgate=dgate, dqg=dqg, H=self.heads, D=self.head_dim)
        self.q.backward(rec, ws, x, dqg, dx, acc=True)

    def _shapes(self, x: Buffer) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """N, and the shapes of all query heads and of all kv heads."""
        rows = x.shape[0]
        return rows, (rows, self.heads * self.head_dim), (rows, self.kv_heads * self.head_dim)

    def _dims(self) -> dict[str, Any]:
        return {"KV": self.kv_heads, "D": self.head_dim, "T": self.window}

    def _norm_rope(self, rec: Recorder, gain: Gain, x: Buffer, y: Buffer, rstd: Buffer) -> None:
        attention.qk_norm_rope_fwd(
            rec, x=x, w=gain.w, table=self.rope, y=y, rstd=rstd, eps=self.eps, gemma=int(self.gemma)
        )

    def _norm_rope_backward(
        self, rec: Recorder, ws: Workspace, gain: Gain, x: Buffer, rstd: Buffer, dy: Buffer, dx: Buffer
    ) -> None:
        given: dict[str, Any] = {"x": x, "rstd": rstd, "table": self.rope, "dy": dy}
        attention.qk_norm_rope_bwd(rec, **given, w=gain.w, dx=dx, gemma=int(self.gemma))
        if gain.g is not None:
            partial = ws.buf("late/attn.partial", (elementwise.row_chunks(x.shape[0]), self.head_dim))
            attention.qk_norm_rope_dw_partial(rec, **given, partial=partial)
            elementwise.colsum_acc(rec, partial=partial, y=gain.g)
