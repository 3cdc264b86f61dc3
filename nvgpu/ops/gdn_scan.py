"""The gated delta recurrence in chunks of tokens.

A scan is one (window, value head), number window * Hv + head. Forward: gdn_pairs, then for groups of G scans from scan0 on
gdn_states and gdn_out. Backward: for the groups (gdn_states again where its states are gone,) gdn_states_bwd, gdn_reads and
gdn_carry, then for all scans gdn_pairs_bwd and gdn_dqk. Only `states` and `dstates` grow with Dk * Dv, and they are as long as
a group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.gdn import windows
from nvgpu.ops.gdn_cases import (
    CASES,
    CHUNK,
    GROUP_CASES,
    INIT,
    add_pairs,
    all_scans,
    chunks,
    of_group,
    take,
    update,
)
from nvgpu.ops.table import Arrays, Case, Dims, In, InOut, Kernel, Op, Out
from nvgpu.ops.tolerance import magnitude, matmul, scan
from nvgpu.ref import gdn_chunks as stages

_Array = np.ndarray[Any, Any]

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
    pairs, rates = stages.gdn_pairs(*take(a, d, "q k log_decay beta"), chunk=d.L)
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
    init=INIT,
    cases=CASES,
)


def _states(a: Arrays, d: Dims) -> Arrays:
    gap, states = stages.gdn_states(*take(a, d, "k v rates"), chunk=d.L)
    return {"gap": update(a["gap"], gap, d), "states": of_group(states, d)}


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
    init=INIT,
    prepare=add_pairs,
    cases=GROUP_CASES,
)


def _out(a: Arrays, d: Dims) -> Arrays:
    q, rates, pairs, gap = take(a, d, "q rates pairs gap")
    o = stages.gdn_out(q, rates, pairs, gap, all_scans(a["states"], d))
    return {"o": update(a["o"], o, d)}


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
    init=INIT,
    cases=GROUP_CASES,
)

# ── backward ──


def _states_bwd(a: Arrays, d: Dims) -> Arrays:
    ddelta, dv, dstates = stages.gdn_states_bwd(*take(a, d, "q k rates dout"), chunk=d.L)
    return {
        "ddelta": update(a["ddelta"], ddelta, d),
        "dv": update(a["dv"], dv, d),
        "dstates": of_group(dstates, d),
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
    init=INIT,
    prepare=add_pairs,
    cases=GROUP_CASES,
)


def _reads(a: Arrays, d: Dims) -> Arrays:
    x, rates = take(a, d, "x rates")
    read = stages.gdn_reads(x, rates, all_scans(a["states"], d), kind=d.kind, chunk=d.L)
    reads = windows(a["reads"], d).copy()
    reads[..., d.kind, :] = update(reads[..., d.kind, :], read, d)
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
    init=INIT,
    cases=tuple(_with_kind(c, i % 3) for i, c in enumerate(GROUP_CASES)),
)


def _carry(a: Arrays, d: Dims) -> Arrays:
    states = [all_scans(a[name], d) for name in ("states", "dstates")]
    carry = stages.gdn_carry(windows(a["rates"], d), *states, chunk=d.L)
    return {"carry": update(a["carry"], carry, d)}


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
    init=INIT,
    cases=GROUP_CASES,
)


def _pairs_bwd(a: Arrays, d: Dims) -> Arrays:
    outputs = stages.gdn_pairs_bwd(*take(a, d, "dout gap ddelta rates pairs"))
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
    init=INIT,
    cases=CASES,
)


def _dqk(a: Arrays, d: Dims) -> Arrays:
    outputs = stages.gdn_dqk(*take(a, d, "q k dpairs reads carry dlog_decay"))
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
    init=INIT,
    cases=CASES,
)

__all__ = ["CHUNK", "chunks"]
