"""The self-tests that a device passes before matrix units and subgroups are used on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvgpu.errors import NvgpuError
from nvgpu.gpu.recorder import Recorder
from nvgpu.gpu.shader import resolve

if TYPE_CHECKING:
    from nvgpu.gpu.device import Device

_ROWS, _COLS, _DEPTH = 64, 16, 32


def matrix_units_self_test(device: Device) -> str | None:
    """None if a product of two integer matrices that do not commute comes out exactly, else the reason."""
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (_ROWS, _DEPTH)).astype(np.float32)
    w = rng.integers(-8, 9, (_COLS, _DEPTH)).astype(np.float32)
    try:
        text = resolve("gpu/matrix_units.wgsl", [], ("f16", "wgpu_cooperative_matrix"))
        pipeline = device.pipeline("matrix units self-test", text, ("read", "read", "read_write"), {})
        buffers = [device.upload("x", x), device.upload("w", w, "f16"), device.buffer("y", (_ROWS, _COLS))]
        with Recorder(device) as rec:
            rec.dispatch(pipeline, buffers, np.array([_DEPTH, 0, 0, 0], np.uint32).tobytes(), (1, 1, 1))
        got = buffers[2].read()
        device.free(*buffers)
    except NvgpuError as e:
        return f"self-test failed: {e}"
    wrong = int((got != x @ w.T).sum())
    return f"self-test failed: {wrong} of {got.size} values are wrong" if wrong else None


def subgroup_self_test(device: Device) -> str | None:
    """None if 8 neighbouring invocations are lanes of one subgroup, in their order, else the reason."""
    lanes = np.arange(128)
    try:
        pipeline = device.pipeline(
            "subgroup self-test", resolve("gpu/subgroup_octets.wgsl", []), ("read_write",), {}
        )
        y = device.buffer("y", (128,), "u32")
        with Recorder(device) as rec:
            rec.dispatch(pipeline, [y], np.zeros(4, np.uint32).tobytes(), (1, 1, 1))
        got = y.read()
        device.free(y)
    except NvgpuError as e:
        return f"self-test failed: {e}"
    want = np.repeat((lanes**2).reshape(-1, 8).sum(axis=1), 8) + (lanes ^ 5)
    return (
        None if np.array_equal(got, want) else "self-test failed: 8 neighbours are not lanes of one subgroup"
    )
