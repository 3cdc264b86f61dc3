"""GEMMs with dense and packed-sign weights, and the column scales and sums of binary low-rank linears.

Weights are [M, K]. `nt` contracts over K (a linear's forward), `nn` over M (its input gradient). Sign weights are u32 words
[M, W] with 32 signs each, read as they are: no dense matrix is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.gpu import Recorder
from nvgpu.gpu.shader import Scalar
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
    column_sums,
    full_case,
    pieces,
)
from nvgpu.ops.tolerance import half_inputs, matmul, pointwise, reduction
from nvgpu.ref import elementwise as ref_elementwise
from nvgpu.ref import linear as ref

_ROWS_OF_VEC4 = "inner % 4 == 0 and lda % 4 == 0 and x0 % 4 == 0"
BODIES: dict[str, tuple[str, str, dict[str, str | Scalar]]] = {
    "tiles": ("gpu", "cdiv(N, 128) * cdiv({outer}, 128)", {}),
    "registers": ("cpu", "cdiv(N, 8 * WG) * cdiv({outer}, 16)", {"WG": 8}),
}


@dataclass(frozen=True)
class _Weights:
    """How weights are stored: a binding, the libraries that read them, and the kernels' names and conditions for it."""

    tail: str
    aliases: Mapping[str, str]
    libs: tuple[str, ...]
    fits: tuple[str, ...] = ()
    feature: tuple[str, str] | None = None  # a device feature and what the shader enables for it


_F32_VEC4 = _Weights(
    "vec4", {"PIECE": "vec4<f32>"}, ("input_4", "weights_f32_4"), (_ROWS_OF_VEC4, "K % 4 == 0")
)
_F32 = _Weights("scalar", {"PIECE": "f32"}, ("input_1", "weights_f32_1"))


def _f16(kind: str) -> tuple[_Weights, ...]:
    """f16 as such where the device has it, else packed; rows of weights, and so the inputs of nt, are whole vec4s."""
    storage = (("native", "vec4<f16>", ("shader-f16", "f16")), ("packed", "vec2<u32>", None))
    inputs = [("vec4", "vec4<f32>", "input_4", (_ROWS_OF_VEC4,)), ("scalar", "f32", "input_1", ())]
    return tuple(
        _Weights(
            f"{half}-{width}",
            {"PIECE": piece, "HALF4": half4},
            (f"half4_{half}", lib, "weights_f16"),
            ("K % 4 == 0", *fits),
            feature,
        )
        for half, half4, feature in storage
        for width, piece, lib, fits in (inputs if kind == "nn" else inputs[:1])
    )


def _packed_signs(kind: str) -> tuple[_Weights, ...]:
    return (
        _Weights(
            "vec4",
            {"PIECE": "vec4<f32>", "SCALES": "f32"},
            ("input_4", f"weights_signs_{kind}"),
            (_ROWS_OF_VEC4,),
        ),
        _Weights("scalar", {"PIECE": "f32", "SCALES": "f32"}, ("input_1", f"weights_signs_{kind}")),
    )


def _matrix(shader: str, kind: str, stored: str, *, acc: bool, parts: bool = False) -> Kernel:
    """The kernel on matrix units; the contraction is whole vec4s, and f16 rows are whole vec4<u32>s of eight."""
    outer, inner = ("M", "K") if kind == "nt" else ("K", "M")
    libs = ("input_4", f"matrix_{stored}_{kind}", "gemm_matrix")
    cut = {"PARTS": "P", "PER": f"cdiv(cdiv({inner}, P), 32) * 32"} if parts else {"PER": 0}
    grid = f"cdiv(N, 128) * cdiv({outer}, 128)" + (" * P" if parts else "")
    whole = f"N % 128 == 0 and {outer} % 128 == 0 and {inner} % 32 == 0"
    return Kernel(
        f"matrix-{stored}",
        f"linear/{shader}.wgsl",
        grid=grid,
        consts={"ACC": acc, "WHOLE": f"{whole} and {grid} <= 65535", **cut},
        aliases={
            "PIECE": "vec4<f32>",
            **({"HALF4": "vec4<u32>"} if stored == "f16" else {"SCALES": "vec4<f32>"}),
        },
        libs=tuple(f"lib/{lib}.wgsl" for lib in (*libs, *(() if parts else ("parts_one",)))),
        enables=("f16", "wgpu_cooperative_matrix"),
        when="gpu",
        needs=("shader-f16", "cooperative-matrix"),
        fits=_ROWS_OF_VEC4 + (" and K % 8 == 0" if stored == "f16" else ""),
        precision="mixed",
        tol=half_inputs("1" if parts else inner),  # a part can have few terms
    )


def _kernels(shader: str, kind: str, weights: Sequence[_Weights], *, acc: bool) -> tuple[Kernel, ...]:
    """Workgroup tiles on GPUs, register tiles on CPU adapters."""
    libs = {"tiles": (f"tile_{kind}", "gemm_tiles"), "registers": (f"block_{kind}", "gemm_registers")}
    return tuple(
        Kernel(
            f"{body}-{stored.tail}",
            f"linear/{shader}.wgsl",
            grid=grid.format(outer="M" if kind == "nt" else "K"),
            consts={"ACC": acc, **consts},
            aliases=stored.aliases,
            libs=tuple(f"lib/{lib}.wgsl" for lib in (*stored.libs, *libs[body])),
            enables=stored.feature[1:] if stored.feature else (),
            when=when,
            needs=stored.feature[:1] if stored.feature else (),
            fits=" and ".join(stored.fits) or "True",
        )
        for body, (when, grid, consts) in BODIES.items()
        for stored in weights
    )


_NT_FIELDS = "N M K inner=K outer=M lda=K x0=0"
_NN_FIELDS = "N M K inner=M outer=K"


def _weights(half: bool) -> Arg:
    return In("w", "f16" if half else "f32", "M K")


def _dense_cases(*, half: bool = False) -> tuple[Case, ...]:
    """Aligned and odd sizes around the tiles, and model sizes; f16 rows are read as vec4."""
    odd = () if half else (case(N=1, M=1, K=1), case(N=7, M=5, K=3), case(N=37, M=67, K=130))
    return (
        *odd,
        case(N=3, M=64, K=64),
        case(N=65, M=68, K=132),
        case(N=67, M=76, K=136),
        case(N=128, M=128, K=128),
        case(N=127, M=63, K=60),
        case(N=129, M=65, K=68),
        full_case(N=4096, M=3584, K=1024),
    )


def _with(cases: tuple[Case, ...], **more: Callable[[Any], int]) -> tuple[Case, ...]:
    return tuple(Case({**c.values, **{k: f(c.values) for k, f in more.items()}}, c.quick) for c in cases)


def _nt(a: Arrays, d: Dims) -> np.ndarray[Any, Any]:
    return ref.matmul_nt(a["x"], a["w"])


def _into(a: Arrays, d: Dims) -> Arrays:
    a["y"][:, d.y0 : d.y0 + d.M] = _nt(a, d)
    return {"y": a["y"]}


def _into_mag(a: Arrays, d: Dims) -> Arrays:
    mag = np.zeros_like(a["y"])
    mag[:, d.y0 : d.y0 + d.M] = np.abs(a["x"]) @ np.abs(a["w"]).T
    return {"y": mag}


def _nn_acc(a: Arrays, d: Dims) -> Arrays:
    return {"y": a["y"] + ref.matmul_nn(a["x"][:, d.x0 : d.x0 + d.M], a["w"])}


def _nn_acc_mag(a: Arrays, d: Dims) -> Arrays:
    return {"y": np.abs(a["y"]) + np.abs(a["x"][:, d.x0 : d.x0 + d.M]) @ np.abs(a["w"])}


def _dense_kernels(shader: str, kind: str, *, half: bool, acc: bool = False) -> tuple[Kernel, ...]:
    if not half:
        return _kernels(shader, kind, (_F32_VEC4, _F32), acc=acc)
    return (_matrix(shader, kind, "f16", acc=acc), *_kernels(shader, kind, _f16(kind), acc=acc))


def _dense_nt(half: bool) -> tuple[Op, Op]:
    tail, words = ("_f16", " from f16 weights") if half else ("", "")
    nt = Op(
        f"matmul_nt{tail}",
        f"y = x · wᵀ{words}",
        args=(In("x", "f32", "N K"), _weights(half), Out("y", "f32", "N M")),
        params=f"{_NT_FIELDS} ldy=M y0=0",
        kernels=_dense_kernels(f"matmul_nt{tail}", "nt", half=half),
        ref=lambda a, d: {"y": _nt(a, d)},
        backward=f"matmul_nn{tail}",
        tol=matmul("K"),
        flops="2 * N * M * K",
        mag=lambda a, d: {"y": np.abs(a["x"]) @ np.abs(a["w"]).T},
        cases=(*_dense_cases(half=half), *(() if half else (case(N=2, M=16 * 65535 + 1, K=1),))),
    )
    into = Op(
        f"matmul_nt_into{tail}",
        f"columns y0 .. y0 + M of y = x · wᵀ{words}; the others stay",
        args=(In("x", "f32", "N K"), _weights(half), InOut("y", "f32", "N ldy")),
        params=f"{_NT_FIELDS} ldy y0",
        kernels=_dense_kernels(f"matmul_nt_into{tail}", "nt", half=half),
        ref=_into,
        backward=f"matmul_nn_acc{tail}",
        tol=matmul("K"),
        flops="2 * N * M * K",
        mag=_into_mag,
        cases=_with(_dense_cases(half=half), ldy=lambda v: v["M"] + 9, y0=lambda v: 5),
    )
    return nt, into


def _dense_nn(half: bool) -> tuple[Op, Op]:
    tail, words = ("_f16", " from f16 weights") if half else ("", "")
    nn = Op(
        f"matmul_nn{tail}",
        f"y = x · w{words}",
        args=(In("x", "f32", "N M"), _weights(half), Out("y", "f32", "N K")),
        params=f"{_NN_FIELDS} lda=M x0=0 ldy=K y0=0",
        kernels=_dense_kernels(f"matmul_nn{tail}", "nn", half=half),
        ref=lambda a, d: {"y": ref.matmul_nn(a["x"], a["w"])},
        backward="none: it is the backward of matmul_nt; frozen weights need no gradient",
        tol=matmul("M"),
        flops="2 * N * M * K",
        mag=lambda a, d: {"y": np.abs(a["x"]) @ np.abs(a["w"])},
        cases=_dense_cases(half=half),
    )
    acc = Op(
        f"matmul_nn_acc{tail}",
        f"y += columns x0 .. x0 + M of x, times w{words}",
        args=(In("x", "f32", "N lda"), _weights(half), InOut("y", "f32", "N K")),
        params=f"{_NN_FIELDS} lda x0 ldy=K y0=0",
        kernels=_dense_kernels(f"matmul_nn_acc{tail}", "nn", half=half, acc=True),
        ref=_nn_acc,
        backward="none: it is the backward of matmul_nt_into; frozen weights need no gradient",
        tol=matmul("M"),
        flops="2 * N * M * K",
        mag=_nn_acc_mag,
        cases=(
            *_with(_dense_cases(half=half), lda=lambda v: v["M"] + 9, x0=lambda v: 5),
            case(N=65, M=68, K=132, lda=80, x0=8),
            full_case(N=256, M=16384, K=1024, lda=32768, x0=16384),
        ),
    )
    return nn, acc


matmul_nt, matmul_nt_into = _dense_nt(half=False)
matmul_nn, matmul_nn_acc = _dense_nn(half=False)
matmul_nt_f16, matmul_nt_into_f16 = _dense_nt(half=True)
matmul_nn_f16, matmul_nn_acc_f16 = _dense_nn(half=True)

# ── packed signs ──


def _words(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return ref.pack_signs(rng.choice([-1.0, 1.0], (d.M, d.K)))


_SIGN_CASES = (
    case(N=1, M=1, K=1),
    case(N=3, M=64, K=40),
    case(N=128, M=256, K=128),
    case(N=131, M=132, K=264),
    case(N=65, M=67, K=136),
    case(N=129, M=65, K=64),
    full_case(N=4096, M=3584, K=768),
)


def _signs(name: str, summary: str, kind: str, *, out: bool = False, acc: bool = False, backward: str) -> Op:
    inner = "K" if kind == "nt" else "M"
    outer = "M" if kind == "nt" else "K"
    result = f"N {outer}"
    product = ref.sign_matmul_nt if kind == "nt" else ref.sign_matmul_nn

    def scales(a: Arrays, d: Dims) -> np.ndarray[Any, Any]:
        return a["cout"] if out else np.ones(d[outer])

    def value(a: Arrays, d: Dims) -> Arrays:
        return {"y": (a["y"] if acc else 0.0) + product(a["x"], a["cin"], a["w"], scales(a, d))}

    def mag(a: Arrays, d: Dims) -> Arrays:
        row = (np.abs(a["x"]) @ np.abs(a["cin"]))[:, None] * np.abs(scales(a, d))
        return {"y": (np.abs(a["y"]) if acc else 0.0) + row}

    return Op(
        name,
        summary,
        args=(
            In("x", "f32", f"N {inner}"),
            In("cin", "f32", inner),
            In("w", "u32", "M W"),
            *([In("cout", "f32", outer)] if out else []),
            (InOut if acc else Out)("y", "f32", result),
        ),
        params=(
            (_NT_FIELDS + " ldy=M y0=0" if kind == "nt" else _NN_FIELDS + " lda=M x0=0 ldy=K y0=0")
            + " W=cdiv(K,32)"
        ),
        kernels=(_matrix(name, kind, "signs", acc=acc), *_kernels(name, kind, _packed_signs(kind), acc=acc)),
        ref=value,
        backward=backward,
        tol=matmul(inner),
        flops="2 * N * M * K",
        init={"w": _words},
        mag=mag,
        cases=_SIGN_CASES,
    )


sign_matmul_nt = _signs(
    "sign_matmul_nt", "y_nm = Σ_k x_nk cin_k s_mk from packed signs", "nt", backward="sign_matmul_nn"
)
sign_matmul_nt_scaled = _signs(
    "sign_matmul_nt_scaled",
    "y_nm = cout_m Σ_k x_nk cin_k s_mk from packed signs",
    "nt",
    out=True,
    backward="sign_matmul_nn, colsum_mul_partial",
)
sign_matmul_nt_scaled_acc = _signs(
    "sign_matmul_nt_scaled_acc",
    "y_nm += cout_m Σ_k x_nk cin_k s_mk from packed signs",
    "nt",
    out=True,
    acc=True,
    backward="sign_matmul_nn, colsum_mul_partial",
)
sign_matmul_nn = _signs(
    "sign_matmul_nn",
    "y_nk = Σ_m x_nm cin_m s_mk from packed signs",
    "nn",
    backward="none: it is the backward of sign_matmul_nt",
)
sign_matmul_nn_scaled = _signs(
    "sign_matmul_nn_scaled",
    "y_nk = cout_k Σ_m x_nm cin_m s_mk from packed signs",
    "nn",
    out=True,
    backward="sign_matmul_nt, colsum_mul_partial",
)
sign_matmul_nn_scaled_acc = _signs(
    "sign_matmul_nn_scaled_acc",
    "y_nk += cout_k Σ_m x_nm cin_m s_mk from packed signs",
    "nn",
    out=True,
    acc=True,
    backward="sign_matmul_nt, colsum_mul_partial",
)


def _parts(a: Arrays, d: Dims) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    per = cdiv(cdiv(d.M, d.P), 32) * 32
    x = a["x"][:, d.x0 : d.x0 + d.M]
    cuts = [slice(i * per, (i + 1) * per) for i in range(d.P)]
    return [x[:, c] for c in cuts], [a["w"][c] for c in cuts]


matmul_nn_parts_f16 = Op(
    "matmul_nn_parts_f16",
    "columns x0 .. x0 + M of x, times w from f16 weights, the contraction cut into P parts to be summed",
    args=(In("x", "f32", "N lda"), _weights(True), Out("y", "f32", "P N K")),
    params="N M K inner=M outer=K lda x0 ldy=K",
    kernels=(_matrix("matmul_nn_parts_f16", "nn", "f16", acc=False, parts=True),),
    ref=lambda a, d: {"y": np.stack([ref.matmul_nn(x, w) for x, w in zip(*_parts(a, d), strict=True)])},
    backward="none: it is the backward of matmul_nt_into_f16; frozen weights need no gradient",
    tol=matmul("M"),
    flops="2 * N * M * K",
    mag=lambda a, d: {"y": np.stack([np.abs(x) @ np.abs(w) for x, w in zip(*_parts(a, d), strict=True)])},
    cases=(
        case(N=65, M=132, K=136, lda=140, x0=8, P=3),
        case(N=3, M=64, K=64, lda=64, x0=0, P=4),
        full_case(N=256, M=16384, K=1024, lda=32768, x0=16384, P=16),
    ),
    composed="matmul_nn_acc_f16",
)
# about what a large card runs at a time; fixed, so that results do not depend on the card
_TILES_AT_ONCE = 256


def parts_for(rec: Recorder, rows: int, width: int, contraction: int) -> int:
    """Parts into which to cut the contraction of a result `[rows, width]` for `matmul_nn_parts_f16`; 0: it does not run."""
    if rec.precision != "mixed" or not rec.device.matrix_units or width % 4 or contraction % 4:
        return 0
    return min(max(_TILES_AT_ONCE // (cdiv(rows, 128) * cdiv(width, 128)), 1), cdiv(contraction, 512))


# ── column scales and sums ──

_COLUMN_CASES = (
    case(N=1, C=1),
    case(N=5, C=63),
    case(N=67, C=130),
    case(N=67, C=132),
    full_case(N=4096, C=3584),
)

col_scale = Op(
    "col_scale",
    "y = x with column c times g[c]",
    args=(In("x", "f32", "N C"), In("g", "f32", "C"), Out("y", "f32", "N C")),
    params="N C",
    kernels=pieces("entries", "linear/col_scale.wgsl", "N * C", "C"),
    ref=lambda a, d: {"y": ref_elementwise.col_scale(a["x"], a["g"])},
    backward="col_scale, colsum_mul_partial",
    tol=pointwise(),
    flops="N * C",
    cases=_COLUMN_CASES,
)
col_scale_acc = Op(
    "col_scale_acc",
    "y += x with column c times g[c]",
    args=(In("x", "f32", "N C"), In("g", "f32", "C"), InOut("y", "f32", "N C")),
    params="N C",
    kernels=pieces("entries", "linear/col_scale_acc.wgsl", "N * C", "C"),
    ref=lambda a, d: {"y": a["y"] + ref_elementwise.col_scale(a["x"], a["g"])},
    backward="col_scale, colsum_mul_partial",
    tol=pointwise(),
    flops="2 * N * C",
    mag=lambda a, d: {"y": np.abs(a["y"]) + np.abs(a["x"] * a["g"])},
    cases=_COLUMN_CASES,
)


def _chunks(a: Arrays, d: Dims, b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    parts = [slice(i * d.rows, (i + 1) * d.rows) for i in range(d.P)]
    return np.stack([ref_elementwise.colsum_mul(a["a"][s], b[s]) for s in parts])


colsum_mul_partial = Op(
    "colsum_mul_partial",
    "partial = column sums of a·b over P chunks of rows",
    args=(In("a", "f32", "N C"), In("b", "f32", "N C"), Out("partial", "f32", "P C")),
    params="N C P rows=cdiv(N,P)",
    kernels=column_sums("linear/colsum_mul_partial.wgsl", "P"),
    ref=lambda a, d: {"partial": _chunks(a, d, a["b"])},
    backward="none: it forms parameter gradients",
    tol=reduction("rows"),
    flops="2 * N * C",
    mag=lambda a, d: {"partial": np.abs(_chunks({"a": np.abs(a["a"])}, d, np.abs(a["b"])))},
    cases=(
        case(N=1, C=1, P=1),
        case(N=5, C=63, P=2),
        case(N=67, C=130, P=3),
        case(N=67, C=132, P=3),
        case(N=5, C=4, P=4),
        full_case(N=4096, C=3584, P=64),
    ),
)
