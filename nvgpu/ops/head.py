"""Losses over rows of logits [R, V]: log-sum-exp, top-k, KL to a top-k or a full distribution, NLL."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.table import Arrays, Dims, In, InOut, Kernel, Op, Out, case, full_case
from nvgpu.ops.tolerance import exact, pointwise, transcendental
from nvgpu.ref import head as ref

MAX_K = 256

_Array = np.ndarray[Any, Any]


def _rows(shader: str, fits: str = "True") -> tuple[Kernel, ...]:
    """One workgroup per row; a narrow one on a CPU adapter, where a barrier costs more than a longer loop."""
    return (
        Kernel("narrow", shader, grid="R", consts={"WG": 32}, when="cpu", fits=fits),
        Kernel("wide", shader, grid="R", consts={"WG": 256}, when="gpu", fits=fits),
    )


# ── inputs ──


def _logits(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """With `tied` whole numbers, zeros of both signs among them."""
    values: _Array = 4.0 * rng.standard_normal(shape)
    return np.round(values) if d.get("tied") else values


def _distinct_ids(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    return np.stack([rng.choice(d.V, d.K, replace=False) for _ in range(d.R)])


def _distribution(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Sums to 1; every fourth entry but the first is 0."""
    values: _Array = rng.exponential(1.0, shape)
    values[:, 4::4] = 0.0
    values /= values.sum(axis=1, keepdims=True)
    return values


def _targets(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    return rng.integers(0, d.V, shape)


def _add_lse(a: Arrays, d: Dims) -> None:
    a["lse"] = ref.lse(a["logits"])


def _add_both_lse(a: Arrays, d: Dims) -> None:
    a["t_lse"], a["s_lse"] = ref.lse(a["t_logits"]), ref.lse(a["s_logits"])


_KL_INIT = {"logits": _logits, "ids": _distinct_ids, "probs": _distribution}


# ── log-sum-exp and top-k ──

lse = Op(
    "lse",
    "lse = ln sum_v exp(logits)",
    args=(In("logits", "f32", "R V"), Out("lse", "f32", "R")),
    params="R V",
    kernels=_rows("head/lse.wgsl"),
    ref=lambda a, d: {"lse": ref.lse(a["logits"])},
    backward="none: a loss's kernel holds the gradient through it",
    tol=transcendental(),
    flops="3 * R * V",
    init={"logits": _logits},
    cases=(
        case(R=1, V=1),
        case(R=3, V=63),
        case(R=2, V=3001),
        case(R=65537, V=2),
        full_case(R=64, V=248320),
    ),
)


def _topk(a: Arrays, d: Dims) -> Arrays:
    ids, probs = ref.topk(a["logits"], d.K)
    return {"ids": ids, "probs": probs}


topk = Op(
    "topk",
    "the K largest logits of a row: ids descending (the lower id first on ties), "
    "probs = their softmax among themselves",
    args=(In("logits", "f32", "R V"), Out("ids", "u32", "R K"), Out("probs", "f32", "R K")),
    params="R V K",
    kernels=_rows("head/topk.wgsl", fits=f"K <= {MAX_K} and K <= V"),
    ref=_topk,
    backward="none: targets are constants",
    tol={"ids": exact(), "probs": transcendental()},
    flops="4 * R * V",
    init={"logits": _logits},
    cases=(
        case(R=1, V=1, K=1),
        case(R=3, V=64, K=64),
        case(R=5, V=257, K=32, tied=1),
        case(R=2, V=3001, K=1),
        case(R=2, V=3001, K=256, tied=1),
        case(R=3, V=3001, K=64),
        case(R=65537, V=3, K=2),
        full_case(R=64, V=248320, K=64),
        full_case(R=3, V=248320, K=256, tied=1),
    ),
)


# ── losses ──


def _kl(a: Arrays, d: Dims) -> Arrays:
    loss, grad = ref.kl_topk(a["logits"], a["ids"], a["probs"], a["weight"])
    return {"loss": loss, "logits": grad}


def _kl_terms(a: Arrays, d: Dims) -> _Array:
    """Sum of the magnitudes of a row's loss terms."""
    picked = np.take_along_axis(a["logits"], a["ids"].astype(np.int64), axis=1)
    safe = np.where(a["probs"] > 0, a["probs"], 1.0)
    size = np.abs(np.log(safe)) + np.abs(picked) + np.abs(a["lse"])[:, None]
    terms: _Array = np.sum(a["probs"] * size, axis=1)
    return terms


def _kl_mag(a: Arrays, d: Dims) -> Arrays:
    softmax = np.exp(a["logits"] - a["lse"][:, None]) * a["probs"].sum(axis=1, keepdims=True)
    np.add.at(softmax, (np.arange(d.R)[:, None], a["ids"].astype(np.int64)), a["probs"])
    return {"loss": _kl_terms(a, d), "logits": softmax * np.abs(a["weight"])[:, None]}


_KL_CASES = (
    case(R=1, V=1, K=1),
    case(R=3, V=65, K=32),
    case(R=2, V=3001, K=1),
    case(R=3, V=3001, K=64),
    case(R=2, V=3001, K=256),
    case(R=65537, V=3, K=2),
)

kl_topk = Op(
    "kl_topk",
    "loss = sum_k probs (ln probs - (logit - lse)), not weighted; "
    "logits become weight * (softmax * sum_k probs - scattered probs)",
    args=(
        InOut("logits", "f32", "R V"),
        In("lse", "f32", "R"),
        In("ids", "u32", "R K"),
        In("probs", "f32", "R K"),
        In("weight", "f32", "R"),
        Out("loss", "f32", "R"),
    ),
    params="R V K",
    kernels=_rows("head/kl_topk.wgsl"),
    ref=_kl,
    backward="none: it is forward and backward in one",
    tol={"logits": transcendental(2), "loss": transcendental()},  # exp of down to -40 at 248320 logits
    flops="3 * R * V + 5 * R * K",
    init=_KL_INIT,
    prepare=_add_lse,
    mag=_kl_mag,
    cases=(*_KL_CASES, full_case(R=64, V=248320, K=64)),
)

kl_topk_loss = Op(
    "kl_topk_loss",
    "loss = sum_k probs (ln probs - (logit - lse)), not weighted",
    args=(
        In("logits", "f32", "R V"),
        In("lse", "f32", "R"),
        In("ids", "u32", "R K"),
        In("probs", "f32", "R K"),
        Out("loss", "f32", "R"),
    ),
    params="R V K",
    kernels=_rows("head/kl_topk_loss.wgsl"),
    ref=lambda a, d: {"loss": _kl({**a, "weight": np.ones(d.R)}, d)["loss"]},
    backward="kl_topk",
    tol=transcendental(),
    flops="5 * R * K",
    init=_KL_INIT,
    prepare=_add_lse,
    mag=lambda a, d: {"loss": _kl_terms(a, d)},
    cases=(*_KL_CASES, full_case(R=64, V=248320, K=64)),
)


def _kl_full(a: Arrays, d: Dims) -> Arrays:
    """The kernel's own function of the log-sum-exps it is given, which are rounded."""
    dt, ds = ref.lse(a["t_logits"]) - a["t_lse"], ref.lse(a["s_logits"]) - a["s_lse"]
    return {"kl": np.exp(dt) * (ref.kl_full(a["t_logits"], a["s_logits"]) + dt - ds)}


def _kl_full_mag(a: Arrays, d: Dims) -> Arrays:
    t, s = a["t_logits"] - a["t_lse"][:, None], a["s_logits"] - a["s_lse"][:, None]
    return {"kl": np.sum(np.exp(t) * (np.abs(t) + np.abs(s)), axis=1)}


kl_full = Op(
    "kl_full",
    "kl = sum_v softmax(t_logits) (ln softmax(t_logits) - ln softmax(s_logits))",
    args=(
        In("t_logits", "f32", "R V"),
        In("s_logits", "f32", "R V"),
        In("t_lse", "f32", "R"),
        In("s_lse", "f32", "R"),
        Out("kl", "f32", "R"),
    ),
    params="R V",
    kernels=_rows("head/kl_full.wgsl"),
    ref=_kl_full,
    backward="none: an evaluation metric",
    tol=transcendental(),
    flops="6 * R * V",
    init={"t_logits": _logits, "s_logits": _logits},
    prepare=_add_both_lse,
    mag=_kl_full_mag,
    cases=(
        case(R=1, V=1),
        case(R=3, V=65),
        case(R=2, V=3001),
        case(R=65537, V=3),
        full_case(R=64, V=248320),
    ),
)

nll = Op(
    "nll",
    "nll = lse - logit of the target",
    args=(
        In("logits", "f32", "R V"),
        In("lse", "f32", "R"),
        In("targets", "u32", "R"),
        Out("nll", "f32", "R"),
    ),
    params="R V",
    kernels=(Kernel("rows", "head/nll.wgsl", grid="cdiv(R, WG)", consts={"WG": 64}),),
    ref=lambda a, d: {"nll": ref.nll(a["logits"], a["targets"])},
    backward="none: an evaluation metric; training uses kl_topk with a one-hot target",
    tol=pointwise(),
    flops="R",
    init={"logits": _logits, "targets": _targets},
    prepare=_add_lse,
    mag=lambda a, d: {"nll": np.abs(a["lse"]) + np.abs(a["logits"]).max(axis=1)},
    cases=(
        case(R=1, V=1),
        case(R=63, V=5),
        case(R=65, V=3001),
        full_case(R=64, V=248320),
    ),
)
