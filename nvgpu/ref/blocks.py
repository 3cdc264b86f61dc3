"""The parts of a layer in float64: MLP, attention and GatedDeltaNet, each backward below its forward.

Rows N = B·T are window-major. Every forward returns its output and what its backward needs.
Parameter gradients accumulate, activation gradients are returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nvgpu.ref import attention, elementwise, gdn, linear, norm
from nvgpu.ref.linear import Path

Array = np.ndarray[Any, Any]
Weight = Array | list[Path]
"""A dense array, or the paths of a binary low-rank matrix."""


@dataclass(frozen=True)
class GdnDims:
    """GatedDeltaNet: key and value heads, and their widths."""

    Hk: int
    Hv: int
    Dk: int
    Dv: int


@dataclass(frozen=True)
class Dims:
    """What the layers need to know besides their weights; `table` is [T, half, 2]."""

    B: int
    T: int
    heads: int
    kv_heads: int
    eps: float
    gemma: bool
    table: Array
    gdn: GdnDims


class Grads(dict[str, Array]):
    """Gradients by parameter name; a second contribution adds to the first."""

    def add(self, name: str, grad: Array) -> None:
        self[name] = self[name] + grad if name in self else grad


def path_param(name: str, path: int, part: str) -> str:
    """Name of the scale vector `part` (h, l or g) of a path of the matrix `name`."""
    return f"{name}#{path}.{part}"


@dataclass(frozen=True)
class Scope:
    """The weights whose names start with `prefix`, and where their gradients go."""

    weights: Mapping[str, Weight]
    prefix: str = ""
    grads: Grads | None = None

    def below(self, tail: str) -> Scope:
        return Scope(self.weights, self.prefix + tail, self.grads)

    def array(self, tail: str) -> Array:
        value = self.weights[self.prefix + tail]
        assert isinstance(value, np.ndarray), f"{self.prefix}{tail} is not dense"
        return value

    def add(self, tail: str, grad: Array) -> None:
        if self.grads is not None:
            self.grads.add(self.prefix + tail, grad)

    def linear(self, tail: str, x: Array) -> Array:
        """y [N, out] = x [N, in] · Wᵀ."""
        w = self.weights[self.prefix + tail]
        return linear.blr_fwd(x, w) if isinstance(w, list) else linear.matmul_nt(x, w)

    def linear_bwd(self, tail: str, x: Array, dy: Array) -> Array:
        """dx; the weight's gradient is added."""
        w = self.weights[self.prefix + tail]
        if not isinstance(w, list):
            self.add(tail, dy.T @ x)
            return linear.matmul_nn(dy, w)
        dx, grads = linear.blr_bwd(x, w, dy)
        for i, path in enumerate(grads):
            for part, grad in zip("hlg", path, strict=True):
                self.add(path_param(tail, i, part), grad)
        return dx

    def rms_norm(self, tail: str, x: Array, dims: Dims) -> tuple[Array, Array]:
        """(y, rstd)."""
        return norm.rms_norm_fwd(x, self.array(tail), eps=dims.eps, gemma=dims.gemma)

    def rms_norm_bwd(self, tail: str, x: Array, rstd: Array, dy: Array, dims: Dims) -> Array:
        """dx; the gain's gradient is added."""
        self.add(tail, norm.rms_norm_dw(x, rstd, dy))
        return norm.rms_norm_bwd(x, self.array(tail), rstd, dy, gemma=dims.gemma)


# ── MLP ──


class MlpSaved(NamedTuple):
    x: Array  # [N, C]
    gate: Array  # [N, F]
    up: Array  # [N, F]


def mlp_fwd(w: Scope, x: Array) -> tuple[Array, MlpSaved]:
    """y [N, C] = down(silu(gate(x))·up(x))."""
    gate = w.linear("gate_proj.weight", x)
    up = w.linear("up_proj.weight", x)
    y = w.linear("down_proj.weight", elementwise.swiglu_fwd(gate, up))
    return y, MlpSaved(x, gate, up)


def mlp_bwd(w: Scope, s: MlpSaved, dy: Array) -> Array:
    """dx [N, C]."""
    dmid = w.linear_bwd("down_proj.weight", elementwise.swiglu_fwd(s.gate, s.up), dy)
    dgate, dup = elementwise.swiglu_bwd(s.gate, s.up, dmid)
    return w.linear_bwd("up_proj.weight", s.x, dup) + w.linear_bwd("gate_proj.weight", s.x, dgate)


# ── attention ──


class AttentionSaved(NamedTuple):
    x: Array  # [N, C]
    q0: Array  # [N, H, D] before norm and rotation
    k0: Array  # [N, KV, D]
    q_rstd: Array  # [N, H]
    k_rstd: Array  # [N, KV]
    q: Array  # [B, T, H, D]
    k: Array  # [B, T, KV, D]
    v: Array  # [B, T, KV, D]
    gate: Array  # [N, H·D]
    o: Array  # [B, T, H, D]
    lse: Array  # [B, T, H]


def attention_fwd(w: Scope, x: Array, d: Dims) -> tuple[Array, AttentionSaved]:
    """y [N, C] of gated causal attention."""
    N = len(x)
    # 1. projections
    q0, gate = attention.split_q_gate(w.linear("q_proj.weight", x), heads=d.heads)
    q0 = q0.reshape(N, d.heads, -1)
    k0 = w.linear("k_proj.weight", x).reshape(N, d.kv_heads, -1)
    v = w.linear("v_proj.weight", x).reshape(d.B, d.T, d.kv_heads, -1)
    # 2. per-head norm and rotation
    q, q_rstd = attention.qk_norm_rope_fwd(q0, w.array("q_norm.weight"), d.table, eps=d.eps, gemma=d.gemma)
    k, k_rstd = attention.qk_norm_rope_fwd(k0, w.array("k_norm.weight"), d.table, eps=d.eps, gemma=d.gemma)
    q, k = (a.reshape(d.B, d.T, *a.shape[1:]) for a in (q, k))
    # 3. attention
    o, lse = attention.attention_fwd(q, k, v)
    # 4. gate and output
    y = w.linear("o_proj.weight", elementwise.sigmoid_gate_fwd(o.reshape(N, -1), gate))
    return y, AttentionSaved(x, q0, k0, q_rstd, k_rstd, q, k, v, gate, o, lse)


def attention_bwd(w: Scope, s: AttentionSaved, dy: Array, d: Dims) -> Array:
    """dx [N, C]."""
    N = len(dy)
    o = s.o.reshape(N, -1)
    # 4. gate and output
    dmid = w.linear_bwd("o_proj.weight", elementwise.sigmoid_gate_fwd(o, s.gate), dy)
    do, dgate = elementwise.sigmoid_gate_bwd(o, s.gate, dmid)
    # 3. attention
    dq, dk, dv = attention.attention_bwd(s.q, s.k, s.v, s.o, s.lse, do.reshape(s.o.shape))
    # 2. per-head norm and rotation
    dq = _qk_norm_rope_bwd(w, "q_norm.weight", s.q0, s.q_rstd, dq, d)
    dk = _qk_norm_rope_bwd(w, "k_norm.weight", s.k0, s.k_rstd, dk, d)
    # 1. projections
    dqg = attention.merge_q_gate(dq, dgate, heads=d.heads)
    dx = w.linear_bwd("q_proj.weight", s.x, dqg)
    dx += w.linear_bwd("k_proj.weight", s.x, dk)
    dx += w.linear_bwd("v_proj.weight", s.x, dv.reshape(N, -1))
    return dx


def _qk_norm_rope_bwd(w: Scope, tail: str, x: Array, rstd: Array, dy: Array, d: Dims) -> Array:
    """Gradient [N, heads·D] at the projection's output; the gain's gradient is added."""
    dy = dy.reshape(x.shape)
    w.add(tail, attention.qk_norm_rope_dw(x, rstd, d.table, dy))
    dx = attention.qk_norm_rope_bwd(x, w.array(tail), rstd, d.table, dy, gemma=d.gemma)
    return dx.reshape(len(x), -1)


# ── GatedDeltaNet ──


class GdnSaved(NamedTuple):
    x: Array  # [N, C]
    qkv: Array  # [B, T, channels] before the convolution
    conv: Array  # [N, channels] behind it
    a: Array  # [N, Hv]
    b: Array  # [N, Hv]
    q: Array  # [B, T, Hk, Dk]
    k: Array  # [B, T, Hk, Dk]
    v: Array  # [B, T, Hv, Dv]
    log_decay: Array  # [B, T, Hv]
    beta: Array  # [B, T, Hv]
    o: Array  # [N, Hv, Dv]
    rstd: Array  # [N, Hv]
    z: Array  # [N, Hv, Dv]


def gdn_fwd(w: Scope, x: Array, d: Dims) -> tuple[Array, GdnSaved]:
    """y [N, C] of the gated delta rule."""
    N, g = len(x), d.gdn
    # 1. projections
    qkv = w.linear("in_proj_qkv.weight", x).reshape(d.B, d.T, -1)
    z = w.linear("in_proj_z.weight", x).reshape(N, g.Hv, g.Dv)
    a, b = w.linear("in_proj_a.weight", x), w.linear("in_proj_b.weight", x)
    # 2. convolution, unit-length q and k
    conv = gdn.conv_silu_fwd(qkv, w.array("conv1d.weight")[:, 0]).reshape(N, -1)
    parts = gdn.gdn_l2norm_fwd(conv, Hk=g.Hk, Dk=g.Dk, Hv=g.Hv, Dv=g.Dv)
    q, k, v = (p.reshape(d.B, d.T, *p.shape[1:]) for p in parts)
    # 3. gates
    gates = gdn.gdn_gates_fwd(a, b, w.array("A_log"), w.array("dt_bias"))
    log_decay, beta = (p.reshape(d.B, d.T, g.Hv) for p in gates)
    # 4. recurrence
    o = gdn.gdn_recurrence_fwd(q, k, v, log_decay, beta).reshape(N, g.Hv, g.Dv)
    # 5. gated norm and output
    y, rstd = norm.gated_rms_norm_fwd(o, w.array("norm.weight"), z, eps=d.eps)
    y = w.linear("out_proj.weight", y.reshape(N, -1))
    return y, GdnSaved(x, qkv, conv, a, b, q, k, v, log_decay, beta, o, rstd, z)


def gdn_bwd(w: Scope, s: GdnSaved, dy: Array, d: Dims) -> Array:
    """dx [N, C]."""
    N, g = len(dy), d.gdn
    # 5. gated norm and output
    gain = w.array("norm.weight")
    normed, _ = norm.gated_rms_norm_fwd(s.o, gain, s.z, eps=d.eps)
    dnormed = w.linear_bwd("out_proj.weight", normed.reshape(N, -1), dy).reshape(s.o.shape)
    w.add("norm.weight", norm.gated_rms_norm_dw(s.o, s.z, s.rstd, dnormed))
    do, dz = norm.gated_rms_norm_bwd(s.o, gain, s.z, s.rstd, dnormed)
    # 4. recurrence
    dq, dk, dv, dlog, dbeta = gdn.gdn_recurrence_bwd(
        s.q, s.k, s.v, s.log_decay, s.beta, do.reshape(s.v.shape)
    )
    # 3. gates
    dlog, dbeta = dlog.reshape(N, g.Hv), dbeta.reshape(N, g.Hv)
    da, db, da_log, ddt_bias = gdn.gdn_gates_bwd(s.a, s.b, w.array("A_log"), w.array("dt_bias"), dlog, dbeta)
    w.add("A_log", da_log)
    w.add("dt_bias", ddt_bias)
    # 2. convolution, unit-length q and k
    dq, dk, dv = (p.reshape(N, *p.shape[2:]) for p in (dq, dk, dv))
    dconv = gdn.gdn_l2norm_bwd(s.conv, dq, dk, dv, Hk=g.Hk, Dk=g.Dk, Hv=g.Hv, Dv=g.Dv)
    dqkv, dtaps = gdn.conv_silu_bwd(s.qkv, w.array("conv1d.weight")[:, 0], dconv.reshape(s.qkv.shape))
    w.add("conv1d.weight", dtaps[:, None])
    # 1. projections
    dx = w.linear_bwd("in_proj_qkv.weight", s.x, dqkv.reshape(N, -1))
    dx += w.linear_bwd("in_proj_z.weight", s.x, dz.reshape(N, -1))
    dx += w.linear_bwd("in_proj_a.weight", s.x, da)
    dx += w.linear_bwd("in_proj_b.weight", s.x, db)
    return dx
