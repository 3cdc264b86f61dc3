"""The gated delta recurrence in chunks of tokens.

A scan is one (window, value head), number window * Hv + head. Forward: gdn_pairs, then for groups of G scans from scan0 on
gdn_states and gdn_out. Backward: for the groups (gdn_states again where its states are gone,) gdn_states_bwd, gdn_reads and
gdn_carry, then for all scans gdn_pairs_bwd and gdn_dqk. Only `states` and `dstates` grow with Dk * Dv, and they are as long as
a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvgpu.ops.gdn import windows
from nvgpu.ops.table import Arrays, Case, Dims, In, InOut, Kernel, Op, Out, case, cdiv, full_case
from nvgpu.ops.tolerance import magnitude, matmul, scan
from nvgpu.ref import gdn_chunks as stages

CHUNK = 32  # tokens

_Array = np.ndarray[Any, Any]


def chunks(T: int) -> int:
    """Chunks of a window of T tokens."""
    return cdiv(T, CHUNK)


# ── inputs of the cases ──


def _unit(scale: float) -> Callable[[np.random.Generator, Dims, tuple[int, ...]], _Array]:
    """Vectors of length `scale` (default of Dk: 1/sqrt(Dk) for q); every third token repeats the one before."""

    def make(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
        x = rng.standard_normal(shape) + 0.5
        x[2::3] = x[1::3][: len(x[2::3])]
        unit: _Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
        return (scale or d.Dk**-0.5) * unit

    return make


def _log_decay(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Most states live long; some tokens forget all, some nothing."""
    log = -np.exp(rng.uniform(-7.0, 0.0, shape))
    log[rng.random(shape) < 0.02] = -200.0
    log[rng.random(shape) < 0.05] = 0.0
    return log


def _beta(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    beta = rng.random(shape)
    beta[rng.random(shape) < 0.1] = 1.0
    beta[rng.random(shape) < 0.05] = 0.0
    return beta


def _rates(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """What gdn_pairs gives besides the products."""
    heads = shape[:2]
    key = np.zeros((d.N // d.T, d.T, d.Hv, 1))
    gates = [windows(make(rng, d, heads), d) for make in (_log_decay, _beta)]
    return stages.gdn_pairs(key, key, *gates, chunk=d.L)[1].reshape(shape)


def _add_pairs(a: Arrays, d: Dims) -> None:
    """Makes `pairs` fit k, q (where there is one) and rates."""
    k, rates = windows(a["k"], d), windows(a["rates"], d)
    q = windows(a["q"], d) if "q" in a else k
    a["pairs"] = stages.gdn_pairs(q, k, rates[..., 3], rates[..., 0], chunk=d.L)[0].reshape(a["pairs"].shape)


def _decaying(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Products inside the chunks, of the right triangle."""
    t = np.arange(d.N) % d.T % d.L
    triangles = np.stack([np.arange(d.L) < t[:, None], np.arange(d.L) <= t[:, None]], axis=1)
    values: _Array = 0.2 * rng.standard_normal(shape) * triangles[:, None]
    return values


_INIT = {
    "q": _unit(0.0),
    "k": _unit(1.0),
    "log_decay": _log_decay,
    "beta": _beta,
    "rates": _rates,
    "pairs": _decaying,
    "dpairs": _decaying,
}


def _shape(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int, **group: int) -> dict[str, int]:
    return {"N": B * T, "T": T, "Hk": Hk, "Hv": Hv, "Dk": Dk, "Dv": Dv, "L": CHUNK, **group}


_SHAPES = (
    (1, 1, 1, 1, 4, 4),
    (2, 31, 1, 3, 8, 12),
    (1, 32, 1, 1, 64, 32),
    (2, 33, 2, 4, 32, 64),
    (1, 63, 1, 1, 32, 32),
    (1, 64, 1, 2, 32, 36),
    (1, 65, 1, 2, 128, 128),
    (1, 127, 1, 1, 36, 40),
    (2, 45, 1, 2, 160, 288),
)
_FULL = (8, 512, 16, 16, 128, 128)
_CASES = (
    *(case(**_shape(*s)) for s in _SHAPES),
    case(**_shape(65537, 1, 1, 1, 4, 4)),
    full_case(**_shape(*_FULL)),
)


def _in_group(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int) -> dict[str, int]:
    """All scans but the first and the last, where there are as many."""
    scans = B * Hv
    return _shape(B, T, Hk, Hv, Dk, Dv, scan0=int(scans > 1), G=max(scans - 2, 1))


_GROUP_CASES: tuple[Case, ...] = (
    *(case(**_in_group(*s)) for s in _SHAPES),
    case(**_shape(1, 65, 1, 2, 32, 32, scan0=0, G=2)),
    case(**_in_group(2, 77, 2, 4, 128, 36)),
    case(**_shape(65537, 1, 1, 1, 4, 4, scan0=0, G=65537)),
    full_case(**_shape(*_FULL, scan0=32, G=64)),
)


def _group(d: Dims) -> slice:
    return slice(d.scan0, d.scan0 + d.G)


def _update(target: _Array, whole: _Array, d: Dims) -> _Array:
    """`target` [N, Hv, ...] with the group's scans taken from `whole` [B, T, Hv, ...]."""
    B = d.N // d.T
    in_group = np.zeros(B * d.Hv, bool)
    in_group[_group(d)] = True
    chosen = in_group.reshape(B, 1, d.Hv, *[1] * (whole.ndim - 3))
    return np.where(chosen, whole, target.reshape(whole.shape))


def _all_scans(states: _Array, d: Dims) -> _Array:
    """`states` [G, NC, Dk, Dv] as [B, Hv, NC, Dk, Dv], zero outside the group."""
    B = d.N // d.T
    whole = np.zeros((B * d.Hv, *states.shape[1:]))
    whole[_group(d)] = states
    return whole.reshape(B, d.Hv, *states.shape[1:])


def _of_group(whole: _Array, d: Dims) -> _Array:
    return whole.reshape(-1, *whole.shape[2:])[_group(d)]


def _take(a: Arrays, d: Dims, names: str) -> list[_Array]:
    return [windows(a[name], d) for name in names.split()]


# ── forward ──

_HEADS = "Dk % 4 == 0 and Dv % 4 == 0"
_ROWS = "N Hv T NC=cdiv(T,L)"
_GROUP = "G scan0 Hv T NC=cdiv(T,L)"
_Q, _K = In("q", "f32", "N Hk Dk"), In("k", "f32", "N Hk Dk")
_V, _GAP, _DOUT = (In(name, "f32", "N Hv Dv") for name in ("v", "gap", "dout"))
_RATES, _PAIRS = In("rates", "f32", "N Hv 4"), In("pairs", "f32", "N Hv 2 L")
_STATES = "G NC Dk Dv"


def _columns(shader: str, scale: str, axis: str = "Dv", *, libs: bool = False) -> tuple[Kernel, ...]:
    """An element of `axis`, or four, per invocation; four on CPU adapters, where loads of what all share dominate."""
    consts = {"DK": "Dk", "DV": "Dv", "L": "L"}
    grid = f"{scale} * cdiv({axis} // W, WG)"
    return tuple(
        Kernel(
            name,
            shader,
            grid=grid,
            consts={**consts, "W": width, "WG": lanes},
            aliases={"COL": kind},
            libs=(f"lib/columns_{width}.wgsl",) if libs else (),
            when=when,
            fits=_HEADS,
        )
        for name, when, width, kind, lanes in (
            ("vec4", "cpu", 4, "vec4<f32>", 8),
            ("scalar", "gpu", 1, "f32", 32),
        )
    )


def _split(shader: str) -> Kernel:
    """Two columns of the state per 8 lanes of a subgroup, which hold 16 rows each in registers."""
    return Kernel(
        "split",
        shader,
        grid="G * cdiv(8 * Dv // W, WG)",
        consts={"DK": "Dk", "DV": "Dv", "L": "L", "W": 2, "WG": 128},
        aliases={"COL": "vec2<f32>"},
        when="gpu",
        needs=("subgroup",),
        fits="Dk == 128 and L == 32 and Dv % 4 == 0",
    )


def _with_tiles(kernels: tuple[Kernel, ...], shader: str, grid: str) -> tuple[Kernel, ...]:
    """In front of the others on GPUs, for the usual heads: products by tiles in workgroup memory."""
    consts = {name: value for name, value in kernels[0].consts.items() if name in ("DK", "DV", "L")}
    tiles = Kernel(
        "tiles",
        shader,
        grid=grid,
        consts=consts,
        when="gpu",
        fits="Dk % 32 == 0 and L == 32" + (" and Dv % 32 == 0" if "DV" in consts else ""),
    )
    return (tiles, *kernels)


def _pairs(a: Arrays, d: Dims) -> Arrays:
    pairs, rates = stages.gdn_pairs(*_take(a, d, "q k log_decay beta"), chunk=d.L)
    return {"pairs": pairs, "rates": rates}


gdn_pairs = Op(
    "gdn_pairs",
    "decayed products k·k (s < t) and q·k (s <= t) inside each chunk; rates = (beta, decay since the chunk's start, "
    "decay to its end, log_decay)",
    args=(
        _Q,
        _K,
        In("log_decay", "f32", "N Hv"),
        In("beta", "f32", "N Hv"),
        Out("pairs", "f32", "N Hv 2 L"),
        Out("rates", "f32", "N Hv 4"),
    ),
    params=f"Hk {_ROWS}",
    kernels=(
        Kernel(
            "chunks",
            "gdn/gdn_pairs.wgsl",
            grid="N // T * Hv * NC",
            consts={"DK": "Dk", "L": "L"},
            fits="Dk % 4 == 0",
        ),
    ),
    ref=_pairs,
    backward="gdn_pairs_bwd, gdn_dqk",
    tol=scan("Dk"),
    flops="3 * N * Hv * L * Dk",
    init=_INIT,
    cases=_CASES,
)


def _states(a: Arrays, d: Dims) -> Arrays:
    gap, states = stages.gdn_states(*_take(a, d, "k v rates"), chunk=d.L)
    return {"gap": _update(a["gap"], gap, d), "states": _of_group(states, d)}


gdn_states = Op(
    "gdn_states",
    "the state at every chunk's start and gap = v - (decayed state)ᵀk of every token, for a group of scans",
    args=(_K, _V, _RATES, _PAIRS, InOut("gap", "f32", "N Hv Dv"), Out("states", "f32", _STATES)),
    params=f"Hk {_GROUP}",
    kernels=(_split("gdn/gdn_states_split.wgsl"), *_columns("gdn/gdn_states.wgsl", "G")),
    ref=_states,
    backward="gdn_states_bwd",
    tol=scan("T"),
    flops="G * T * Dv * (4 * Dk + L)",
    init=_INIT,
    prepare=_add_pairs,
    cases=_GROUP_CASES,
)


def _out(a: Arrays, d: Dims) -> Arrays:
    q, rates, pairs, gap = _take(a, d, "q rates pairs gap")
    o = stages.gdn_out(q, rates, pairs, gap, _all_scans(a["states"], d))
    return {"o": _update(a["o"], o, d)}


gdn_out = Op(
    "gdn_out",
    "o_t = (decayed chunk-start state)ᵀ q_t + sum over s <= t of pairs q·k beta_s gap_s, for a group of scans",
    args=(_Q, _RATES, _PAIRS, _GAP, In("states", "f32", _STATES), InOut("o", "f32", "N Hv Dv")),
    params=f"Hk {_GROUP}",
    kernels=_with_tiles(
        _columns("gdn/gdn_out.wgsl", "G * NC"), "gdn/gdn_out_tiles.wgsl", "G * NC * cdiv(Dv, 128)"
    ),
    ref=_out,
    backward="gdn_states_bwd, gdn_reads, gdn_pairs_bwd",
    tol=matmul("Dk + L"),
    flops="G * T * Dv * (2 * Dk + L)",
    init=_INIT,
    cases=_GROUP_CASES,
)

# ── backward ──


def _states_bwd(a: Arrays, d: Dims) -> Arrays:
    ddelta, dv, dstates = stages.gdn_states_bwd(*_take(a, d, "q k rates dout"), chunk=d.L)
    return {
        "ddelta": _update(a["ddelta"], ddelta, d),
        "dv": _update(a["dv"], dv, d),
        "dstates": _of_group(dstates, d),
    }


gdn_states_bwd = Op(
    "gdn_states_bwd",
    "gradients at delta = beta gap, at v (beta ddelta), and at the state behind every chunk, for a group of scans",
    args=(
        _Q,
        _K,
        _RATES,
        _PAIRS,
        _DOUT,
        InOut("ddelta", "f32", "N Hv Dv"),
        InOut("dv", "f32", "N Hv Dv"),
        Out("dstates", "f32", _STATES),
    ),
    params=f"Hk {_GROUP}",
    kernels=(_split("gdn/gdn_states_bwd_split.wgsl"), *_columns("gdn/gdn_states_bwd.wgsl", "G")),
    ref=_states_bwd,
    backward="none: a backward",
    tol=scan("T"),
    flops="G * T * Dv * (6 * Dk + 2 * L)",
    init=_INIT,
    prepare=_add_pairs,
    cases=_GROUP_CASES,
)


def _reads(a: Arrays, d: Dims) -> Arrays:
    x, rates = _take(a, d, "x rates")
    read = stages.gdn_reads(x, rates, _all_scans(a["states"], d), kind=d.kind, chunk=d.L)
    reads = windows(a["reads"], d).copy()
    reads[..., d.kind, :] = _update(reads[..., d.kind, :], read, d)
    return {"reads": reads}


def _reads_mag(a: Arrays, d: Dims) -> Arrays:
    return {k: np.abs(v) for k, v in _reads({k: np.abs(v) for k, v in a.items()}, d).items()}


def _with_kind(given: Case, kind: int) -> Case:
    return Case({**given.values, "kind": kind}, given.quick)


gdn_reads = Op(
    "gdn_reads",
    "what the chunk-boundary states give dq (kind 0, x = dout) and dk (kind 1, x = dv; kind 2, x = gap and dstates), for a "
    "group of scans",
    args=(
        In("x", "f32", "N Hv Dv"),
        _RATES,
        In("states", "f32", _STATES),
        InOut("reads", "f32", "N Hv 3 Dk"),
    ),
    params=f"kind {_GROUP}",
    kernels=_with_tiles(
        _columns("gdn/gdn_reads.wgsl", "G * NC", "Dk", libs=True),
        "gdn/gdn_reads_tiles.wgsl",
        "G * NC * cdiv(Dk, 128)",
    ),
    ref=_reads,
    backward="none: a backward",
    tol=matmul("Dv"),
    mag=_reads_mag,
    flops="G * T * 2 * Dk * Dv",
    init=_INIT,
    cases=tuple(_with_kind(c, i % 3) for i, c in enumerate(_GROUP_CASES)),
)


def _carry(a: Arrays, d: Dims) -> Arrays:
    states = [_all_scans(a[name], d) for name in ("states", "dstates")]
    carry = stages.gdn_carry(windows(a["rates"], d), *states, chunk=d.L)
    return {"carry": _update(a["carry"], carry, d)}


def _carry_mag(a: Arrays, d: Dims) -> Arrays:
    return _carry({k: np.abs(v) for k, v in a.items()}, d)


gdn_carry = Op(
    "gdn_carry",
    "sum(state * dstate) times the chunk's whole decay, for each of its tokens (to dlog_decay), for a group of scans",
    args=(
        _RATES,
        In("states", "f32", _STATES),
        In("dstates", "f32", _STATES),
        InOut("carry", "f32", "N Hv"),
    ),
    params=_GROUP,
    kernels=tuple(
        Kernel(
            name,
            "gdn/gdn_carry.wgsl",
            grid="G * NC",
            consts={"DK": "Dk", "DV": "Dv", "L": "L", "WG": lanes},
            when=when,
            fits=_HEADS,
        )
        for name, when, lanes in (("narrow", "cpu", 8), ("wide", "gpu", 128))
    ),
    ref=_carry,
    backward="none: a backward",
    tol=matmul("Dk * Dv"),
    mag=_carry_mag,
    flops="G * NC * 2 * Dk * Dv",
    init=_INIT,
    cases=_GROUP_CASES,
)


def _pairs_bwd(a: Arrays, d: Dims) -> Arrays:
    outputs = stages.gdn_pairs_bwd(*_take(a, d, "dout gap ddelta rates pairs"))
    return dict(zip(("dpairs", "dlog_decay", "dbeta"), outputs, strict=True))


def _pairs_bwd_mag(a: Arrays, d: Dims) -> Arrays:
    """Magnitudes, with a floor for what decays to nothing; rates keep their sign, one product enters with a minus."""
    positive = {k: v if k == "rates" else np.abs(v) for k, v in a.items()}
    flipped = {**positive, "ddelta": -positive["ddelta"]}
    return {k: magnitude(v) for k, v in _pairs_bwd(flipped, d).items()}


gdn_pairs_bwd = Op(
    "gdn_pairs_bwd",
    "gradients at the products of gdn_pairs before their decay, at beta, and at log_decay by way of the products",
    args=(
        _DOUT,
        _GAP,
        In("ddelta", "f32", "N Hv Dv"),
        _RATES,
        _PAIRS,
        Out("dpairs", "f32", "N Hv 2 L"),
        Out("dlog_decay", "f32", "N Hv"),
        Out("dbeta", "f32", "N Hv"),
    ),
    params=_ROWS,
    kernels=(
        Kernel(
            "chunks",
            "gdn/gdn_pairs_bwd.wgsl",
            grid="N // T * Hv * NC",
            consts={"DV": "Dv", "L": "L"},
            fits="Dv % 4 == 0",
        ),
    ),
    ref=_pairs_bwd,
    backward="none: a backward",
    tol={"dpairs": scan("Dv"), "dlog_decay": scan("Dv + L * L"), "dbeta": matmul("Dv")},
    mag=_pairs_bwd_mag,
    flops="3 * N * Hv * L * Dv",
    init=_INIT,
    cases=_CASES,
)


def _dqk(a: Arrays, d: Dims) -> Arrays:
    outputs = stages.gdn_dqk(*_take(a, d, "q k dpairs reads carry dlog_decay"))
    return dict(zip(("dq", "dk", "dlog_decay"), outputs, strict=True))


def _dqk_mag(a: Arrays, d: Dims) -> Arrays:
    return _dqk({k: np.abs(v) for k, v in a.items()}, d)


gdn_dqk = Op(
    "gdn_dqk",
    "dq and dk per value head; adds to dlog_decay what passes through chunk-start states",
    args=(
        _Q,
        _K,
        In("dpairs", "f32", "N Hv 2 L"),
        In("reads", "f32", "N Hv 3 Dk"),
        In("carry", "f32", "N Hv"),
        Out("dq", "f32", "N Hv Dk"),
        Out("dk", "f32", "N Hv Dk"),
        InOut("dlog_decay", "f32", "N Hv"),
    ),
    params=f"Hk {_ROWS}",
    kernels=_with_tiles(
        tuple(
            Kernel(
                name,
                "gdn/gdn_dqk.wgsl",
                grid="N // T * Hv * NC",
                consts={"DK": "Dk", "L": "L", "W": width, "WG": lanes},
                aliases={"COL": kind},
                libs=(f"lib/columns_{width}.wgsl",),
                when=when,
                fits="Dk % 4 == 0",
            )
            for name, when, width, kind, lanes in (
                ("vec4", "cpu", 4, "vec4<f32>", 32),
                ("scalar", "gpu", 1, "f32", 64),
            )
        ),
        "gdn/gdn_dqk_tiles.wgsl",
        "N // T * Hv * NC",
    ),
    ref=_dqk,
    backward="none: a backward",
    tol={"dq": matmul("L"), "dk": matmul("3 * L"), "dlog_decay": matmul("Dk + L")},
    mag=_dqk_mag,
    flops="N * Hv * Dk * (4 * L + 8)",
    init=_INIT,
    cases=_CASES,
)
