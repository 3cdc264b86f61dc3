"""GatedDeltaNet: y = out(rmsnorm(o) * silu(z)), o the gated delta recurrence over silu(conv(in_qkv(x))).

Activation gradients are assigned; those of the linears' scales accumulate. Convolution, gates and norm are frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvgpu.errors import InputError
from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.linear import Linear
from nvgpu.layers.recurrence import STATES_BYTES, Recurrence, RecurrenceSaved
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import gdn, norm

_L2_EPS = 1e-6


@dataclass(frozen=True)
class GdnSaved:
    """What the backward needs."""

    qkv: Buffer  # [N, 2*Hk*Dk + Hv*Dv]
    mixed: Buffer  # [N, 2*Hk*Dk + Hv*Dv]  behind the convolution
    z: Buffer  # [N, Hv*Dv]
    a: Buffer  # [N, Hv]
    b: Buffer  # [N, Hv]
    scan: RecurrenceSaved
    o: Buffer  # [N, Hv, Dv]
    rstd: Buffer  # [N, Hv]
    normed: Buffer  # [N, Hv*Dv]  out's input


@dataclass(frozen=True)
class Gdn:
    """Hk key heads of width Dk serve Hv value heads of width Dv; windows of T rows do not see each other.

    `states_bytes`: see `Recurrence`.
    """

    in_qkv: Linear
    in_z: Linear
    in_a: Linear
    in_b: Linear
    out: Linear
    a_log: Buffer  # [Hv]
    dt_bias: Buffer  # [Hv]
    norm: Buffer  # [Dv]
    conv: Buffer  # [2*Hk*Dk + Hv*Dv, taps], or with an axis of 1 between
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    eps: float
    window: int  # T
    states_bytes: int = STATES_BYTES

    def __post_init__(self) -> None:
        if self.key_dim % 4 or self.value_dim % 4:
            raise InputError(
                f"tensor {self.in_qkv.name}: head widths {self.key_dim} (keys) and {self.value_dim} (values), "
                "expected multiples of 4"
            )
        if self.value_heads % self.key_heads:
            raise InputError(
                f"tensor {self.in_qkv.name}: {self.value_heads} value heads, expected a multiple of the "
                f"{self.key_heads} key heads"
            )

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> GdnSaved:
        """x (normed), y `[N, C]`, N whole windows: y is assigned; what is saved lives until the next GatedDeltaNet runs."""
        heads, keys, values, flat = self._shapes(x.shape[0])
        # 1. qkv, z, a, b
        wide = (x.shape[0], self.in_qkv.out_features)
        qkv, z, a, b = (
            ws.buf(f"early/gdn.{name}", shape)
            for name, shape in (("qkv", wide), ("z", flat), ("a", heads), ("b", heads))
        )
        self.in_qkv.forward(rec, ws, x, qkv)
        self.in_z.forward(rec, ws, x, z)
        self.in_a.forward(rec, ws, x, a)
        self.in_b.forward(rec, ws, x, b)
        # 2. mixed = silu(conv(qkv))
        mixed = ws.buf("early/gdn.mixed", wide)
        gdn.conv_silu_fwd(rec, x=qkv, w=self.conv, y=mixed, taps=self.taps, T=self.window)
        # 3. gates
        log_decay, beta = ws.buf("early/gdn.log_decay", heads), ws.buf("early/gdn.beta", heads)
        gdn.gdn_gates_fwd(
            rec, a=a, b=b, a_log=self.a_log, dt_bias=self.dt_bias, log_decay=log_decay, beta=beta
        )
        # 4. q and k of unit length, v
        q, k, v = ws.buf("early/gdn.q", keys), ws.buf("early/gdn.k", keys), ws.buf("early/gdn.v", values)
        gdn.gdn_l2norm_fwd(rec, qkv=mixed, q=q, k=k, v=v, eps=_L2_EPS)
        # 5. recurrence
        o = ws.buf("early/gdn.o", values)
        scan = self._recurrence().forward(rec, ws, q, k, v, log_decay, beta, o)
        # 6. normed = rmsnorm(o) * silu(z)
        rstd, normed = ws.buf("early/gdn.rstd", heads), ws.buf("early/gdn.normed", flat)
        norm.gated_rms_norm_fwd(rec, x=o, w=self.norm, z=z, y=normed, rstd=rstd, eps=self.eps)
        # 7. y = out(normed)
        self.out.forward(rec, ws, normed, y)
        return GdnSaved(qkv, mixed, z, a, b, scan, o, rstd, normed)

    def backward(
        self, rec: Recorder, ws: Workspace, saved: GdnSaved, x: Buffer, dy: Buffer, dx: Buffer
    ) -> None:
        """dy, dx `[N, C]`: dx is assigned, parameter gradients accumulate; `forward` on the same x came last."""
        s = saved
        heads, _, values, flat = self._shapes(x.shape[0])
        # 7. y = out(normed)
        dnormed = ws.buf("late/gdn.dnormed", flat)
        self.out.backward(rec, ws, s.normed, dy, dnormed)
        # 6. normed = rmsnorm(o) * silu(z)
        do, dz = ws.buf("late/gdn.do", values), ws.buf("late/gdn.dz", flat)
        norm.gated_rms_norm_bwd(rec, x=s.o, w=self.norm, z=s.z, rstd=s.rstd, dy=dnormed, dx=do, dz=dz)
        # 5. recurrence; dq and dk come per value head
        per_head = (*heads, self.key_dim)
        dq, dk, dv = (
            ws.buf("late/gdn.dq", per_head),
            ws.buf("late/gdn.dk", per_head),
            ws.buf("late/gdn.dv", values),
        )
        dlog_decay, dbeta = ws.buf("late/gdn.dlog_decay", heads), ws.buf("late/gdn.dbeta", heads)
        self._recurrence().backward(rec, ws, s.scan, do, dq, dk, dv, dlog_decay, dbeta)
        # 4. q and k of unit length, v
        dmixed = ws.buf("late/gdn.dmixed", s.mixed.shape)
        gdn.gdn_l2norm_bwd(rec, qkv=s.mixed, dq=dq, dk=dk, dv=dv, dqkv=dmixed, Hk=self.key_heads, eps=_L2_EPS)
        # 3. gates
        da, db = ws.buf("late/gdn.da", heads), ws.buf("late/gdn.db", heads)
        gates: dict[str, Any] = {"a": s.a, "b": s.b, "a_log": self.a_log, "dt_bias": self.dt_bias}
        gdn.gdn_gates_bwd(rec, **gates, dlog_decay=dlog_decay, dbeta=dbeta, da=da, db=db)
        # 2. mixed = silu(conv(qkv))
        dqkv = s.mixed  # nothing reads it any more
        gdn.conv_silu_bwd(rec, x=s.qkv, w=self.conv, dy=dmixed, dx=dqkv, taps=self.taps, T=self.window)
        # 1. qkv, z, a, b
        self.in_qkv.backward(rec, ws, x, dqkv, dx)
        self.in_z.backward(rec, ws, x, dz, dx, acc=True)
        self.in_a.backward(rec, ws, x, da, dx, acc=True)
        self.in_b.backward(rec, ws, x, db, dx, acc=True)

    def _recurrence(self) -> Recurrence:
        return Recurrence(self.window, self.states_bytes)

    def _shapes(self, rows: int) -> tuple[tuple[int, ...], ...]:
        """[N, Hv], [N, Hk, Dk], [N, Hv, Dv], [N, Hv*Dv]."""
        heads = (rows, self.value_heads)
        keys = (rows, self.key_heads, self.key_dim)
        return heads, keys, (*heads, self.value_dim), (rows, self.value_heads * self.value_dim)
