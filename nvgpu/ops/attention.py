"""Causal grouped-query attention: q/gate split, per-head norm with rotary embedding, softmax attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.table import Arrays, Case, Dims, In, Kernel, Op, Out, case, full_case, pieces
from nvgpu.ops.tolerance import exact, reduction, transcendental
from nvgpu.ref import attention as ref

Array = np.ndarray[Any, Any]

_FLAT = {"WG": 64}
_HEAD = {"WG": 32}

# ── q/gate split ──


def _split(a: Arrays, d: Dims) -> Arrays:
    q, gate = ref.split_q_gate(a["qg"], heads=d.H)
    return {"q": q, "gate": gate}


_SPLIT_CASES = (
    case(N=1, H=1, D=1),
    case(N=3, H=2, D=32),
    case(N=65, H=3, D=7),
    case(N=65, H=3, D=12),
    full_case(N=4096, H=8, D=256),
)

split_q_gate = Op(
    "split_q_gate",
    "qg holds, per head, q then gate: take them apart",
    args=(In("qg", "f32", "N H*2*D"), Out("q", "f32", "N H*D"), Out("gate", "f32", "N H*D")),
    params="E=N*H*D D",
    kernels=pieces("flat", "attention/split_q_gate.wgsl", "N * H * D", "D"),
    ref=_split,
    backward="merge_q_gate",
    tol=exact(),
    flops="2 * N * H * D",
    cases=_SPLIT_CASES,
)

merge_q_gate = Op(
    "merge_q_gate",
    "dqg holds, per head, dq then dgate: put them together",
    args=(In("dq", "f32", "N H*D"), In("dgate", "f32", "N H*D"), Out("dqg", "f32", "N H*2*D")),
    params="E=N*H*D D",
    kernels=pieces("flat", "attention/merge_q_gate.wgsl", "N * H * D", "D"),
    ref=lambda a, d: {"dqg": ref.merge_q_gate(a["dq"], a["dgate"], heads=d.H)},
    backward="split_q_gate",
    tol=exact(),
    flops="2 * N * H * D",
    cases=_SPLIT_CASES,
)

# ── norm and rotary embedding per head ──


def _angles(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> Array:
    return ref.rope_table(d.T, 1e4 ** (-np.arange(d.half) / max(d.half, 1)))


def _input(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> Array:
    return 3.0 * rng.standard_normal(shape)


_ROPE_INIT = {"x": _input, "table": _angles}


def _norm_rope(a: Arrays, d: Dims) -> Arrays:
    y, rstd = ref.qk_norm_rope_fwd(a["x"], a["w"], a["table"], eps=d.eps, gemma=bool(d.gemma))
    return {"y": y, "rstd": rstd}


def _norm_rope_mag(a: Arrays, d: Dims) -> Arrays:
    y = np.abs(a["x"]) * (np.mean(a["x"] ** 2, axis=-1, keepdims=True) + d.eps) ** -0.5
    y = y * np.abs(a["w"] + d.gemma)
    return {"y": y + _partners(y, d.half)}


def _partners(x: Array, half: int) -> Array:
    """x with the two dims of every rotated pair swapped, and 0 where nothing rotates."""
    return np.concatenate([x[..., half : 2 * half], x[..., :half], 0.0 * x[..., 2 * half :]], axis=-1)


def _saved_rstd(a: Arrays, d: Dims) -> None:
    a["rstd"] = 1.0 / np.sqrt(np.mean(a["x"] ** 2, axis=-1) + 1e-6)


def _rope_cases(**extra: Any) -> tuple[Case, ...]:
    return (
        case(N=1, H=1, D=2, T=1, half=1, gemma=0, **extra),
        case(N=15, H=3, D=32, T=5, half=4, gemma=1, **extra),
        case(N=14, H=2, D=64, T=7, half=32, gemma=0, **extra),
        case(N=65, H=1, D=256, T=65, half=32, gemma=1, **extra),
        case(N=21846, H=3, D=2, T=2, half=1, gemma=1, **extra),
        full_case(N=4096, H=8, D=256, T=512, half=32, gemma=1, **extra),
    )


qk_norm_rope_fwd = Op(
    "qk_norm_rope_fwd",
    "y = rope(x * rstd * w), or * (1 + w) (gemma), per head; row n has position n % T, "
    "dims i and i + half rotate together",
    args=(
        In("x", "f32", "N H D"),
        In("w", "f32", "D"),
        In("table", "f32", "T half 2"),
        Out("y", "f32", "N H D"),
        Out("rstd", "f32", "N H"),
    ),
    params="rows=N*H H D T half gemma eps:f32",
    kernels=(Kernel("heads", "attention/qk_norm_rope_fwd.wgsl", grid="N * H", consts=_HEAD),),
    ref=_norm_rope,
    backward="qk_norm_rope_bwd, qk_norm_rope_dw_partial",
    tol={"y": reduction("D"), "rstd": transcendental()},
    flops="7 * N * H * D",
    init=_ROPE_INIT,
    mag=_norm_rope_mag,
    cases=_rope_cases(eps=1e-6),
)


def _norm_rope_bwd(a: Arrays, d: Dims) -> Arrays:
    dx = ref.qk_norm_rope_bwd(a["x"], a["w"], a["rstd"], a["table"], a["dy"], gemma=bool(d.gemma))
    return {"dx": dx}


def _norm_rope_bwd_mag(a: Arrays, d: Dims) -> Arrays:
    dy = np.abs(a["dy"])
    dxhat = (dy + _partners(dy, d.half)) * np.abs(a["w"] + d.gemma)
    xhat = np.abs(a["x"] * a["rstd"][..., None])
    return {"dx": a["rstd"][..., None] * (dxhat + xhat * np.mean(dxhat * xhat, axis=-1, keepdims=True))}


qk_norm_rope_bwd = Op(
    "qk_norm_rope_bwd",
    "dx of qk_norm_rope_fwd",
    args=(
        In("x", "f32", "N H D"),
        In("w", "f32", "D"),
        In("rstd", "f32", "N H"),
        In("table", "f32", "T half 2"),
        In("dy", "f32", "N H D"),
        Out("dx", "f32", "N H D"),
    ),
    params="rows=N*H H D T half gemma",
    kernels=(Kernel("heads", "attention/qk_norm_rope_bwd.wgsl", grid="N * H", consts=_HEAD),),
    ref=_norm_rope_bwd,
    backward="none: it is a backward of qk_norm_rope_fwd",
    tol=reduction("D"),
    flops="15 * N * H * D",
    init=_ROPE_INIT,
    prepare=_saved_rstd,
    mag=_norm_rope_bwd_mag,
    cases=_rope_cases(),
)


def _norm_rope_dw(a: Arrays, d: Dims) -> Arrays:
    positions = np.arange(d.N) % d.T
    parts = []
    for i in range(d.P):
        chunk = slice(i * d.chunk, (i + 1) * d.chunk)
        table = a["table"][positions[chunk]]  # one row of angles for each row of the chunk
        parts.append(
            ref.qk_norm_rope_dw(a["x"][chunk], a["rstd"][chunk], table, a["dy"][chunk])
            if len(table)
            else np.zeros(d.D)
        )
    return {"partial": np.stack(parts)}


def _norm_rope_dw_mag(a: Arrays, d: Dims) -> Arrays:
    dy = np.abs(a["dy"])
    terms = ((dy + _partners(dy, d.half)) * np.abs(a["x"]) * a["rstd"][..., None]).sum(axis=1)
    return {"partial": np.stack([terms[i * d.chunk : (i + 1) * d.chunk].sum(axis=0) for i in range(d.P)])}


qk_norm_rope_dw_partial = Op(
    "qk_norm_rope_dw_partial",
    "the q or k norm gain's gradient over P chunks of rows, all heads, both styles; colsum_acc adds them up",
    args=(
        In("x", "f32", "N H D"),
        In("rstd", "f32", "N H"),
        In("table", "f32", "T half 2"),
        In("dy", "f32", "N H D"),
        Out("partial", "f32", "P D"),
    ),
    params="N H D T half P chunk=cdiv(N,P)",
    kernels=(
        Kernel("columns", "attention/qk_norm_rope_dw_partial.wgsl", grid="P * cdiv(D, WG)", consts=_FLAT),
    ),
    ref=_norm_rope_dw,
    backward="none: it is a backward of qk_norm_rope_fwd",
    tol=reduction("chunk * H"),
    flops="6 * N * H * D",
    init=_ROPE_INIT,
    prepare=_saved_rstd,
    mag=_norm_rope_dw_mag,
    cases=(
        case(N=1, H=1, D=2, T=1, half=1, P=1),
        case(N=15, H=3, D=32, T=5, half=4, P=4),
        case(N=9, H=2, D=64, T=3, half=32, P=7),
        case(N=130, H=1, D=256, T=65, half=32, P=5),
        case(N=65537, H=1, D=2, T=1, half=1, P=65537),
        full_case(N=4096, H=8, D=256, T=512, half=32, P=64),
    ),
)

# ── softmax attention ──

_FITS = "D % 4 == 0 and D <= 256 and H % KV == 0"
_LANES = "1 if D <= 32 else 2 if D <= 64 else 4 if D <= 128 else 8"  # a lane holds at most 8 vec4 of a head


def _tiles(shader: str, heads: str) -> tuple[Kernel, ...]:
    """Fewer invocations on a CPU adapter: it runs a workgroup on one core; small tiles skip more scores."""
    grid = f"N // T * {heads} * cdiv(T, WG // S)"
    return tuple(
        Kernel(name, shader, grid=grid, consts={"D": "D", "S": _LANES, "WG": wg}, when=when, fits=_FITS)
        for name, wg, when in (("small", 64, "cpu"), ("large", 256, "gpu"))
    )


def _register_tiles(shader: str, heads: str, rows: int) -> Kernel:
    """For wide heads: an invocation holds 16 rows of 4 dims."""
    return Kernel(
        "tiles",
        shader,
        grid=f"N // T * {heads} * cdiv(T, {rows})",
        consts={"D": "D"},
        when="gpu",
        fits="D % 64 == 0 and 128 <= D <= 256 and H % KV == 0",
    )


def _windows(a: Arrays, d: Dims) -> list[Array]:
    """The given arrays as [B, T, ...]."""
    return [x.reshape(d.N // d.T, d.T, *x.shape[1:]) for x in a.values()]


def _rows(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


def _attention(a: Arrays, d: Dims) -> Arrays:
    o, lse = ref.attention_fwd(*_windows({name: a[name] for name in "qkv"}, d))
    return {"o": _rows(o), "lse": _rows(lse)}


class _Terms:
    """Magnitudes behind every softmax weight, [B, H, T, T]: a rounded exponent moves it by its own size."""

    def __init__(self, a: Arrays, d: Dims, lse: Array) -> None:
        self.d = d
        self.rep = d.H // d.KV
        q, k = self.query_heads(a["q"]), self.key_heads(a["k"])
        exponent = q @ k.swapaxes(-1, -2) * d.scale - self.query_heads(lse[..., None])
        seen = np.tril(np.ones((d.T, d.T), bool))
        self.weight = np.exp(np.where(seen, exponent, -np.inf)) * (1.0 + np.abs(exponent))

    def query_heads(self, x: Array) -> Array:
        return x.reshape(self.d.N // self.d.T, self.d.T, self.d.H, -1).swapaxes(1, 2)

    def key_heads(self, x: Array) -> Array:
        wide = x.reshape(self.d.N // self.d.T, self.d.T, self.d.KV, -1).swapaxes(1, 2)
        return np.repeat(wide, self.rep, axis=1)

    def by_query(self, x: Array) -> Array:
        """[B, H, T, D] to [N, H, D]."""
        return x.swapaxes(1, 2).reshape(self.d.N, self.d.H, -1)

    def by_key(self, x: Array) -> Array:
        """[B, H, T, D] summed over the query heads of a kv head, as [N, KV, D]."""
        parts: Array = x.reshape(self.d.N // self.d.T, self.d.KV, self.rep, self.d.T, -1).sum(axis=2)
        return parts.swapaxes(1, 2).reshape(self.d.N, self.d.KV, -1)


def _attention_mag(a: Arrays, d: Dims) -> Arrays:
    lse = _attention(a, d)["lse"]
    terms = _Terms(a, d, lse)
    o = terms.by_query(terms.weight @ np.abs(terms.key_heads(a["v"])))
    size = terms.by_query(terms.weight.sum(axis=-1, keepdims=True))[..., 0]
    return {"o": o, "lse": np.abs(lse) + size}


_SCALE = "scale:f32=D**-0.5"
_ATTENTION_CASES = (
    case(N=1, H=1, KV=1, D=32, T=1),
    case(N=6, H=2, KV=1, D=4, T=3),
    case(N=130, H=6, KV=2, D=32, T=65),
    case(N=126, H=2, KV=1, D=64, T=63),
    case(N=64, H=2, KV=2, D=96, T=64),
    case(N=127, H=1, KV=1, D=128, T=127),
    case(N=37, H=4, KV=1, D=256, T=37),
    case(N=260, H=4, KV=2, D=256, T=130),
    case(N=65, H=2, KV=1, D=192, T=65),
    full_case(N=1024, H=8, KV=2, D=256, T=512),
)

attention_fwd = Op(
    "attention_fwd",
    "o = softmax(q kᵀ / sqrt(D)) v, causal within each window of T rows; "
    "query head h reads kv head h // (H / KV)",
    args=(
        In("q", "f32", "N H D"),
        In("k", "f32", "N KV D"),
        In("v", "f32", "N KV D"),
        Out("o", "f32", "N H D"),
        Out("lse", "f32", "N H"),
    ),
    params=f"N H KV T {_SCALE}",
    kernels=(
        _register_tiles("attention/attention_fwd_tiles.wgsl", "H", 64),
        *_tiles("attention/attention_fwd.wgsl", "H"),
    ),
    ref=_attention,
    backward="attention_delta, attention_bwd_dq, attention_bwd_dkv",
    tol=reduction("T + D"),
    flops="2 * N * T * H * D",
    mag=_attention_mag,
    cases=(*_ATTENTION_CASES, case(N=16385, H=4, KV=4, D=4, T=1)),
)

attention_delta = Op(
    "attention_delta",
    "delta = sum over D of o * dout: what the softmax's gradient subtracts",
    args=(In("o", "f32", "N H D"), In("dout", "f32", "N H D"), Out("delta", "f32", "N H")),
    params="rows=N*H D",
    kernels=(Kernel("heads", "attention/attention_delta.wgsl", grid="N * H", consts=_HEAD),),
    ref=lambda a, d: {"delta": ref.attention_delta(a["o"], a["dout"])},
    backward="none: it is a part of the backward of attention_fwd",
    tol=reduction("D"),
    flops="2 * N * H * D",
    mag=lambda a, d: {"delta": np.sum(np.abs(a["o"] * a["dout"]), axis=-1)},
    cases=(
        case(N=1, H=1, D=1),
        case(N=5, H=3, D=31),
        case(N=65, H=2, D=256),
        case(N=21846, H=3, D=2),
        full_case(N=4096, H=8, D=256),
    ),
)


def _saved_statistics(a: Arrays, d: Dims) -> None:
    forward = _attention(a, d)
    a["lse"] = forward["lse"]
    a["delta"] = ref.attention_delta(forward["o"], a["dout"])


def _attention_bwd(a: Arrays, d: Dims) -> Arrays:
    o = _attention(a, d)["o"]
    given = {"q": a["q"], "k": a["k"], "v": a["v"], "o": o, "lse": a["lse"], "dout": a["dout"]}
    dq, dk, dv = ref.attention_bwd(*_windows(given, d))
    return {"dq": _rows(dq), "dk": _rows(dk), "dv": _rows(dv)}


def _attention_bwd_mag(a: Arrays, d: Dims) -> Arrays:
    terms = _Terms(a, d, a["lse"])
    dout, v = np.abs(terms.query_heads(a["dout"])), np.abs(terms.key_heads(a["v"]))
    dweight = dout @ v.swapaxes(-1, -2)
    delta = np.abs(terms.query_heads(a["delta"][..., None]))
    dscore = terms.weight * (dweight + delta) * d.scale
    return {
        "dq": terms.by_query(dscore @ np.abs(terms.key_heads(a["k"]))),
        "dk": terms.by_key(dscore.swapaxes(-1, -2) @ np.abs(terms.query_heads(a["q"]))),
        "dv": terms.by_key(terms.weight.swapaxes(-1, -2) @ dout),
    }


_BWD_ARGS = (
    In("q", "f32", "N H D"),
    In("k", "f32", "N KV D"),
    In("v", "f32", "N KV D"),
    In("dout", "f32", "N H D"),
    In("lse", "f32", "N H"),
    In("delta", "f32", "N H"),
)

attention_bwd_dq = Op(
    "attention_bwd_dq",
    "dq of attention_fwd, scores recomputed from lse",
    args=(*_BWD_ARGS, Out("dq", "f32", "N H D")),
    params=f"N H KV T {_SCALE}",
    kernels=(
        _register_tiles("attention/attention_bwd_dq_tiles.wgsl", "H", 64),
        *_tiles("attention/attention_bwd_dq.wgsl", "H"),
    ),
    ref=_attention_bwd,
    backward="none: it is a part of the backward of attention_fwd",
    tol=reduction("T + D"),
    flops="3 * N * T * H * D",
    prepare=_saved_statistics,
    mag=_attention_bwd_mag,
    cases=_ATTENTION_CASES,
)

attention_bwd_dkv = Op(
    "attention_bwd_dkv",
    "dk and dv of attention_fwd, scores recomputed from lse; a kv head sums its query heads in order",
    args=(*_BWD_ARGS, Out("dk", "f32", "N KV D"), Out("dv", "f32", "N KV D")),
    params=f"N H KV T {_SCALE}",
    kernels=(
        _register_tiles("attention/attention_bwd_dkv_tiles.wgsl", "KV", 32),
        *_tiles("attention/attention_bwd_dkv.wgsl", "KV"),
    ),
    ref=_attention_bwd,
    backward="none: it is a part of the backward of attention_fwd",
    tol=reduction("T + D"),
    flops="4 * N * T * H * D",
    prepare=_saved_statistics,
    mag=_attention_bwd_mag,
    cases=_ATTENTION_CASES,
)
