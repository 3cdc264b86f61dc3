"""The op table: one record per op is the source of its layout, its call, its params, its tests and its documentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any

import numpy as np

from nvgpu.errors import GpuError
from nvgpu.gpu import DTYPES, Buffer, Device, Recorder, const_lines, params_struct, resolve
from nvgpu.gpu.device import Pipeline
from nvgpu.gpu.shader import Scalar, ShaderText
from nvgpu.ops.tolerance import Tolerance

Arrays = dict[str, np.ndarray[Any, Any]]
Init = Callable[[np.random.Generator, "Dims", tuple[int, ...]], np.ndarray[Any, Any]]
_MAX_GROUPS = 65535


class Dims(dict[str, Any]):
    """Dimensions and params of one call, readable as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


_GLOBALS = {"__builtins__": {}, "cdiv": cdiv, "min": min, "max": max}


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, f"<{expression}>", "eval")


def evaluate(expression: str, dims: Mapping[str, Any]) -> Any:
    """Value of an expression of the table, such as `cdiv(K, 32)`."""
    return eval(_compiled(expression), _GLOBALS, dict(dims))


@dataclass(frozen=True)
class Arg:
    """A storage binding: `shape` is a list of expressions over the dimensions."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    mode: str

    @property
    def access(self) -> str:
        return "read" if self.mode == "in" else "read_write"


def In(name: str, dtype: str, shape: str) -> Arg:
    """A read binding; `shape` is blank-separated expressions, as in `In("w", "f32", "M K")`."""
    return Arg(name, dtype, tuple(shape.split()), "in")


def Out(name: str, dtype: str, shape: str) -> Arg:
    """A binding that the kernel writes whole."""
    return Arg(name, dtype, tuple(shape.split()), "out")


def InOut(name: str, dtype: str, shape: str) -> Arg:
    """A binding that the kernel updates."""
    return Arg(name, dtype, tuple(shape.split()), "inout")


@dataclass(frozen=True)
class Kernel:
    """One way to run an op.

    `grid`: one expression (that many workgroups, folded over x and y where they exceed 65535) or three.
    `consts`, `overrides`: values, or expressions over the dimensions (as strings).
    `libs`: files put behind the preamble. `when`: `any`, or `cpu` / `gpu` adapters only. `needs`: features.
    `fits`: an expression over the dimensions that must hold. `precision`: `mixed` kernels round f32 inputs to f16 and run
    only for recorders of that precision; `tol` is then their tolerance instead of the op's.
    """

    name: str
    shader: str
    grid: str | tuple[str, str, str]
    consts: Mapping[str, str | Scalar] = field(default_factory=dict)
    overrides: Mapping[str, str | Scalar] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    libs: tuple[str, ...] = ()
    enables: tuple[str, ...] = ()
    when: str = "any"
    needs: tuple[str, ...] = ()
    fits: str = "True"
    precision: str = "any"
    tol: Tolerance | Mapping[str, Tolerance] | None = None

    def runs_on(self, device: Device) -> bool:
        """Whether the device grants what the kernel needs."""
        return all(feature in device.features for feature in self.needs)

    def suits(self, device: Device, dims: Mapping[str, Any], precision: str = "f32") -> bool:
        """Whether this is a kernel to choose on the device, for these dimensions and this precision."""
        kind = self.when == "any" or self.when == ("cpu" if device.is_cpu else "gpu")
        allowed = self.precision in ("any", precision)
        return kind and allowed and self.runs_on(device) and bool(evaluate(self.fits, dims))


def pieces(name: str, shader: str, count: str, row: str) -> tuple[Kernel, ...]:
    """Kernels of a pointwise shader over `count` elements: a vec4 per invocation where `row` is a multiple of 4, else an f32."""
    grid = f"cdiv({count}, W * WG)"
    return (
        Kernel(
            "vec4",
            shader,
            grid=grid,
            consts={"W": 4, "WG": 256},
            aliases={"PIECE": "vec4<f32>"},
            fits=f"{row} % 4 == 0",
        ),
        Kernel(name, shader, grid=grid, consts={"W": 1, "WG": 64}, aliases={"PIECE": "f32"}),
    )


def column_sums(shader: str, chunks: str) -> tuple[Kernel, ...]:
    """Kernels of a sum over rows `[.., C]` in `chunks` chunks: 16 lanes share the rows of a vec4 of columns, or one has f32s."""
    grid = f"{chunks} * cdiv(C, W * COLS)"
    return (
        Kernel(
            "vec4",
            shader,
            grid=grid,
            consts={"W": 4, "COLS": 16, "ROWS": 16},
            aliases={"PIECE": "vec4<f32>"},
            when="gpu",
            fits="C % 4 == 0",
        ),
        Kernel(
            "columns", shader, grid=grid, consts={"W": 1, "COLS": 64, "ROWS": 1}, aliases={"PIECE": "f32"}
        ),
    )


@dataclass(frozen=True)
class Case:
    """A parity case: dimensions and params. `quick` ones run on every change, the others on real GPUs."""

    values: Mapping[str, Any]
    quick: bool = True

    @property
    def name(self) -> str:
        return ",".join(f"{k}={v}" for k, v in self.values.items())


def case(**values: Any) -> Case:
    return Case(values)


def full_case(**values: Any) -> Case:
    """A case at a real model's size."""
    return Case(values, quick=False)


@dataclass(frozen=True)
class _Plan:
    """What a call resolves to for given shapes and params."""

    pipeline: Pipeline
    params: bytes
    groups: tuple[int, int, int]
    flops: float
    nbytes: float


@dataclass(frozen=True, eq=False)
class Op:
    """One kernel's record; calling it records the dispatch.

    `params`: blank-separated `name`, `name:f32`, or `name=expression` (u32), packed in that order into the struct `Params`.
    `ref(arrays, dims) -> outputs`: the float64 definition. `backward`: the partner op(s), or the reason why there is none.
    `flops`: an expression over the dimensions. `init`: generators of inputs that standard normals do not suit.
    `prepare(arrays, dims)`: derives dependent inputs (such as saved forward values) in place.
    `tol`: one tolerance for all outputs, or one per output. `mag(arrays, dims) -> outputs`: for reductions whose terms
    cancel, the sum of the magnitudes of the terms of every output element. `composed`: for an op that exists on some
    devices only, the ops that do the same elsewhere.
    """

    name: str
    summary: str
    args: tuple[Arg, ...]
    params: str
    kernels: tuple[Kernel, ...]
    ref: Callable[[Arrays, Dims], Arrays]
    backward: str
    tol: Tolerance | Mapping[str, Tolerance]
    flops: str
    cases: tuple[Case, ...]
    init: Mapping[str, Init] = field(default_factory=dict)
    prepare: Callable[[Arrays, Dims], None] | None = None
    mag: Callable[[Arrays, Dims], Arrays] | None = None
    composed: str = ""

    def __post_init__(self) -> None:
        if self.name in OPS:
            raise ValueError(f"op {self.name} is registered twice")
        OPS[self.name] = self

    @property
    def fields(self) -> dict[str, str]:
        """Name and WGSL type of each member of `Params`."""
        out = {}
        for item in self.params.split():
            name, _, kind = item.partition("=")[0].partition(":")
            out[name] = kind or "u32"
        return out

    def complete(self, dims: Dims) -> Dims:
        """`dims` with the computed params added."""
        for item in self.params.split():
            name, _, expression = item.partition("=")
            if expression:
                dims[name.partition(":")[0]] = evaluate(expression, dims)
        return dims

    def shape_of(self, arg: Arg, dims: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(int(evaluate(axis, dims)) for axis in arg.shape)

    def text(self, kernel: Kernel, dims: Mapping[str, Any]) -> ShaderText:
        """The kernel's resolved WGSL for these dimensions."""
        preamble = const_lines({k: _value(v, dims) for k, v in kernel.consts.items()}, kernel.aliases)
        return resolve(kernel.shader, preamble + params_struct(self.fields), kernel.enables, kernel.libs)

    def __call__(self, rec: Recorder, *, kernel: Kernel | None = None, **given: Any) -> None:
        """Record one dispatch.

        Buffers go by argument name; other keywords are dimensions (where no shape tells them) and params. A buffer may have
        another shape than the record's, such as `[N, H*D]` for `N H D`, as long as the element count agrees; one axis is
        told by a buffer of any shape.

        Raises:
            GpuError: a missing or unknown argument, a dtype or size that does not fit, aliased outputs, or no kernel.
        """
        buffers = self._buffers(given)
        values = {k: v for k, v in given.items() if not isinstance(v, Buffer)}
        key = (
            self.name,
            kernel.name if kernel else rec.precision,
            *(b.shape for b in buffers),
            *values.items(),
        )
        plans: dict[Any, _Plan] = rec.device.plans
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = self._plan(rec, buffers, values, kernel)
        self._refuse_aliases(buffers)
        rec.dispatch(plan.pipeline, buffers, plan.params, plan.groups, plan.flops, plan.nbytes)

    def chosen(self, rec: Recorder, dims: Mapping[str, Any]) -> Kernel | None:
        """The kernel that a call with these dimensions runs; None where there is none."""
        return next((k for k in self.kernels if k.suits(rec.device, dims, rec.precision)), None)

    def _buffers(self, given: Mapping[str, Any]) -> list[Buffer]:
        try:
            buffers: list[Buffer] = [given[arg.name] for arg in self.args]
        except KeyError as e:
            raise GpuError(f"op {self.name}: argument {e.args[0]} is missing") from None
        for arg, buffer in zip(self.args, buffers, strict=True):
            if buffer.dtype != arg.dtype:
                raise GpuError(
                    f"op {self.name}: {arg.name} is {buffer.dtype} ({buffer.name}), expected {arg.dtype}"
                )
        return buffers

    def _plan(
        self, rec: Recorder, buffers: list[Buffer], values: dict[str, Any], kernel: Kernel | None
    ) -> _Plan:
        device, dims = rec.device, self._infer(buffers, values)
        kernel = kernel or self.chosen(rec, dims)
        if kernel is None:
            raise GpuError(f"op {self.name}: no kernel for {dict(dims)} on {device.adapter.label}")
        overrides = {k: _value(v, dims) for k, v in kernel.overrides.items()}
        consts = {k: _value(v, dims) for k, v in kernel.consts.items()}
        tags = ",".join(f"{k}={v}" for k, v in sorted({**consts, **overrides}.items()))
        label = f"{self.name}.{kernel.name}" + (f"[{tags}]" if tags else "")
        pipeline = device.pipeline(
            label, self.text(kernel, dims), tuple(a.access for a in self.args), overrides
        )
        nbytes = sum(
            b.nbytes * (2 if a.mode == "inout" else 1) for a, b in zip(self.args, buffers, strict=True)
        )
        flops = float(evaluate(self.flops, dims))
        return _Plan(
            pipeline, self._pack(dims), _groups(kernel, {**dims, **consts, **overrides}), flops, nbytes
        )

    def _infer(self, buffers: list[Buffer], values: dict[str, Any]) -> Dims:
        dims = Dims(values)
        for arg, buffer in zip(self.args, buffers, strict=True):
            shape = (buffer.size,) if len(arg.shape) == 1 else buffer.shape
            if len(arg.shape) == len(shape):
                for axis, size in zip(arg.shape, shape, strict=True):
                    if axis.isidentifier():
                        dims.setdefault(axis, size)
        try:
            self.complete(dims)
            shapes = [self.shape_of(arg, dims) for arg in self.args]
        except NameError as e:
            raise GpuError(
                f"op {self.name}: dimension or param {e.name} is not given and no shape tells it"
            ) from None
        for arg, buffer, shape in zip(self.args, buffers, shapes, strict=True):
            if math.prod(shape) != buffer.size:
                raise GpuError(
                    f"op {self.name}: {arg.name} ({buffer.name}) has shape {list(buffer.shape)}, expected {list(shape)}"
                )
        return dims

    def _pack(self, dims: Mapping[str, Any]) -> bytes:
        kinds = {"u32": "<u4", "f32": "<f4", "i32": "<i4"}
        layout = np.dtype([(name, kinds[kind]) for name, kind in self.fields.items()])
        record = np.zeros((), layout)
        for name in self.fields:
            if name not in dims:
                raise GpuError(f"op {self.name}: param {name} is missing")
            record[name] = dims[name]
        return record.tobytes()

    def _refuse_aliases(self, buffers: list[Buffer]) -> None:
        for i, arg in enumerate(self.args):
            if arg.mode == "in":
                continue
            for j, other in enumerate(buffers):
                if (
                    j != i
                    and buffers[i].raw is other.raw
                    and (self.args[j].mode == "in" or buffers[i].overlaps(other))
                ):
                    raise GpuError(
                        f"op {self.name}: {arg.name} ({buffers[i].name}) and {self.args[j].name} ({other.name}) "
                        "share an allocation"
                    )


def _value(value: str | Scalar, dims: Mapping[str, Any]) -> Scalar:
    return evaluate(value, dims) if isinstance(value, str) else value


def _groups(kernel: Kernel, names: Mapping[str, Any]) -> tuple[int, int, int]:
    if isinstance(kernel.grid, tuple):
        x, y, z = (int(evaluate(axis, names)) for axis in kernel.grid)
        return x, y, z
    total = int(evaluate(kernel.grid, names))
    if total <= _MAX_GROUPS:
        return total, 1, 1
    rows = cdiv(total, _MAX_GROUPS)
    return cdiv(total, rows), rows, 1


OPS: dict[str, Op] = {}

__all__ = [
    "DTYPES",
    "OPS",
    "Arg",
    "Case",
    "Dims",
    "In",
    "InOut",
    "Kernel",
    "Op",
    "Out",
    "case",
    "cdiv",
    "column_sums",
    "evaluate",
    "full_case",
    "pieces",
]
