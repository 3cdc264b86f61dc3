"""Parity: run an op's cases on a device and compare with the float64 reference.

Outputs are filled with NaN first and carry a guard band inside the binding; inputs carry a band of NaN behind their end, so
that a read past it shows; inputs must come back unchanged; a second run must give the same bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.errors import NvgpuError
from nvgpu.gpu import DTYPES, Buffer, Device, Recorder
from nvgpu.gpu.buffer import VIEW_ALIGN, round_up
from nvgpu.ops.table import OPS, Arrays, Case, Dims, Kernel, Op, evaluate
from nvgpu.ops.tolerance import Tolerance, magnitude

_GUARD = 256  # elements behind a tensor, inside its binding
_POISON = {"f32": np.uint32(0x7FC0BEEF), "u32": np.uint32(0xDEADBEEF), "f16": np.uint16(0x7EAD)}


class ParityError(NvgpuError):
    """A kernel that differs from its reference; the message holds op, kernel, case, element and both values."""


@dataclass(frozen=True)
class Result:
    """`used`: the largest share of its tolerance that any element used; `rms`: relative RMS error per output."""

    label: str
    used: float
    rms: Mapping[str, float]


def runs(device: Device, *, quick: bool = True) -> Iterator[tuple[Op, Kernel, Case]]:
    """Every op, kernel and case that the device can run."""
    for op in OPS.values():
        for kernel in op.kernels:
            for case in op.cases:
                if kernel.runs_on(device) and (case.quick or not quick) and fits(op, kernel, case):
                    yield op, kernel, case


def fits(op: Op, kernel: Kernel, case: Case) -> bool:
    """Whether the kernel takes the case's dimensions."""
    return bool(evaluate(kernel.fits, op.complete(Dims(case.values))))


def inputs(op: Op, case: Case) -> tuple[Arrays, Dims]:
    """The case's inputs, rounded to their storage types and widened to float64 (integers stay as they are)."""
    dims = op.complete(Dims(case.values))
    rng = np.random.default_rng(zlib.crc32(f"{op.name}:{case.name}".encode()))
    arrays: Arrays = {}
    for arg in op.args:
        if arg.mode == "out":
            continue
        shape = op.shape_of(arg, dims)
        make = op.init.get(arg.name)
        values = make(rng, dims, shape) if make else rng.standard_normal(shape)
        arrays[arg.name] = _stored(values, arg.dtype).reshape(shape)
    if op.prepare is not None:
        op.prepare(arrays, dims)
        for arg in op.args:
            if arg.name in arrays:
                arrays[arg.name] = _stored(arrays[arg.name], arg.dtype).reshape(op.shape_of(arg, dims))
    return arrays, dims


def _stored(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    rounded = np.asarray(values).astype(DTYPES[dtype])
    return rounded if dtype == "u32" else rounded.astype(np.float64)


def check(device: Device, op: Op, kernel: Kernel, case: Case) -> Result:
    """Run one case.

    Raises:
        ParityError: a wrong value, a write outside an output, a changed input, or two runs that differ.
    """
    label = f"{op.name}.{kernel.name} [{case.name}]"
    arrays, dims = inputs(op, case)
    with np.errstate(all="raise", under="ignore"):
        want = op.ref({k: v.copy() for k, v in arrays.items()}, dims)
        mags = op.mag({k: v.copy() for k, v in arrays.items()}, dims) if op.mag else {}
    first = _execute(device, op, kernel, case, arrays, dims, label)
    second = _execute(device, op, kernel, case, arrays, dims, label)
    used, rms = 0.0, {}
    for arg in op.args:
        if arg.mode == "in":
            continue
        if first[arg.name].tobytes() != second[arg.name].tobytes():
            raise ParityError(f"{label}: {arg.name} differs between two runs on the same input")
        tols = kernel.tol or op.tol
        tol = tols if isinstance(tols, Tolerance) else tols[arg.name]
        expected = np.asarray(want[arg.name], np.float64).reshape(first[arg.name].shape)
        mag = np.asarray(mags.get(arg.name, magnitude(expected)), np.float64).reshape(expected.shape)
        bound = tol.bound(expected, mag, float(evaluate(tol.terms, dims)))
        used = max(
            used,
            _compare(
                first[arg.name].astype(np.float64), expected, bound, f"{label}: {arg.name} ({tol.name})"
            ),
        )
        norm = float(np.sqrt(np.mean(expected**2))) if expected.size else 0.0
        error = float(np.sqrt(np.mean((first[arg.name] - expected) ** 2))) if expected.size else 0.0
        rms[arg.name] = error / norm if norm else error
    return Result(label, used, rms)


def _compare(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], bound: np.ndarray[Any, Any], what: str
) -> float:
    if got.size == 0:
        return 0.0
    error = np.abs(got - want)
    bad = ~(error <= bound)
    if bad.any():
        at = np.unravel_index(int(np.argmax(np.where(np.isfinite(error), error - bound, np.inf))), got.shape)
        raise ParityError(
            f"{what}: {int(bad.sum())} of {got.size} elements off; worst at {[int(i) for i in at]}: "
            f"got {got[at]!r}, expected {want[at]!r}, allowed error {bound[at]:.3g}"
        )
    return float(np.max(np.divide(error, bound, out=np.zeros_like(error), where=bound > 0)))


def _execute(
    device: Device, op: Op, kernel: Kernel, case: Case, arrays: Arrays, dims: Dims, label: str
) -> Arrays:
    """Outputs of one run, with the hygiene checks."""
    held: dict[str, tuple[Buffer, Buffer, np.ndarray[Any, Any]]] = {}
    for arg in op.args:
        held[arg.name] = _guarded(device, arg.name, op.shape_of(arg, dims), arg.dtype, arrays.get(arg.name))
    try:
        with Recorder(device) as rec:
            op(rec, kernel=kernel, **{name: bound for name, (_, bound, _) in held.items()}, **case.values)
        outputs: Arrays = {}
        for arg in op.args:
            whole, _, before = held[arg.name]
            after = whole.read().view(before.dtype)
            count = int(np.prod(op.shape_of(arg, dims)))
            if not np.array_equal(after[count:], before[count:]):
                raise ParityError(f"{label}: wrote behind the end of {arg.name}")
            if arg.mode == "in" and not np.array_equal(after[:count], before[:count]):
                raise ParityError(f"{label}: changed its input {arg.name}")
            if arg.mode != "in":
                outputs[arg.name] = after[:count].view(DTYPES[arg.dtype]).reshape(op.shape_of(arg, dims))
        return outputs
    finally:
        device.free(*(whole for whole, _, _ in held.values()))


def _guarded(
    device: Device, name: str, shape: tuple[int, ...], dtype: str, values: np.ndarray[Any, Any] | None
) -> tuple[Buffer, Buffer, np.ndarray[Any, Any]]:
    """(whole buffer, the buffer a kernel sees, bit content): poison everywhere but where there are `values`."""
    count = int(np.prod(shape))
    item = DTYPES[dtype].itemsize
    total = round_up(count + _GUARD, VIEW_ALIGN // item)
    content = np.full(total, _POISON[dtype])
    if values is not None:
        content[:count] = np.ascontiguousarray(values.reshape(-1).astype(DTYPES[dtype])).view(content.dtype)
    whole = device.buffer(name, (total,), dtype)
    whole.write(content.view(DTYPES[dtype]))
    return whole, Buffer(name, shape, dtype, device, whole.raw, 0, (total - count) * item), content


__all__ = ["ParityError", "Result", "check", "fits", "inputs", "runs"]
