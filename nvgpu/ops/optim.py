"""Gradient norm and masked Adam over the flat parameter vector [P]."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.table import Arrays, Dims, In, InOut, Kernel, Op, Out, case, cdiv, evaluate, full_case
from nvgpu.ops.tolerance import exact, pointwise, reduction, transcendental
from nvgpu.ref import optim as ref

_Array = np.ndarray[Any, Any]

# ── gradient norm ──

_GROUPS = "max(1,min(256,cdiv(P,1024)))"


def sumsq_groups(count: int) -> int:
    """Rows of `partial` for `count` parameters."""
    return int(evaluate(_GROUPS, {"P": count}))


def _sumsq(a: Arrays, d: Dims) -> Arrays:
    groups = sumsq_groups(d.P)
    chunk = cdiv(d.P, groups)
    live = a["mask"] != 0
    finite = np.isfinite(a["g"])
    kept = np.where(live & finite, a["g"], 0.0)
    parts = [slice(i * chunk, (i + 1) * chunk) for i in range(groups)]
    return {"partial": np.array([[ref.sumsq(kept[s]), np.sum((live & ~finite)[s])] for s in parts])}


def _mask(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    return rng.random(shape) < 0.8


def _with_non_finite(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    values = rng.standard_normal(shape)
    values[rng.random(shape) < 0.01] = np.nan
    values[rng.random(shape) < 0.01] = -np.inf
    return values


sumsq = Op(
    "sumsq",
    "partial = (sum of g², count of non-finite g) of every chunk, over the entries whose mask is not 0",
    args=(In("g", "f32", "P"), In("mask", "f32", "P"), Out("partial", "f32", "G 2")),
    params=f"P G={_GROUPS} chunk=cdiv(P,G)",
    kernels=(Kernel("chunks", "optim/sumsq.wgsl", grid="G", consts={"WG": 256}),),
    ref=_sumsq,
    backward="none: a norm for clipping",
    tol=reduction("chunk"),
    flops="2 * P",
    init={"g": _with_non_finite, "mask": _mask},
    cases=(
        case(P=1),
        case(P=255),
        case(P=1025),
        case(P=4099),
        case(P=300001),
        full_case(P=5000000),
    ),
)

# ── Adam ──

_B1, _B2, _EPS = 0.9, 0.999, 1e-8


def _hyper(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Bias corrections of the decays as f32 holds them, which are the ones that act."""
    b1, b2 = float(np.float32(_B1)), float(np.float32(_B2))
    return np.array([0.03, 1 / (1 - b1**d.step), 1 / (1 - b2**d.step), b1, b2, _EPS, 0.25, 0.0])


def _adam(a: Arrays, d: Dims) -> Arrays:
    lr, _, _, b1, b2, eps, gmul, _ = a["hyper"]
    state = (a["w"], a["g"], a["m1"], a["m2"], a["mask"], a["floor"])
    w, m1, m2 = ref.adam(*state, lr=lr, step=d.step, b1=b1, b2=b2, eps=eps, gmul=gmul)
    return {"w": w, "g": np.zeros(d.P), "m1": m1, "m2": m2}


def _floor(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Half of the entries take plain steps."""
    return np.where(rng.random(shape) < 0.5, 0.05, 0.0)


adam = Op(
    "adam",
    "masked Adam: w -= lr m̂/(sqrt(v̂) + eps), times max(|w|, floor) where floor > 0; "
    "entries whose mask is 0 stay; g is zeroed",
    args=(
        InOut("w", "f32", "P"),
        InOut("g", "f32", "P"),
        InOut("m1", "f32", "P"),
        InOut("m2", "f32", "P"),
        In("mask", "f32", "P"),
        In("floor", "f32", "P"),
        In("hyper", "f32", "8"),
    ),
    params="P",
    kernels=(Kernel("entries", "optim/adam.wgsl", grid="cdiv(P, WG)", consts={"WG": 64}),),
    ref=_adam,
    backward="none: the optimiser",
    tol={"w": transcendental(), "g": exact(), "m1": pointwise(), "m2": pointwise()},
    flops="16 * P",
    init={
        "m1": lambda rng, d, shape: 0.1 * rng.standard_normal(shape),
        "m2": lambda rng, d, shape: 0.01 * rng.standard_normal(shape) ** 2,
        "mask": _mask,
        "floor": _floor,
        "hyper": _hyper,
    },
    cases=(
        case(P=1, step=1),
        case(P=63, step=2),
        case(P=65, step=1000),
        case(P=4099, step=7),
        full_case(P=5000000, step=50),
    ),
)
