"""Sign training: gradients of sign matrices, and the step of their latents and bits.

A matrix has R x C signs in words [.., W]; its latents lie as f16 at the signs' places. Gradients are [R, L], L >= C. `key` tells
the random numbers of matrices apart; `hyper` and `tally` are laid out in shaders/lib/sign_hyper.wgsl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvgpu.ops.table import (
    Arg,
    Arrays,
    Case,
    Dims,
    In,
    InOut,
    Kernel,
    Op,
    Out,
    case,
    cdiv,
    full_case,
)
from nvgpu.ops.tolerance import (
    exact,
    f16_storage,
    half_operands,
    half_step,
    matmul,
    pointwise,
    reduction,
    transcendental,
)
from nvgpu.ops.transposed import transposed_kernels
from nvgpu.ref import linear as ref_linear
from nvgpu.ref import signs as ref

_Array = np.ndarray[Any, Any]

HYPER = 12  # entries of `hyper`
STOP, NON_FINITE, SATURATED, CLAMPED, STEPPED, FLIPS = range(6)  # places in `tally`; flips take one a slot

# ── gradients ──


_GRAD_MATRIX = Kernel(
    "matrix",
    "signs/sign_grad.wgsl",
    grid="cdiv(N, 128) * cdiv(K, 128)",
    aliases={"COLUMN": "vec4<f32>", "PIECE": "vec4<f32>"},
    libs=("lib/gemm_matrix_tn.wgsl",),
    enables=("f16", "wgpu_cooperative_matrix"),
    when="gpu",
    needs=("shader-f16", "cooperative-matrix"),
    fits="N % 4 == 0 and K % 4 == 0",
    precision="mixed",
    tol=half_operands("M"),
)

sign_grad = Op(
    "sign_grad",
    "y_nk = cin_n cout_k Σ_m x_mn w_mk: the gradient of a matrix of signs",
    args=(
        In("x", "f32", "M N"),
        In("w", "f32", "M K"),
        In("cin", "f32", "N"),
        In("cout", "f32", "K"),
        Out("y", "f32", "N K"),
    ),
    params="N M K inner=M outer=K ldy=K y0=0",
    kernels=(
        _GRAD_MATRIX,
        *transposed_kernels("signs/sign_grad.wgsl", "scale_out", acc=False),
    ),
    ref=lambda a, d: {"y": ref.outer_sum(a["x"], a["w"], a["cin"], a["cout"])},
    backward="none: it forms parameter gradients",
    tol=matmul("M"),
    flops="2 * N * M * K",
    mag=lambda a, d: {"y": ref.outer_sum(*(np.abs(a[name]) for name in ("x", "w", "cin", "cout")))},
    cases=(
        case(N=1, M=1, K=1),
        case(N=7, M=5, K=3),
        case(N=67, M=37, K=130),
        case(N=64, M=64, K=64),
        case(N=68, M=65, K=132),
        case(N=128, M=127, K=128),
        case(N=132, M=129, K=260),
        full_case(N=3584, M=4096, K=768),
    ),
)

# ── the step: inputs as training has them ──


def _latents(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Of all sizes down to the smallest, some at the bounds."""
    size = rng.choice([0.5, 1e-3, 2.0**-20], shape) * rng.random(shape)
    halves = np.where(rng.random(shape) < 0.02, 1.0, np.maximum(size, 2.0**-24)).astype(np.float16)
    return np.where(rng.random(shape) < 0.5, -halves, halves)


def _bits(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    return rng.integers(0, 1 << 32, shape, np.uint32)


def _gradients(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Rows and columns of different sizes, far below 1."""
    rows, cols = (np.exp(rng.standard_normal(size)) for size in shape)
    return 1e-4 * rng.standard_normal(shape) * rows[:, None] * cols


def _ema(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    rows, cols = (1e-9 * np.exp(rng.standard_normal(size)) for size in (d.R, d.C))
    return np.concatenate([rows, cols, [rows.mean(), 2.0**-16, 2.0**-15]])


def _hyper(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    return _hyper_of(d).vector()


def _hyper_of(d: Dims) -> ref.Hyper:
    return ref.Hyper(eta=d.get("eta", 2e-2), step=d.get("step", 7), unscale=2.0**-3, hyst=d.get("hyst", 0.0))


def _tally(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    counts = rng.integers(1, 9, shape, np.uint32)
    counts[STOP] = d.get("stopped", 0)
    return counts


_INIT: dict[str, Callable[[np.random.Generator, Dims, tuple[int, ...]], _Array]] = {
    "lat": _latents,
    "bits": _bits,
    "g": _gradients,
    "q": _gradients,
    "ema": _ema,
    "hyper": _hyper,
    "tally": _tally,
    "mom": lambda rng, d, shape: 0.5 * rng.standard_normal(shape),
    "second": lambda rng, d, shape: 1e-9 * rng.standard_normal(shape) ** 2,
}


def _init(*names: str) -> dict[str, Callable[[np.random.Generator, Dims, tuple[int, ...]], _Array]]:
    return {name: _INIT[name] for name in names}


def _signs(words: _Array, d: Dims) -> _Array:
    return ref_linear.unpack_signs(words[: d.R], d.C) > 0


def _sizes(**more: Any) -> tuple[Case, ...]:
    """Matrices as they are in words: one row, whole words, parts of words, more rows in the bitmap than trained."""
    return (
        case(R=1, C=2, L=2, B=1, W=1, T=8, **more),
        case(R=5, C=40, L=40, B=32, W=2, T=8, **more),
        case(R=37, C=72, L=96, B=37, W=3, T=8, **more),
        full_case(R=3584, C=760, L=768, B=3584, W=24, T=8, **more),
    )


# ── gradients to slopes, and their means ──


def _slope(a: Arrays, d: Dims) -> Arrays:
    live, tally = a["g"][:, : d.C], a["tally"].copy()
    finite = np.isfinite(live)
    q = ref.slope(np.where(finite, live, 0.0), a["lat"][:, : d.C], _hyper_of(d))
    if not finite.all():
        tally[STOP] = 1
        tally[NON_FINITE] += int(np.sum(~finite))
    return {
        "g": np.concatenate([q, a["g"][:, d.C :]], axis=1),
        "rows": (q * q).mean(axis=1),
        "tally": tally,
    }


def _spoilt(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Some not finite, where the case wants it."""
    values = _gradients(rng, d, shape)
    if d.get("spoilt", 0):
        values[:, : d.C][rng.random((d.R, d.C)) < 0.02] = np.nan
        values[0, 0] = np.inf
    return values


sign_slope = Op(
    "sign_slope",
    "g becomes q = G·k·(1 - tanh²(k·lat)); the mean of q² of every row; non-finite entries are counted and stop the step",
    args=(
        InOut("g", "f32", "R L"),
        In("lat", "f16", "R 32*W"),
        Out("rows", "f32", "R"),
        InOut("tally", "u32", "T"),
        In("hyper", "f32", str(HYPER)),
    ),
    params="R C W L",
    kernels=(Kernel("rows", "signs/sign_slope.wgsl", grid="R", consts={"WG": 64}),),
    ref=_slope,
    backward="none: the optimiser of signs",
    tol={"g": transcendental(), "rows": transcendental(3), "tally": exact()},
    flops="12 * R * C",
    init=_init("lat", "hyper", "tally") | {"g": _spoilt},
    mag=lambda a, d: {"g": np.abs(np.nan_to_num(_slope(a, d)["g"], posinf=0.0))},
    cases=(
        case(R=1, C=2, L=2, W=1, T=4, spoilt=0),
        case(R=5, C=40, L=40, W=2, T=4, spoilt=0),
        case(R=37, C=72, L=96, W=3, T=4, spoilt=1),
        case(R=65537, C=2, L=2, W=1, T=4, spoilt=0),
        full_case(R=3584, C=760, L=768, W=24, T=4, spoilt=0),
    ),
)


def _moments(a: Arrays, d: Dims) -> Arrays:
    if a["tally"][STOP]:
        return {"ema": a["ema"]}
    b2, end = a["hyper"][4], d.R + d.C
    means = [a["rows"], a["partial"][:, : d.C].sum(axis=0) / d.R, [a["rows"].mean()]]
    ema = b2 * a["ema"][: end + 1] + (1 - b2) * np.concatenate(means)
    return {"ema": np.concatenate([ema, [a["ema"][end + 2], ref.first_scale(float(ema[end]))]])}


sign_moments = Op(
    "sign_moments",
    "the EMAs of the means of q² over rows, over columns and over all; nothing where the step has been stopped",
    args=(
        In("rows", "f32", "R"),
        In("partial", "f32", "P L"),
        InOut("ema", "f32", "R+C+3"),
        In("tally", "u32", "T"),
        In("hyper", "f32", str(HYPER)),
    ),
    params="R C L P",
    kernels=(Kernel("entries", "signs/sign_moments.wgsl", grid="cdiv(R + C, WG) + 1", consts={"WG": 64}),),
    ref=_moments,
    backward="none: the optimiser of signs",
    tol=reduction("R + P"),
    flops="3 * (R + C) + P * C",
    init={
        **_init("ema", "hyper", "tally"),
        "rows": lambda rng, d, shape: 1e-9 * rng.random(shape),
        "partial": lambda rng, d, shape: 1e-8 * rng.random(shape),
    },
    mag=lambda a, d: {"ema": np.abs(_moments(a, d)["ema"])},
    cases=(
        case(R=1, C=2, L=2, P=1, T=4, stopped=0),
        case(R=63, C=40, L=40, P=2, T=4, stopped=0),
        case(R=37, C=72, L=96, P=3, T=4, stopped=1),
        case(R=200, C=72, L=96, P=3, T=4, stopped=0),
        full_case(R=3584, C=760, L=768, P=64, T=4, stopped=0),
    ),
)

# ── latents and bits ──


def _stepped(optimiser: str) -> Callable[[Arrays, Dims], Arrays]:
    def value(a: Arrays, d: Dims) -> Arrays:
        outputs: Arrays = {
            name: a[name].copy() for name in ("lat", "bits", "tally", "mom", "second") if name in a
        }
        if a["tally"][STOP]:
            return outputs
        hyper, (scale_before, scale) = _hyper_of(d), a["ema"][d.R + d.C + 1 :]
        before = a["mom"][:, : d.C] * scale_before if "mom" in a else np.zeros((d.R, d.C))
        second = a["second"][:, : d.C] if "second" in a else np.zeros((d.R, d.C))
        rows, cols, mean = np.split(a["ema"][: d.R + d.C + 1], [d.R, d.R + d.C])
        moments = ref.Moments(rows, cols, float(mean[0]), before, second)
        u = ref.direction(a["q"][:, : d.C], moments, hyper, optimiser)
        signs = _signs(a["bits"], d)
        halves = a["lat"][:, : d.C].astype(np.float16)
        lat, after, counts = ref.move(halves, signs, u, hyper, key=d.key)
        outputs["lat"][:, : d.C] = lat
        outputs["bits"][: d.R] ^= ref_linear.pack_signs(2.0 * (after != signs) - 1.0)
        places = ((SATURATED, "saturated"), (CLAMPED, "clamped"), (FLIPS + d.slot, "flips"))
        for place, name in places:
            outputs["tally"][place] += counts[name]
        outputs["tally"][STEPPED] += 1
        if "mom" in a:
            outputs["mom"][:, : d.C] = moments.first / scale
        if "second" in a:
            outputs["second"][:, : d.C] = moments.second
        return outputs

    return value


def _step_op(optimiser: str, summary: str, more: tuple[Arg, ...]) -> Op:
    name = f"sign_step_{optimiser.replace('-', '_')}"
    kept = {"mom": f16_storage(), "second": pointwise()}
    return Op(
        name,
        summary,
        args=(
            In("q", "f32", "R L"),
            InOut("lat", "f16", "R 32*W"),
            InOut("bits", "u32", "B W"),
            In("ema", "f32", "R+C+3"),
            *more,
            InOut("tally", "u32", "T"),
            In("hyper", "f32", str(HYPER)),
        ),
        params="R C W L key slot",
        kernels=(
            Kernel(
                "pairs",
                f"signs/{name}.wgsl",
                grid="cdiv(R * 16 * W, WG)",
                consts={"WG": 128},
                libs=("lib/sign_factors.wgsl", "lib/sign_move.wgsl"),
            ),
        ),
        ref=_stepped(optimiser),
        backward="none: the optimiser of signs",
        tol={"lat": half_step(), "bits": exact(), "tally": exact()} | {a.name: kept[a.name] for a in more},
        flops="40 * R * C",
        init=_init("q", "lat", "bits", "ema", "tally", "hyper", *(a.name for a in more)),
        cases=(
            *_sizes(key=0x9D3F21C7, slot=1),
            case(R=37, C=72, L=96, B=37, W=3, T=8, key=5, slot=2, eta=0.0),
            case(R=37, C=72, L=96, B=37, W=3, T=8, key=5, slot=0, step=300, hyst=0.01),
            case(R=37, C=72, L=96, B=37, W=3, T=8, key=5, slot=0, stopped=1),
            case(R=65537, C=2, L=2, B=65537, W=1, T=8, key=5, slot=0),
        ),
    )


sign_step_fact = _step_op(
    "fact", "lat -= eta·u, u along q / sqrt(factored second moment); bits left behind flip", ()
)
sign_step_fact_mom = _step_op(
    "fact-mom",
    "lat -= eta·u, u along the EMA of q / sqrt(factored second moment); bits left behind flip",
    (InOut("mom", "f16", "R 32*W"),),
)
sign_step_adam = _step_op(
    "adam",
    "lat -= eta·u, u along the EMA of q / sqrt(EMA of q²); bits left behind flip",
    (InOut("mom", "f16", "R 32*W"), InOut("second", "f32", "R 32*W")),
)
STEPS = {"fact": sign_step_fact, "fact-mom": sign_step_fact_mom, "adam": sign_step_adam}

# ── around the steps ──


def _guard(a: Arrays, d: Dims) -> Arrays:
    tally = a["tally"].copy()
    if not np.isfinite(a["loss"]).all():
        tally[STOP] = 1
    return {"tally": tally}


def _loss(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    values = rng.random(shape)
    if d.bad:
        values[-1] = (np.nan, np.inf, -np.inf)[d.bad - 1]
    return values


sign_guard = Op(
    "sign_guard",
    "a loss that is not finite stops the step's sign updates",
    args=(In("loss", "f32", "N"), InOut("tally", "u32", "T")),
    params="N",
    kernels=(Kernel("one", "signs/sign_guard.wgsl", grid="1", consts={"WG": 256}),),
    ref=_guard,
    backward="none: the optimiser of signs",
    tol=exact(),
    flops="N",
    init={"loss": _loss, "tally": _tally},
    cases=(
        case(N=1, T=4, bad=0),
        case(N=1, T=4, bad=1),
        case(N=257, T=4, bad=2),
        case(N=1000, T=4, bad=3),
        case(N=1000, T=4, bad=0),
    ),
)


def _first(a: Arrays, d: Dims) -> Arrays:
    latents = ref.first_latents(2.0 * _signs(a["bits"], d) - 1.0, key=d.key, tau=d.span / 2)
    return {"lat": np.pad(latents.astype(np.float64), ((0, 0), (0, 32 * d.W - d.C)))}


sign_latents = Op(
    "sign_latents",
    "the first latents: magnitudes uniform in (0, span), the signs of the bits; 0 where there is no sign",
    args=(In("bits", "u32", "B W"), Out("lat", "f16", "R 32*W")),
    params="R C W key span:f32",
    kernels=(Kernel("pairs", "signs/sign_latents.wgsl", grid="cdiv(R * 16 * W, WG)", consts={"WG": 64}),),
    ref=_first,
    backward="none: the start of the optimiser of signs",
    tol=exact(),
    flops="8 * R * C",
    init={"bits": _bits},
    cases=(
        case(R=1, C=2, B=1, W=1, key=1, span=0.5),
        case(R=5, C=40, B=32, W=2, key=0xFFFFFFFF, span=0.5),
        case(R=37, C=72, B=37, W=3, key=77, span=0.002),
        case(R=65537, C=2, B=65537, W=1, key=5, span=0.5),
        full_case(R=3584, C=760, B=3584, W=24, key=3, span=0.5),
    ),
)


def _turn(a: Arrays, d: Dims) -> Arrays:
    return {"turned": ref_linear.pack_signs(ref_linear.unpack_signs(a["bits"], d.C).T)}


sign_turn = Op(
    "sign_turn",
    "the words of the transposed signs; signs behind the last row are 0",
    args=(In("bits", "u32", "R W"), Out("turned", "u32", "C V")),
    params="R W C V=cdiv(R,32)",
    kernels=(Kernel("words", "signs/sign_turn.wgsl", grid="cdiv(C * V, WG)", consts={"WG": 64}),),
    ref=_turn,
    backward="none: a copy in another order",
    tol=exact(),
    flops="R * C",
    init={"bits": _bits},
    cases=(
        case(R=1, C=1, W=1),
        case(R=5, C=40, W=2),
        case(R=67, C=130, W=5),
        case(R=128, C=96, W=3),
        full_case(R=3584, C=768, W=24),
    ),
)


def _flips(a: Arrays, d: Dims) -> Arrays:
    counts = a["counts"].copy()
    counts[d.slot] += int(np.bitwise_count(a["bits"] ^ a["start"]).sum())
    return {"counts": counts}


sign_flips = Op(
    "sign_flips",
    "adds the number of bits in which two bitmaps differ to counts[slot]",
    args=(In("bits", "u32", "E"), In("start", "u32", "E"), InOut("counts", "u32", "S")),
    params="E slot",
    kernels=(Kernel("words", "signs/sign_flips.wgsl", grid="cdiv(E, WG)", consts={"WG": 64}),),
    ref=_flips,
    backward="none: a statistic",
    tol=exact(),
    flops="E",
    init={
        "bits": _bits,
        "start": _bits,
        "counts": lambda rng, d, shape: rng.integers(0, 9, shape, np.uint32),
    },
    cases=(
        case(E=1, S=3, slot=0),
        case(E=1025, S=3, slot=2),
        case(E=65536 * 64 + 1, S=1, slot=0),
        full_case(E=3584 * 24, S=3, slot=1),
    ),
)


def column_chunks(rows: int) -> int:
    """Chunks P of the rows of q over which column sums are split."""
    return max(1, min(64, cdiv(rows, 64)))
