"""GatedDeltaNet: convolution, gates, l2 norm, and the gated delta recurrence in chunks of tokens.

A scan is one (window, value head), number window * Hv + head. Forward: gdn_pairs, then for groups of G scans from scan0 on
gdn_states and gdn_out. Backward: for the groups (gdn_states again where its states are gone,) gdn_states_bwd and gdn_reads, then
for all scans gdn_pairs_bwd and gdn_dqk. Only `states` and `dstates` grow with Dk * Dv, and they are as long as a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nvgpu.ops.table import Arrays, Case, Dims, In, InOut, Kernel, Op, Out, case, cdiv, full_case
from nvgpu.ops.tolerance import magnitude, matmul, reduction, scan, transcendental
from nvgpu.ref import gdn as ref
from nvgpu.ref import gdn_chunks as stages

CHUNK = 32  # tokens

_Array = np.ndarray[Any, Any]


def chunks(T: int) -> int:
    """Chunks of a window of T tokens."""
    return cdiv(T, CHUNK)


def _by_width(
    shader: str, grid: str, fits: str, *, cpu: int, gpu: int, consts: Mapping[str, str | int] | None = None
) -> tuple[Kernel, ...]:
    """The same kernel with few invocations for CPU adapters, where a barrier costs more than a longer loop."""
    return (
        Kernel("narrow", shader, grid=grid, consts={**(consts or {}), "WG": cpu}, when="cpu", fits=fits),
        Kernel("wide", shader, grid=grid, consts={**(consts or {}), "WG": gpu}, when="gpu", fits=fits),
    )


# ── convolution ──

def _windows(x: _Array, d: Dims) -> _Array:
    """[N, ...] as [B, T, ...]."""
    return x.reshape(-1, d.T, *x.shape[1:])


def _conv_fwd(a: Arrays, d: Dims) -> Arrays:
    return {"y": ref.conv_silu_fwd(_windows(a["x"], d), a["w"])}


def _conv_bwd(a: Arrays, d: Dims) -> Arrays:
    return {"dx": ref.conv_silu_bwd(_windows(a["x"], d), a["w"], _windows(a["dy"], d))[0]}


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


def _l2_fwd(a: Arrays, d: Dims) -> Arrays:
    q, k, v = ref.gdn_l2norm_fwd(a["qkv"], Hk=d.Hk, Dk=d.Dk, Hv=d.Hv, Dv=d.Dv, eps=d.eps)
    return {"q": q, "k": k, "v": v}


def _to_key_heads(x: _Array, Hk: int) -> _Array:
    """[..., Hv, D] summed over the value heads of each key head."""
    return x.reshape(*x.shape[:-2], Hk, -1, x.shape[-1]).sum(axis=-2)


def _l2_bwd(a: Arrays, d: Dims) -> Arrays:
    dq, dk = _to_key_heads(a["dq"], d.Hk), _to_key_heads(a["dk"], d.Hk)
    return {"dqkv": ref.gdn_l2norm_bwd(a["qkv"], dq, dk, a["dv"], Hk=d.Hk, Dk=d.Dk, Hv=d.Hv, Dv=d.Dv, eps=d.eps)}


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
    kernels=_by_width("gdn/gdn_l2norm_fwd.wgsl", "N * (2 * Hk + Hv)", "True", cpu=8, gpu=32),
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
    kernels=_by_width("gdn/gdn_l2norm_bwd.wgsl", "N * (2 * Hk + Hv)", "True", cpu=8, gpu=32),
    ref=_l2_bwd,
    backward="none: a backward",
    tol=reduction("Dk"),
    flops="N * (4 * Hv * Dk + 16 * Hk * Dk + Hv * Dv)",
    init={"qkv": _with_null_row},
    cases=_L2_CASES,
)

# ── recurrence: inputs of the cases ──


def _unit(scale: float) -> Callable[[np.random.Generator, Dims, tuple[int, ...]], _Array]:
    """Vectors of length `scale` (default of Dk: 1/sqrt(Dk) for q); every third token repeats the one before."""

    def make(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
        x = rng.standard_normal(shape) + 0.5
        x[2::3] = x[1::3][: len(x[2::3])]
        return (scale or d.Dk**-0.5) * x / np.linalg.norm(x, axis=-1, keepdims=True)

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
    gates = [_windows(make(rng, d, heads), d) for make in (_log_decay, _beta)]
    return stages.gdn_pairs(key, key, *gates, chunk=d.L)[1].reshape(shape)


def _add_pairs(a: Arrays, d: Dims) -> None:
    """Makes `pairs` fit k, q (where there is one) and rates."""
    k, rates = _windows(a["k"], d), _windows(a["rates"], d)
    q = _windows(a["q"], d) if "q" in a else k
    a["pairs"] = stages.gdn_pairs(q, k, rates[..., 3], rates[..., 0], chunk=d.L)[0].reshape(a["pairs"].shape)


def _decaying(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Products inside the chunks, of the right triangle."""
    t = np.arange(d.N) % d.T % d.L
    live = np.arange(d.L) <= t[:, None]
    strict = np.arange(d.L) < t[:, None]
    return 0.2 * rng.standard_normal(shape) * np.stack([strict, live], axis=1)[:, None]


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
)
_FULL = (8, 512, 16, 16, 128, 128)
_CASES = (*(case(**_shape(*s)) for s in _SHAPES), case(**_shape(65537, 1, 1, 1, 4, 4)), full_case(**_shape(*_FULL)))


def _in_group(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int) -> dict[str, int]:
    """All scans but the first and the last, where there are as many."""
    scans = B * Hv
    return _shape(B, T, Hk, Hv, Dk, Dv, scan0=int(scans > 1), G=max(scans - 2, 1))


_GROUP_CASES: tuple[Case, ...] = (
    *(case(**_in_group(*s)) for s in _SHAPES),
    case(**_shape(1, 65, 1, 2, 32, 32, scan0=0, G=2)),
    case(**_shape(65537, 1, 1, 1, 4, 4, scan0=0, G=65537)),
    full_case(**_shape(*_FULL, scan0=0, G=128)),
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
    return [_windows(a[name], d) for name in names.split()]


# ── recurrence: forward ──

_HEADS = "Dk % 4 == 0 and Dv % 4 == 0"
_ROWS = "N Hk Hv T L NC=cdiv(T,L)"
_GROUP = f"G scan0 {_ROWS}"
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
        for name, when, width, kind, lanes in (("vec4", "cpu", 4, "vec4<f32>", 8), ("scalar", "gpu", 1, "f32", 32))
    )


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
    params=_ROWS,
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
    params=_GROUP,
    kernels=_columns("gdn/gdn_states.wgsl", "G"),
    ref=_states,
    backward="gdn_states_bwd",
    tol=scan("T"),
    flops="G * T * Dv * (4 * Dk + L)",
    init=_INIT,
    prepare=_add_pairs,
    cases=_GROUP_CASES,
)


def _out(a: Arrays, d: Dims) -> Arrays:
    o = stages.gdn_out(*_take(a, d, "q rates pairs gap"), _all_scans(a["states"], d))
    return {"o": _update(a["o"], o, d)}


gdn_out = Op(
    "gdn_out",
    "o_t = (decayed chunk-start state)ᵀ q_t + sum over s <= t of pairs q·k beta_s gap_s, for a group of scans",
    args=(_Q, _RATES, _PAIRS, _GAP, In("states", "f32", _STATES), InOut("o", "f32", "N Hv Dv")),
    params=_GROUP,
    kernels=_columns("gdn/gdn_out.wgsl", "G * NC"),
    ref=_out,
    backward="gdn_states_bwd, gdn_reads, gdn_pairs_bwd",
    tol=matmul("Dk + L"),
    flops="G * T * Dv * (2 * Dk + L)",
    init=_INIT,
    cases=_GROUP_CASES,
)

# ── recurrence: backward ──


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
    params=_GROUP,
    kernels=_columns("gdn/gdn_states_bwd.wgsl", "G"),
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
    reads = _windows(a["reads"], d).copy()
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
    kernels=_columns("gdn/gdn_reads.wgsl", "G * NC", "Dk", libs=True),
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
    carry = stages.gdn_carry(_windows(a["rates"], d), *states, chunk=d.L)
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
    kernels=_by_width("gdn/gdn_carry.wgsl", "G * NC", _HEADS, cpu=8, gpu=128, consts={"DK": "Dk", "DV": "Dv", "L": "L"}),
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
    params=_ROWS,
    kernels=tuple(
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
        for name, when, width, kind, lanes in (("vec4", "cpu", 4, "vec4<f32>", 32), ("scalar", "gpu", 1, "f32", 64))
    ),
    ref=_dqk,
    backward="none: a backward",
    tol={"dq": matmul("L"), "dk": matmul("3 * L"), "dlog_decay": matmul("Dk + L")},
    mag=_dqk_mag,
    flops="N * Hv * Dk * (4 * L + 8)",
    init=_INIT,
    cases=_CASES,
)
