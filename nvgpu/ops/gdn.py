"""GatedDeltaNet around its recurrence (gdn_scan.py): convolution, gates, l2 norm of q and k."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.table import Arrays, Dims, In, Kernel, Op, Out, case, full_case
from nvgpu.ops.tolerance import reduction, transcendental
from nvgpu.ref import gdn as ref

_Array = np.ndarray[Any, Any]


def windows(x: _Array, d: Dims) -> _Array:
    """[N, ...] as [B, T, ...]."""
    return x.reshape(-1, d.T, *x.shape[1:])


# ── convolution ──


def _conv_fwd(a: Arrays, d: Dims) -> Arrays:
    return {"y": ref.conv_silu_fwd(windows(a["x"], d), a["w"])}


def _conv_bwd(a: Arrays, d: Dims) -> Arrays:
    return {"dx": ref.conv_silu_bwd(windows(a["x"], d), a["w"], windows(a["dy"], d))[0]}


def _conv_kernels(shader: str) -> tuple[Kernel, ...]:
    grid = "N // T * cdiv(T, RUN) * cdiv(C, WG)"
    return (Kernel("runs", shader, grid=grid, consts={"TAPS": "taps", "RUN": 16, "WG": 64}),)


_CONV_CASES = (
    case(N=1, T=1, C=3, taps=4),
    case(N=34, T=17, C=65, taps=4),
    case(N=45, T=15, C=64, taps=1),
    case(N=7, T=7, C=1, taps=9),
    case(N=65537, T=1, C=2, taps=2),
    full_case(N=4096, T=512, C=6144, taps=4),
)

conv_silu_fwd = Op(
    "conv_silu_fwd",
    "y = silu(causal depthwise convolution); the last tap meets the current token, zero before the window",
    args=(In("x", "f32", "N C"), In("w", "f32", "C taps"), Out("y", "f32", "N C")),
    params="N C T",
    kernels=_conv_kernels("gdn/conv_silu_fwd.wgsl"),
    ref=_conv_fwd,
    backward="conv_silu_bwd",
    tol=transcendental(),
    flops="N * C * (2 * taps + 4)",
    cases=_CONV_CASES,
)

conv_silu_bwd = Op(
    "conv_silu_bwd",
    "dx of conv_silu_fwd; there is no dw: the taps stay frozen",
    args=(In("x", "f32", "N C"), In("w", "f32", "C taps"), In("dy", "f32", "N C"), Out("dx", "f32", "N C")),
    params="N C T",
    kernels=_conv_kernels("gdn/conv_silu_bwd.wgsl"),
    ref=_conv_bwd,
    backward="none: a backward",
    tol=transcendental(2),
    flops="N * C * (4 * taps + 8)",
    cases=_CONV_CASES,
)

# ── gates ──


def _wide(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Mostly of order 1, some far out on both sides, where a naive softplus or sigmoid breaks."""
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 60.0, 2.0)


def _gates_fwd(a: Arrays, d: Dims) -> Arrays:
    log_decay, beta = ref.gdn_gates_fwd(a["a"], a["b"], a["a_log"], a["dt_bias"])
    return {"log_decay": log_decay, "beta": beta}


def _gates_bwd(a: Arrays, d: Dims) -> Arrays:
    da, db, _, _ = ref.gdn_gates_bwd(*(a[n] for n in ("a", "b", "a_log", "dt_bias", "dlog_decay", "dbeta")))
    return {"da": da, "db": db}


_GATES = (
    In("a", "f32", "N Hv"),
    In("b", "f32", "N Hv"),
    In("a_log", "f32", "Hv"),
    In("dt_bias", "f32", "Hv"),
)
_GATES_INIT = {"a": _wide, "b": _wide}
_GATES_CASES = (
    case(N=1, Hv=1),
    case(N=63, Hv=3),
    case(N=65, Hv=16),
    case(N=4194241, Hv=1),
    full_case(N=4096, Hv=16),
)

gdn_gates_fwd = Op(
    "gdn_gates_fwd",
    "log_decay = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b)",
    args=(*_GATES, Out("log_decay", "f32", "N Hv"), Out("beta", "f32", "N Hv")),
    params="N Hv",
    kernels=(Kernel("elements", "gdn/gdn_gates_fwd.wgsl", grid="cdiv(N * Hv, WG)", consts={"WG": 64}),),
    ref=_gates_fwd,
    backward="gdn_gates_bwd",
    tol=transcendental(2),
    flops="40 * N * Hv",
    init=_GATES_INIT,
    cases=_GATES_CASES,
)

gdn_gates_bwd = Op(
    "gdn_gates_bwd",
    "da and db of gdn_gates_fwd; a_log and dt_bias stay frozen",
    args=(
        *_GATES,
        In("dlog_decay", "f32", "N Hv"),
        In("dbeta", "f32", "N Hv"),
        Out("da", "f32", "N Hv"),
        Out("db", "f32", "N Hv"),
    ),
    params="N Hv",
    kernels=(Kernel("elements", "gdn/gdn_gates_bwd.wgsl", grid="cdiv(N * Hv, WG)", consts={"WG": 64}),),
    ref=_gates_bwd,
    backward="none: a backward",
    tol=transcendental(2),
    flops="30 * N * Hv",
    init=_GATES_INIT,
    cases=_GATES_CASES,
)

# ── l2 norm of q and k ──


def _heads(shader: str) -> tuple[Kernel, ...]:
    """Few invocations on a CPU adapter, where a barrier costs more than a longer loop; else 32 a head, 4 heads a workgroup."""

    def kernel(name: str, when: str, width: int, lanes: int, heads: int, fits: str = "True") -> Kernel:
        return Kernel(
            name,
            shader,
            grid="cdiv(N * (2 * Hk + Hv), HEADS)",
            consts={"W": width, "LANES": lanes, "HEADS": heads},
            aliases={"PIECE": "vec4<f32>" if width == 4 else "f32"},
            libs=(f"lib/columns_{width}.wgsl",),
            when=when,
            fits=fits,
        )

    return (
        kernel("narrow", "cpu", 1, 8, 1),
        kernel("vec4", "gpu", 4, 32, 4, "Dk % 4 == 0 and Dv % 4 == 0"),
        kernel("wide", "gpu", 1, 32, 4),
    )


def _l2_fwd(a: Arrays, d: Dims) -> Arrays:
    q, k, v = ref.gdn_l2norm_fwd(a["qkv"], Hk=d.Hk, Dk=d.Dk, Hv=d.Hv, Dv=d.Dv, eps=d.eps)
    return {"q": q, "k": k, "v": v}


def _to_key_heads(x: _Array, Hk: int) -> _Array:
    """[..., Hv, D] summed over the value heads of each key head."""
    summed: _Array = x.reshape(*x.shape[:-2], Hk, -1, x.shape[-1]).sum(axis=-2)
    return summed


def _l2_bwd(a: Arrays, d: Dims) -> Arrays:
    dq, dk = _to_key_heads(a["dq"], d.Hk), _to_key_heads(a["dk"], d.Hk)
    return {
        "dqkv": ref.gdn_l2norm_bwd(a["qkv"], dq, dk, a["dv"], Hk=d.Hk, Dk=d.Dk, Hv=d.Hv, Dv=d.Dv, eps=d.eps)
    }


def _with_null_row(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """The last row is far below eps."""
    values = rng.standard_normal(shape)
    values[-1] *= 1e-5
    return values


_QKV = "N 2*Hk*Dk+Hv*Dv"
_L2_CASES = (
    case(N=1, Hk=1, Hv=1, Dk=4, Dv=4, eps=1e-6),
    case(N=5, Hk=1, Hv=3, Dk=33, Dv=31, eps=1e-6),
    case(N=33, Hk=2, Hv=4, Dk=64, Dv=128, eps=1e-6),
    case(N=7, Hk=1, Hv=3, Dk=132, Dv=12, eps=1e-6),
    case(N=21846, Hk=1, Hv=1, Dk=1, Dv=2, eps=1e-6),
    full_case(N=4096, Hk=16, Hv=16, Dk=128, Dv=128, eps=1e-6),
)

gdn_l2norm_fwd = Op(
    "gdn_l2norm_fwd",
    "q, k of unit length per head (eps inside the root), q also times 1/sqrt(Dk); v as it is",
    args=(
        In("qkv", "f32", _QKV),
        Out("q", "f32", "N Hk Dk"),
        Out("k", "f32", "N Hk Dk"),
        Out("v", "f32", "N Hv Dv"),
    ),
    params="N Hk Dk Hv Dv eps:f32",
    kernels=_heads("gdn/gdn_l2norm_fwd.wgsl"),
    ref=_l2_fwd,
    backward="gdn_l2norm_bwd",
    tol=reduction("Dk"),
    flops="N * (6 * Hk * Dk + Hv * Dv)",
    init={"qkv": _with_null_row},
    cases=_L2_CASES,
)

gdn_l2norm_bwd = Op(
    "gdn_l2norm_bwd",
    "dqkv; dq and dk come per value head and are summed over those that share a key head",
    args=(
        In("qkv", "f32", _QKV),
        In("dq", "f32", "N Hv Dk"),
        In("dk", "f32", "N Hv Dk"),
        In("dv", "f32", "N Hv Dv"),
        Out("dqkv", "f32", _QKV),
    ),
    params="N Hk Dk Hv Dv eps:f32",
    kernels=_heads("gdn/gdn_l2norm_bwd.wgsl"),
    ref=_l2_bwd,
    backward="none: a backward",
    tol=reduction("Dk"),
    flops="N * (4 * Hv * Dk + 16 * Hk * Dk + Hv * Dv)",
    init={"qkv": _with_null_row},
    cases=_L2_CASES,
)
