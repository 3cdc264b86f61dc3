"""RMSNorm in both styles, qwen x̂·w and gemma x̂·(1 + w), and the gated norm behind GatedDeltaNet."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.table import Arrays, Dims, In, Kernel, Op, Out, case, full_case
from nvgpu.ops.tolerance import reduction, transcendental
from nvgpu.ref import norm as ref
from nvgpu.ref.elementwise import silu

Array = np.ndarray[Any, Any]

_ROW = {"WG": 64}
_HEAD = {"WG": 32}


def _input(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> Array:
    return 3.0 * rng.standard_normal(shape)


_INPUT = {"x": _input}


def _fwd(a: Arrays, d: Dims) -> Arrays:
    y, rstd = ref.rms_norm_fwd(a["x"], a["w"], eps=d.eps, gemma=bool(d.gemma))
    return {"y": y, "rstd": rstd}


rms_norm_fwd = Op(
    "rms_norm_fwd",
    "y = x * rstd * w (qwen) or x * rstd * (1 + w) (gemma), rstd = 1/sqrt(mean(x²) + eps)",
    args=(In("x", "f32", "N C"), In("w", "f32", "C"), Out("y", "f32", "N C"), Out("rstd", "f32", "N")),
    params="N C gemma eps:f32",
    kernels=(Kernel("rows", "norm/rms_norm_fwd.wgsl", grid="N", consts=_ROW),),
    ref=_fwd,
    backward="rms_norm_bwd, rms_norm_dw_partial",
    tol={"y": reduction("C"), "rstd": transcendental()},
    flops="4 * N * C",
    init=_INPUT,
    cases=(
        case(N=1, C=4, gemma=0, eps=1e-6),
        case(N=3, C=257, gemma=1, eps=1e-6),
        case(N=65, C=64, gemma=1, eps=1e-5),
        case(N=65537, C=1, gemma=0, eps=1e-6),
        full_case(N=4096, C=1024, gemma=1, eps=1e-6),
    ),
)

# ── backward of rms_norm ──


def _saved_rstd(a: Arrays, d: Dims) -> None:
    """What the forward left behind; the last axis is the normed one."""
    a["rstd"] = 1.0 / np.sqrt(np.mean(a["x"] ** 2, axis=-1) + 1e-6)


def _through_norm_mag(a: Arrays, dxhat: Array) -> Array:
    """Magnitude of the terms of dx, given |dxhat|."""
    rstd = a["rstd"][..., None]
    xhat: Array = np.abs(a["x"] * rstd)
    dx: Array = rstd * (dxhat + xhat * np.mean(dxhat * xhat, axis=-1, keepdims=True))
    return dx


_BWD_CASES = (
    case(N=1, C=4, gemma=0),
    case(N=3, C=257, gemma=1),
    case(N=65, C=64, gemma=1),
    case(N=65537, C=1, gemma=0),
    full_case(N=4096, C=1024, gemma=1),
)

rms_norm_bwd = Op(
    "rms_norm_bwd",
    "dx of rms_norm_fwd",
    args=(
        In("x", "f32", "N C"),
        In("w", "f32", "C"),
        In("rstd", "f32", "N"),
        In("dy", "f32", "N C"),
        Out("dx", "f32", "N C"),
    ),
    params="N C gemma",
    kernels=(Kernel("rows", "norm/rms_norm_bwd.wgsl", grid="N", consts=_ROW),),
    ref=lambda a, d: {"dx": ref.rms_norm_bwd(a["x"], a["w"], a["rstd"], a["dy"], gemma=bool(d.gemma))},
    backward="none: it is a backward of rms_norm_fwd",
    tol=reduction("C"),
    flops="9 * N * C",
    init=_INPUT,
    prepare=_saved_rstd,
    mag=lambda a, d: {"dx": _through_norm_mag(a, np.abs(a["dy"] * (a["w"] + d.gemma)))},
    cases=_BWD_CASES,
)


def _chunks(d: Dims) -> list[slice]:
    return [slice(i * d.chunk, (i + 1) * d.chunk) for i in range(d.P)]


def _dw(a: Arrays, d: Dims) -> Arrays:
    return {"partial": np.stack([ref.rms_norm_dw(a["x"][c], a["rstd"][c], a["dy"][c]) for c in _chunks(d)])}


rms_norm_dw_partial = Op(
    "rms_norm_dw_partial",
    "the gain's gradient over P chunks of rows, both styles; colsum_acc adds them up",
    args=(
        In("x", "f32", "N C"),
        In("rstd", "f32", "N"),
        In("dy", "f32", "N C"),
        Out("partial", "f32", "P C"),
    ),
    params="N C P chunk=cdiv(N,P)",
    kernels=(Kernel("columns", "norm/rms_norm_dw_partial.wgsl", grid="P * cdiv(C, WG)", consts=_ROW),),
    ref=_dw,
    backward="none: it is a backward of rms_norm_fwd",
    tol=reduction("chunk"),
    flops="3 * N * C",
    init=_INPUT,
    prepare=_saved_rstd,
    mag=lambda a, d: _dw({name: np.abs(values) for name, values in a.items()}, d),
    cases=(
        case(N=1, C=4, P=1),
        case(N=65, C=64, P=3),
        case(N=127, C=65, P=4),
        case(N=9, C=257, P=7),
        case(N=65537, C=1, P=65537),
        full_case(N=4096, C=1024, P=64),
    ),
)

# ── gated, behind GatedDeltaNet ──


def _gated_fwd(a: Arrays, d: Dims) -> Arrays:
    y, rstd = ref.gated_rms_norm_fwd(a["x"], a["w"], a["z"], eps=d.eps)
    return {"y": y, "rstd": rstd}


gated_rms_norm_fwd = Op(
    "gated_rms_norm_fwd",
    "y = x * rstd * w * silu(z) per head, rstd = 1/sqrt(mean(x²) + eps)",
    args=(
        In("x", "f32", "N H D"),
        In("w", "f32", "D"),
        In("z", "f32", "N H D"),
        Out("y", "f32", "N H D"),
        Out("rstd", "f32", "N H"),
    ),
    params="rows=N*H D eps:f32",
    kernels=(Kernel("heads", "norm/gated_rms_norm_fwd.wgsl", grid="N * H", consts=_HEAD),),
    ref=_gated_fwd,
    backward="gated_rms_norm_bwd",
    tol={"y": transcendental(), "rstd": transcendental()},
    flops="9 * N * H * D",
    init=_INPUT,
    cases=(
        case(N=1, H=1, D=4, eps=1e-6),
        case(N=5, H=3, D=31, eps=1e-5),
        case(N=63, H=2, D=128, eps=1e-6),
        case(N=21846, H=3, D=2, eps=1e-6),
        full_case(N=4096, H=16, D=128, eps=1e-6),
    ),
)


def _gated_bwd(a: Arrays, d: Dims) -> Arrays:
    dx, dz = ref.gated_rms_norm_bwd(a["x"], a["w"], a["z"], a["rstd"], a["dy"])
    return {"dx": dx, "dz": dz}


def _gated_bwd_mag(a: Arrays, d: Dims) -> Arrays:
    dxhat = np.abs(a["dy"] * a["w"] * silu(a["z"]))
    dz = np.abs(a["dy"] * a["x"] * a["rstd"][..., None] * a["w"]) * (1.0 + np.abs(a["z"]))
    return {"dx": _through_norm_mag(a, dxhat), "dz": dz}


gated_rms_norm_bwd = Op(
    "gated_rms_norm_bwd",
    "dx and dz of gated_rms_norm_fwd; its gain is frozen",
    args=(
        In("x", "f32", "N H D"),
        In("w", "f32", "D"),
        In("z", "f32", "N H D"),
        In("rstd", "f32", "N H"),
        In("dy", "f32", "N H D"),
        Out("dx", "f32", "N H D"),
        Out("dz", "f32", "N H D"),
    ),
    params="rows=N*H D",
    kernels=(Kernel("heads", "norm/gated_rms_norm_bwd.wgsl", grid="N * H", consts=_HEAD),),
    ref=_gated_bwd,
    backward="none: it is the backward of gated_rms_norm_fwd; the gain is frozen and gets no gradient",
    tol=transcendental(),
    flops="20 * N * H * D",
    init=_INPUT,
    prepare=_saved_rstd,
    mag=_gated_bwd_mag,
    cases=(
        case(N=1, H=1, D=4),
        case(N=5, H=3, D=31),
        case(N=63, H=2, D=128),
        case(N=21846, H=3, D=2),
        full_case(N=4096, H=16, D=128),
    ),
)
