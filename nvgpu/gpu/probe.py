"""How long kernel calls take on a device: each is run on zeroed buffers of its own sizes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from nvgpu.gpu.buffer import Buffer
from nvgpu.gpu.device import Device, Pipeline
from nvgpu.gpu.ledger import Call
from nvgpu.gpu.recorder import Recorder

_LEAST = 5e-3  # seconds that are measured at a time, so that the wait at their end does not show
_MOST_REPEATS = 64


def seconds_of(device: Device, calls: Mapping[Call, int]) -> float:
    """Device seconds of all calls, each as often as it is counted.

    Raises:
        OutOfMemoryError: the buffers of one call do not fit.
    """
    return sum(count * _seconds(device, call) for call, count in calls.items())


def _seconds(device: Device, call: Call) -> float:
    kernel = call.kernel
    pipeline = device.pipeline(kernel.label, kernel.text, kernel.access, kernel.overrides)
    buffers: list[Buffer] = []
    try:
        for i, nbytes in enumerate(call.bindings):
            buffers.append(device.buffer(f"probe.{i}", (nbytes // 4,)))
        _run(device, pipeline, buffers, call, 1)
        once = _run(device, pipeline, buffers, call, 1)
        repeats = min(int(_LEAST / max(once, 1e-9)) + 1, _MOST_REPEATS)
        return once if repeats == 1 else _run(device, pipeline, buffers, call, repeats) / repeats
    finally:
        device.free(*buffers)


def _run(device: Device, pipeline: Pipeline, buffers: list[Buffer], call: Call, repeats: int) -> float:
    device.wait()
    began = time.perf_counter()
    with Recorder(device) as rec:
        for _ in range(repeats):
            rec.dispatch(pipeline, buffers, call.params, call.groups)
    device.wait()
    return time.perf_counter() - began
