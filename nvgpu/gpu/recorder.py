"""Recording: dispatches, copies and clears go into few command buffers, split by estimated device time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from nvgpu.errors import LimitError
from nvgpu.gpu.buffer import BIND_ALIGN, Buffer, round_up
from nvgpu.gpu.device import Device, Pipeline, translated
from nvgpu.gpu.profiler import Profiler

# Rates far below any card's, so that a submission stays well under a driver's watchdog (2 s on Windows).
_RATES = {"discrete": (5e11, 5e10), "integrated": (5e10, 1e10), "other": (5e10, 1e10), "cpu": (1e9, 2e9)}
_SECONDS_PER_SUBMISSION = 0.25


class Recorder:
    """Records work for one device; used as a context manager it submits at the end.

    `precision`: `f32`, or `mixed` to let GEMMs round their f32 inputs to f16 (where matrix units run).
    With a profiler that has timestamps each dispatch gets its own pass and two of them; else consecutive dispatches share one.
    """

    def __init__(self, device: Device, profiler: Profiler | None = None, precision: str = "f32") -> None:
        self.device = device
        self.precision = precision
        self.profiler = profiler
        self.submissions = 0
        self.dispatches = 0
        self._encoder: Any = None
        self._pass: Any = None
        self._seconds = 0.0
        self._last = "nothing recorded"
        self._flops_rate, self._bytes_rate = _RATES[device.adapter.type]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    def dispatch(
        self,
        pipeline: Pipeline,
        buffers: Sequence[Buffer],
        params: bytes,
        groups: tuple[int, int, int],
        flops: float = 0.0,
        nbytes: float = 0.0,
    ) -> None:
        """Run `pipeline` over `groups` workgroups; `flops` and `nbytes` are the op's cost.

        Raises:
            LimitError: more workgroups along an axis than the device allows.
        """
        limit = self.device.limits["max-compute-workgroups-per-dimension"]
        if max(groups) > limit:
            raise LimitError(f"{pipeline.label}: {groups} workgroups, the device allows {limit} per axis")
        if min(groups) == 0:
            return
        group = self.device.bind_group(pipeline, buffers, params)
        self._last = pipeline.label
        with translated(pipeline.label):
            if self.profiler is not None and self.profiler.timestamps:
                self._end_pass()
                with self.profiler.timed_pass(self._encoder_now(), pipeline.label) as timed:
                    _run(timed, pipeline, group, groups)
            else:
                if self._pass is None:
                    self._pass = self._encoder_now().begin_compute_pass()
                _run(self._pass, pipeline, group, groups)
        self.dispatches += 1
        if self.profiler is not None:
            self.profiler.dispatches += 1
        self._seconds += max(flops / self._flops_rate, nbytes / self._bytes_rate)
        if self._seconds > _SECONDS_PER_SUBMISSION or (self.profiler is not None and self.profiler.full):
            self.flush()

    def phase(self, name: str, *, whole: bool = False) -> AbstractContextManager[None]:
        """What is recorded inside belongs to this phase: see `Profiler.phase`."""
        return self.profiler.phase(name, whole=whole) if self.profiler is not None else nullcontext()

    def step(self) -> AbstractContextManager[None]:
        """Around a training step."""
        return self.profiler.step() if self.profiler is not None else nullcontext()

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy the whole of `source` over `target` (same byte count)."""
        if source.nbytes != target.nbytes:
            raise LimitError(
                f"copy {source.name} to {target.name}: {source.nbytes} bytes into {target.nbytes}"
            )
        self.copy_raw(source.raw, source.offset, target, round_up(source.nbytes, 4))

    def copy_raw(self, source: Any, offset: int, target: Buffer, nbytes: int) -> None:
        """Copy `nbytes` from a raw allocation to the start of `target`."""
        self._end_pass()
        with translated(f"copy to {target.name}"):
            self._encoder_now().copy_buffer_to_buffer(source, offset, target.raw, target.offset, nbytes)

    def clear(self, target: Buffer) -> None:
        """Set `target` to zero."""
        self._end_pass()
        with translated(f"clear of {target.name}"):
            self._encoder_now().clear_buffer(target.raw, target.offset, round_up(target.nbytes, BIND_ALIGN))

    def flush(self) -> None:
        """Submit what is recorded; does not wait for it."""
        if self._encoder is None:
            return
        self._end_pass()
        with translated(f"submission that ends with {self._last}"):
            if self.profiler is not None:
                self.profiler.resolve(self._encoder)
            commands, at = self._encoder.finish(), time.perf_counter()
            self.device.raw.queue.submit([commands])
        self._encoder = None
        self._seconds = 0.0
        self.submissions += 1
        if self.profiler is not None:
            self.profiler.submitted(at)

    def _encoder_now(self) -> Any:
        if self._encoder is None:
            self._encoder = self.device.raw.create_command_encoder()
        return self._encoder

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None


def _run(compute_pass: Any, pipeline: Pipeline, group: Any, groups: tuple[int, int, int]) -> None:
    compute_pass.set_pipeline(pipeline.raw)
    compute_pass.set_bind_group(0, group)
    compute_pass.dispatch_workgroups(*groups)
