"""Pointwise ops over E elements, f16 and f32 conversions, and the last step of every reduction over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ops.table import (
    Arg,
    Arrays,
    Dims,
    In,
    InOut,
    Kernel,
    Op,
    Out,
    case,
    column_sums,
    full_case,
    pieces,
)
from nvgpu.ops.tolerance import exact, f16_storage, pointwise, reduction, transcendental
from nvgpu.ref import elementwise as ref

_Array = np.ndarray[Any, Any]

_EDGES = (case(E=1), case(E=63), case(E=64), case(E=65), case(E=997), case(E=1028))
_MODEL = full_case(E=4096 * 3584)
_WIDE = (case(E=1021, wide=1), case(E=1020, wide=1))


def row_chunks(rows: int) -> int:
    """How many chunks of rows the `*_partial` ops cut `rows` into: the P of their result."""
    return min(64, -(-rows // 32))


def _kernel(shader: str) -> tuple[Kernel, ...]:
    return pieces("flat", f"elementwise/{shader}.wgsl", "E", "E")


def _half4(shader: str, fits: str = "True") -> tuple[Kernel, ...]:
    """Four elements per invocation; f16 as such where the device has it, else packed into u32."""
    path, grid = f"elementwise/{shader}.wgsl", "cdiv(E, 4 * WG)"
    return (
        Kernel(
            "native",
            path,
            grid=grid,
            consts={"WG": 64},
            aliases={"HALF4": "vec4<f16>"},
            libs=("lib/half4_native.wgsl",),
            enables=("f16",),
            needs=("shader-f16",),
            fits=fits,
        ),
        Kernel(
            "packed",
            path,
            grid=grid,
            consts={"WG": 64},
            aliases={"HALF4": "vec2<u32>"},
            libs=("lib/half4_packed.wgsl",),
            fits=fits,
        ),
    )


def _ins(names: str) -> tuple[Arg, ...]:
    return tuple(In(name, "f32", "E") for name in names.split())


def _outs(names: str) -> tuple[Arg, ...]:
    return tuple(Out(name, "f32", "E") for name in names.split())


def _activations(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Of a gate: a few units, or so large that a naive exp overflows."""
    return (60.0 if d.get("wide") else 3.0) * rng.standard_normal(shape)


# ── sums and scalings ──

add = Op(
    "add",
    "y = a + b",
    args=(*_ins("a b"), *_outs("y")),
    params="E",
    kernels=_kernel("add"),
    ref=lambda a, d: {"y": ref.add(a["a"], a["b"])},
    backward="none: the gradient passes to both as it is",
    tol=pointwise(1),
    flops="E",
    cases=(*_EDGES, full_case(E=4096 * 1024)),
)

accumulate = Op(
    "accumulate",
    "y += x",
    args=(*_ins("x"), InOut("y", "f32", "E")),
    params="E",
    kernels=_kernel("accumulate"),
    ref=lambda a, d: {"y": ref.add(a["y"], a["x"])},
    backward="none: the gradient passes to both as it is",
    tol=pointwise(1),
    flops="E",
    cases=(*_EDGES, full_case(E=4096 * 1024)),
)

scale = Op(
    "scale",
    "y = s * x",
    args=(*_ins("x"), *_outs("y")),
    params="E s:f32",
    kernels=_kernel("scale"),
    ref=lambda a, d: {"y": ref.scale(a["x"], s=float(np.float32(d.s)))},
    backward="scale",
    tol=pointwise(1),
    flops="E",
    cases=(
        case(E=1, s=-2.5),
        case(E=65, s=1.0 / 4096.0),
        case(E=997, s=0.1),
        case(E=1028, s=0.1),
        case(E=65535 * 64 + 1, s=3.0),
        full_case(E=4096 * 1024, s=0.1),
    ),
)

# ── gates ──

swiglu_fwd = Op(
    "swiglu_fwd",
    "y = silu(gate) * up",
    args=(*_ins("gate up"), *_outs("y")),
    params="E",
    kernels=_kernel("swiglu_fwd"),
    ref=lambda a, d: {"y": ref.swiglu_fwd(a["gate"], a["up"])},
    backward="swiglu_bwd",
    tol=transcendental(),
    flops="6 * E",
    init={"gate": _activations},
    cases=(*_EDGES, *_WIDE, _MODEL),
)


def _swiglu_bwd(a: Arrays, d: Dims) -> Arrays:
    dgate, dup = ref.swiglu_bwd(a["gate"], a["up"], a["dy"])
    return {"dgate": dgate, "dup": dup}


swiglu_bwd = Op(
    "swiglu_bwd",
    "dgate and dup of y = silu(gate) * up",
    args=(*_ins("gate up dy"), *_outs("dgate dup")),
    params="E",
    kernels=_kernel("swiglu_bwd"),
    ref=_swiglu_bwd,
    backward="none: it is the backward of swiglu_fwd",
    tol=transcendental(),
    flops="14 * E",
    init={"gate": _activations},
    cases=(*_EDGES, *_WIDE, _MODEL),
)

sigmoid_gate_fwd = Op(
    "sigmoid_gate_fwd",
    "y = x * sigmoid(gate)",
    args=(*_ins("x gate"), *_outs("y")),
    params="E",
    kernels=_kernel("sigmoid_gate_fwd"),
    ref=lambda a, d: {"y": ref.sigmoid_gate_fwd(a["x"], a["gate"])},
    backward="sigmoid_gate_bwd",
    tol=transcendental(),
    flops="5 * E",
    init={"gate": _activations},
    cases=(*_EDGES, *_WIDE, full_case(E=4096 * 2048)),
)


def _sigmoid_gate_bwd(a: Arrays, d: Dims) -> Arrays:
    dx, dgate = ref.sigmoid_gate_bwd(a["x"], a["gate"], a["dy"])
    return {"dx": dx, "dgate": dgate}


sigmoid_gate_bwd = Op(
    "sigmoid_gate_bwd",
    "dx and dgate of y = x * sigmoid(gate)",
    args=(*_ins("x gate dy"), *_outs("dx dgate")),
    params="E",
    kernels=_kernel("sigmoid_gate_bwd"),
    ref=_sigmoid_gate_bwd,
    backward="none: it is the backward of sigmoid_gate_fwd",
    tol=transcendental(),
    flops="11 * E",
    init={"gate": _activations},
    cases=(*_EDGES, *_WIDE, full_case(E=4096 * 2048)),
)

# ── conversions ──

f16_to_f32 = Op(
    "f16_to_f32",
    "y = x widened",
    args=(In("x", "f16", "E"), Out("y", "f32", "E")),
    params="E",
    kernels=_half4("f16_to_f32"),
    ref=lambda a, d: {"y": a["x"]},
    backward="none: it widens frozen tensors",
    tol=exact(),
    flops="E",
    cases=(*_EDGES, full_case(E=4096 * 1024)),
)

f32_to_f16 = Op(
    "f32_to_f16",
    "y = x rounded to f16; E is a multiple of 4",
    args=(In("x", "f32", "E"), Out("y", "f16", "E")),
    params="E",
    kernels=_half4("f32_to_f16", fits="E % 4 == 0"),
    ref=lambda a, d: {"y": a["x"]},
    backward="none: gradients stay in f32",
    tol=f16_storage(),
    flops="E",
    cases=(case(E=4), case(E=252), case(E=256), case(E=260), case(E=3988), full_case(E=4096 * 1024)),
)

# ── column sums ──

colsum_acc = Op(
    "colsum_acc",
    "y += the column sums of partial",
    args=(In("partial", "f32", "P C"), InOut("y", "f32", "C")),
    params="P C",
    kernels=column_sums("elementwise/colsum_acc.wgsl", "1"),
    ref=lambda a, d: {"y": a["y"] + a["partial"].sum(axis=0)},
    backward="none: it accumulates gradients",
    tol=reduction("P + 1"),
    flops="P * C",
    mag=lambda a, d: {"y": np.abs(a["y"]) + np.abs(a["partial"]).sum(axis=0)},
    cases=(
        case(P=1, C=1),
        case(P=2, C=63),
        case(P=16, C=64),
        case(P=64, C=65),
        case(P=7, C=997),
        case(P=37, C=68),
        case(P=3, C=132),
        full_case(P=64, C=3584),
        full_case(P=16, C=262144),
    ),
)
