"""The op table is whole and agrees with the shaders. Needs no GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import GpuError
from nvgpu.gpu import DTYPES, SHADER_ROOT, Buffer
from nvgpu.ops import OPS
from nvgpu.ops.parity import fits
from nvgpu.ops.table import Arg, Dims, In, Kernel, Op, Out, case, evaluate
from nvgpu.ops.tolerance import exact

ROOT = Path(__file__).resolve().parent.parent
MAX_STORAGE_BINDINGS = 8  # a stage, in WebGPU's default limits

_BINDING = re.compile(r"^@group\(0\) @binding\((\d+)\) var<([^>]+)> (\w+): (.+);$", re.M)
_HEADER_BIND = re.compile(r"^// bind (\d+)\s+(in|out|inout)\s+(\w+)\s+(\w+)\[([^\]]*)\]", re.M)
_ELEMENTS = {
    "f32": r"array<(vec[24]<f32>|f32)>",
    "u32": r"array<(vec[24]<u32>|u32|atomic<u32>)>",
    "f16": r"array<(HALF4|vec[24]<f16>|f16|u32)>",
}
_VARIANTS = [pytest.param(op, k, id=f"{op.name}.{k.name}") for op in OPS.values() for k in op.kernels]
_OPS = [pytest.param(op, id=op.name) for op in OPS.values()]


def source_of(kernel: Kernel) -> str:
    return (SHADER_ROOT / kernel.shader).read_text(encoding="utf-8")


def dims_for(op: Op, kernel: Kernel) -> Dims:
    """Dimensions of the op's first case that the kernel takes, with its constants."""
    first = next((c for c in op.cases if fits(op, kernel, c)), None)
    assert first is not None, f"{op.name}.{kernel.name} fits no case"
    return op.complete(Dims(first.values))


# ── completeness ──


def test_every_shader_belongs_to_a_record() -> None:
    files = {p.relative_to(SHADER_ROOT).as_posix() for p in SHADER_ROOT.rglob("*.wgsl")}
    used = {kernel.shader for op in OPS.values() for kernel in op.kernels}
    assert {f for f in files if not f.startswith(("lib/", "gpu/"))} == used  # gpu/: the device's self-test


def test_every_library_file_is_included() -> None:
    files = {p.relative_to(SHADER_ROOT).as_posix() for p in (SHADER_ROOT / "lib").glob("*.wgsl")}
    texts = [p.read_text(encoding="utf-8") for p in SHADER_ROOT.rglob("*.wgsl")]
    included = {name for text in texts for name in re.findall(r"^//!include (\S+)", text, re.M)}
    put_in_front = {lib for op in OPS.values() for kernel in op.kernels for lib in kernel.libs}
    assert files == included | put_in_front


@pytest.mark.parametrize("op", _OPS)
def test_record_is_whole(op: Op) -> None:
    assert op.kernels and op.summary
    assert any(c.quick for c in op.cases), "no quick case"
    assert len({c.name for c in op.cases}) == len(op.cases), "a case stands twice"
    assert callable(op.ref)
    assert len(op.args) <= MAX_STORAGE_BINDINGS
    assert any(arg.mode != "in" for arg in op.args)
    if isinstance(op.tol, Mapping):
        assert set(op.tol) == {arg.name for arg in op.args if arg.mode != "in"}
    assert set(op.init) <= {arg.name for other in OPS.values() for arg in other.args}


@pytest.mark.parametrize("op", _OPS)
def test_backward_partner_or_reason(op: Op) -> None:
    if op.backward.startswith("none: "):
        assert op.backward.removeprefix("none: ").strip()
    else:
        assert [name for name in op.backward.split(", ") if name not in OPS] == []


@pytest.mark.parametrize("op", _OPS)
def test_every_case_has_a_kernel_everywhere(op: Op) -> None:
    if op.composed:
        assert [name for name in op.composed.split(", ") if name not in OPS] == []
        return
    for kind in ("cpu", "gpu"):
        for c in op.cases:
            chosen = [k for k in op.kernels if k.when in ("any", kind) and not k.needs and fits(op, k, c)]
            assert chosen, f"no kernel for {c.name} on a {kind} adapter without optional features"


# ── record and shader agree ──


@pytest.mark.parametrize(("op", "kernel"), _VARIANTS)
def test_bindings_agree(op: Op, kernel: Kernel) -> None:
    found = [(int(n), mode, name) for n, mode, name, _ in _BINDING.findall(source_of(kernel))]
    storage = [(i, f"storage, {arg.access}", arg.name) for i, arg in enumerate(op.args)]
    assert found == [*storage, (len(op.args), "uniform", "p")]
    for arg, (_, _, _, kind) in zip(op.args, _BINDING.findall(source_of(kernel)), strict=False):
        element = kind.removeprefix("array<").removesuffix(">")
        if arg.dtype != "f16":
            kind = f"array<{kernel.aliases.get(element, element)}>"
        assert re.fullmatch(_ELEMENTS[arg.dtype], kind), f"{arg.name} is {arg.dtype}, declared as {kind}"


@pytest.mark.parametrize(("op", "kernel"), _VARIANTS)
def test_header_agrees(op: Op, kernel: Kernel) -> None:
    source = source_of(kernel)
    users = {o.name for o in OPS.values() for k in o.kernels if k.shader == kernel.shader}
    name = re.match(r"// (\w+): \S", source)
    assert name, "the first line is not `// name: what it does`"
    assert name.group(1) in users | {Path(kernel.shader).stem}
    found = [
        (int(n), mode, arg, dtype, re.split(r",(?![^(]*\))", shape.replace(" ", "")))
        for n, mode, arg, dtype, shape in _HEADER_BIND.findall(source)
    ]
    assert found == [(i, a.mode, a.name, a.dtype, list(a.shape)) for i, a in enumerate(op.args)]


@pytest.mark.parametrize(("op", "kernel"), _VARIANTS)
def test_text_resolves_with_one_entry_point(op: Op, kernel: Kernel) -> None:
    text = op.text(kernel, dims_for(op, kernel))
    assert len(re.findall(r"@compute\b", text.code)) == 1
    assert "//!include" not in text.code
    assert len(text.origins) == len(text.code.splitlines())
    assert "arrayLength" not in text.code, "bounds come from params"


@pytest.mark.parametrize(("op", "kernel"), _VARIANTS)
def test_expressions_evaluate(op: Op, kernel: Kernel) -> None:
    for c in (c for c in op.cases if fits(op, kernel, c)):
        dims = op.complete(Dims(c.values))
        consts = {
            k: evaluate(v, dims) if isinstance(v, str) else v
            for k, v in {**kernel.consts, **kernel.overrides}.items()
        }
        assert float(evaluate(op.flops, dims)) > 0
        assert all(min(op.shape_of(arg, dims), default=1) > 0 for arg in op.args)
        grid = kernel.grid if isinstance(kernel.grid, tuple) else (kernel.grid,)
        assert all(int(evaluate(axis, {**dims, **consts})) > 0 for axis in grid)


# ── params ──


@pytest.mark.parametrize("op", _OPS)
def test_every_param_is_used(op: Op) -> None:
    code = "".join(op.text(k, dims_for(op, k)).code for k in op.kernels)
    used = set(re.findall(r"\bp\.(\w+)", code))
    assert used == set(op.fields)


@pytest.mark.parametrize("op", _OPS)
def test_params_lie_where_wgsl_puts_them(op: Op) -> None:
    """WGSL gives 4-byte scalars consecutive offsets in a uniform struct."""
    dims = op.complete(Dims(op.cases[0].values))
    packed = op._pack(dims)
    assert len(packed) == 4 * len(op.fields)
    for i, (name, kind) in enumerate(op.fields.items()):
        dtype = {"u32": "<u4", "f32": "<f4", "i32": "<i4"}[kind]
        assert np.frombuffer(packed, dtype, 1, 4 * i)[0] == np.dtype(dtype).type(dims[name])


# ── registration and calls ──


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops made in the test leave the table afterwards."""
    for name in list(OPS):
        monkeypatch.setitem(OPS, name, OPS[name])
    before = set(OPS)
    yield  # type: ignore[misc]
    for name in set(OPS) - before:
        del OPS[name]


def sample(name: str = "sample") -> Op:
    return Op(
        name,
        "y = x + w",
        args=(In("x", "f32", "N C"), In("w", "f16", "C"), Out("y", "f32", "N C")),
        params="N C twice=2*C eps:f32",
        kernels=(Kernel("rows", "norm/rms_norm_fwd.wgsl", grid="N", consts={"WG": 64}, fits="C < 1000"),),
        ref=lambda a, d: {"y": a["x"] + a["w"]},
        backward="none: a sample",
        tol=exact(),
        flops="N * C",
        cases=(case(N=1, C=1, eps=0.0),),
    )


class FakeDevice:
    """Stands in for a device: every kernel compiles, nothing runs."""

    features: frozenset[str] = frozenset()
    is_cpu = True
    precision = "f32"
    adapter = SimpleNamespace(label="fake")

    def __init__(self) -> None:
        self.plans: dict[Any, Any] = {}
        self.dispatched: list[tuple[bytes, tuple[int, int, int]]] = []
        self.device = self

    def pipeline(self, *args: Any) -> str:
        return "pipeline"

    def dispatch(self, pipeline: Any, buffers: Any, params: bytes, groups: Any, *cost: float) -> None:
        self.dispatched.append((params, groups))

    def buffer(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Buffer:
        return Buffer(name, shape, dtype, self, object())  # type: ignore[arg-type]


def test_a_second_op_of_the_same_name_is_refused() -> None:
    op = next(iter(OPS.values()))
    with pytest.raises(ValueError, match=f"op {op.name} is registered twice"):
        dataclasses.replace(op)


@pytest.mark.usefixtures("registry")
def test_call_infers_dims_and_packs_params() -> None:
    op, rec = sample(), FakeDevice()
    op(
        rec,
        x=rec.buffer("x", (70000, 3)),
        w=rec.buffer("w", (3,), "f16"),
        y=rec.buffer("y", (70000, 3)),
        eps=0.5,
    )  # type: ignore[arg-type]
    ((params, groups),) = rec.dispatched
    assert params == np.array([70000, 3, 6], "<u4").tobytes() + np.array([0.5], "<f4").tobytes()
    assert groups == (35000, 2, 1)


@pytest.mark.usefixtures("registry")
def test_call_takes_another_shape_of_the_same_size() -> None:
    op, rec = sample(), FakeDevice()
    op(rec, x=rec.buffer("x", (2, 3)), w=rec.buffer("w", (3,), "f16"), y=rec.buffer("y", (6,)), eps=0.0)  # type: ignore[arg-type]
    assert len(rec.dispatched) == 1


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None}, "op sample: argument w is missing"),
        ({"w": ("w", (3,), "f32")}, r"op sample: w is f32 \(w\), expected f16"),
        ({"y": ("out", (2, 4), "f32")}, r"op sample: y \(out\) has shape \[2, 4\], expected \[2, 3\]"),
        ({"w": ("gain", (4,), "f16")}, r"op sample: w \(gain\) has shape \[4\], expected \[3\]"),
        ({"x": ("x", (6,), "f32"), "y": ("y", (6,), "f32")}, "op sample: dimension or param N is not given"),
        ({"eps": None}, "op sample: param eps is missing"),
        (
            {"x": ("x", (2, 1000), "f32"), "w": ("w", (1000,), "f16"), "y": ("y", (2, 1000), "f32")},
            "op sample: no kernel for .* on fake",
        ),
    ],
)
def test_call_refuses(change: dict[str, Any], message: str) -> None:
    op, rec = sample(), FakeDevice()
    specs: dict[str, Any] = {"x": ("x", (2, 3), "f32"), "w": ("w", (3,), "f16"), "y": ("y", (2, 3), "f32")}
    given = {
        "eps": 0.0,
        **{k: rec.buffer(*v) for k, v in {**specs, **change}.items() if isinstance(v, tuple)},
    }
    if "eps" in change:
        del given["eps"]
    with pytest.raises(GpuError, match=message):
        op(rec, **given)  # type: ignore[arg-type]
    assert rec.dispatched == []


@pytest.mark.usefixtures("registry")
def test_call_refuses_aliases() -> None:
    rec = FakeDevice()
    op = sample()
    both = Op(
        "sample_two_outputs",
        "two outputs",
        args=(In("x", "f32", "N"), Out("y", "f32", "N"), Out("z", "f32", "N")),
        params="N",
        kernels=op.kernels,
        ref=op.ref,
        backward="none: a sample",
        tol=exact(),
        flops="N",
        cases=op.cases,
    )
    dims = {"C": 1}
    arena = rec.buffer("arena", (512,))
    first, second = arena.view((64,)), arena.view((64,), 64)
    with pytest.raises(
        GpuError, match=r"op sample_two_outputs: y \(arena\) and x \(arena\) share an allocation"
    ):
        both(rec, x=first, y=second, z=rec.buffer("z", (64,)), **dims)  # type: ignore[arg-type]
    with pytest.raises(
        GpuError, match=r"op sample_two_outputs: y \(arena\) and z \(arena\) share an allocation"
    ):
        both(rec, x=rec.buffer("x", (64,)), y=first, z=first, **dims)  # type: ignore[arg-type]
    both(rec, x=rec.buffer("x", (64,)), y=first, z=second, **dims)  # type: ignore[arg-type]
    assert len(rec.dispatched) == 1


def test_buffers_have_the_three_dtypes() -> None:
    assert set(DTYPES) == set(_ELEMENTS)
    assert {arg.dtype for op in OPS.values() for arg in op.args} <= set(DTYPES)


# ── generated documentation ──


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_ops_docs", ROOT / "tools" / "gen_ops_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ops_docs_are_current() -> None:
    written = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert written == _generator().render(OPS), "run tools/gen_ops_docs.py"


def test_docs_hold_every_argument() -> None:
    text = _generator().render({"lse": OPS["lse"]})
    assert all(f"`{a.name}`" in text for a in OPS["lse"].args)
    assert isinstance(OPS["lse"].args[0], Arg)
