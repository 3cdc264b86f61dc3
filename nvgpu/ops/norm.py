"""RMSNorm, both styles: qwen x̂·w and gemma x̂·(1 + w)."""

from __future__ import annotations

import numpy as np

from nvgpu.ops.table import Arrays, Dims, In, Kernel, Op, Out, case, full_case
from nvgpu.ops.tolerance import reduction, transcendental
from nvgpu.ref import norm as ref

_ROW = {"WG": 64}


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
    backward="rms_norm_bwd, rms_norm_dw",
    tol={"y": reduction("C"), "rstd": transcendental()},
    flops="4 * N * C",
    init={"x": lambda rng, d, shape: 3.0 * rng.standard_normal(shape)},
    cases=(
        case(N=1, C=4, gemma=0, eps=1e-6),
        case(N=3, C=257, gemma=1, eps=1e-6),
        case(N=65, C=64, gemma=1, eps=1e-5),
        case(N=65537, C=1, gemma=0, eps=1e-6),
        full_case(N=4096, C=1024, gemma=1, eps=1e-6),
    ),
)
