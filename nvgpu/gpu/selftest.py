"""The self-tests that a device passes before matrix units and subgroups are used on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvgpu.errors import NvgpuError
from nvgpu.gpu.buffer import Buffer
from nvgpu.gpu.recorder import Recorder
from nvgpu.gpu.shader import ShaderText, resolve

if TYPE_CHECKING:
    from nvgpu.gpu.device import Device

Array = np.ndarray[Any, Any]

_ROWS, _COLS, _DEPTH = 64, 16, 32


def matrix_units_self_test(device: Device) -> str | None:
    """None if a product of two integer matrices that do not commute comes out exactly, else the reason."""
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (_ROWS, _DEPTH)).astype(np.float32)
    w = rng.integers(-8, 9, (_COLS, _DEPTH)).astype(np.float32)
    text = resolve("gpu/matrix_units.wgsl", [], ("f16", "wgpu_cooperative_matrix"))
    try:
        inputs = [device.upload("x", x), device.upload("w", w, "f16")]
        got = _output(device, text, inputs, device.buffer("y", (_ROWS, _COLS)), _DEPTH)
    except NvgpuError as e:
        return f"self-test failed: {e}"
    wrong = int((got != x @ w.T).sum())
    return f"self-test failed: {wrong} of {got.size} values are wrong" if wrong else None


def subgroup_self_test(device: Device) -> str | None:
    """None if 8 neighbouring invocations are lanes of one subgroup, in their order, else the reason."""
    lanes = np.arange(128)
    want = np.repeat((lanes**2).reshape(-1, 8).sum(axis=1), 8) + (lanes ^ 5)
    try:
        got = _output(
            device, resolve("gpu/subgroup_octets.wgsl", []), [], device.buffer("y", (128,), "u32"), 0
        )
    except NvgpuError as e:
        return f"self-test failed: {e}"
    if not np.array_equal(got, want):
        return "self-test failed: 8 neighbours are not lanes of one subgroup"
    return None


def _output(device: Device, text: ShaderText, inputs: list[Buffer], output: Buffer, param: int) -> Array:
    """What one workgroup of the shader writes; its params begin with `param`. The buffers are released."""
    access = (*("read" for _ in inputs), "read_write")
    pipeline = device.pipeline("self-test", text, access, {})
    with Recorder(device) as rec:
        rec.dispatch(pipeline, [*inputs, output], np.array([param, 0, 0, 0], np.uint32).tobytes(), (1, 1, 1))
    got = output.read()
    device.free(*inputs, output)
    return got
