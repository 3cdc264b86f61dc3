"""Where the time goes: device seconds per kernel and phase from timestamp queries, and what the host does in each phase."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from nvgpu.errors import GpuError
from nvgpu.gpu.device import Device
from nvgpu.gpu.trace import Trace

_PAIRS = 512
OTHER = "other"
HOST_FIELDS = ("seconds", "waited", "dispatches", "submissions", "uploaded", "read_back")
"""What is counted of the host: seconds, those in which it waited for the device, commands, and bytes moved."""


class Profiler:
    """Sums device seconds and calls per kernel label, device seconds per phase, and the host's counts per phase.

    Device times need the feature timestamp-query: without it an `optional` profiler has `timestamps` False and counts the rest.
    """

    def __init__(self, device: Device, *, optional: bool = False, trace: Trace | None = None) -> None:
        import wgpu

        self.timestamps = "timestamp-query" in device.features
        if not self.timestamps and not optional:
            raise GpuError(f"profiling: adapter {device.adapter.label} grants no timestamp-query")
        self.device = device
        self.trace = trace
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.phase_seconds: dict[str, float] = defaultdict(float)
        self.host: dict[str, np.ndarray[Any, Any]] = {}
        self.dispatches = self.submissions = 0
        self._phase, self._whole = OTHER, False
        self._since = self._counters()
        self._labels: list[tuple[str, str]] = []  # kernel and phase of each pair of timestamps
        if self.timestamps:
            self._queries = device.raw.create_query_set(type="timestamp", count=2 * _PAIRS)
            usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            self._results = device.allocate("timestamps", 16 * _PAIRS, usage)
            self._period = _period(device)

    # ── phases ──

    @contextmanager
    def phase(self, name: str, *, whole: bool = False) -> Iterator[None]:
        """What happens inside belongs to this phase, `outer/name` inside another one.

        A `whole` phase has its bare name wherever it stands, and takes in the phases inside it.
        """
        before = self._phase, self._whole
        if not self._whole:
            self._switch(name if whole or before[0] == OTHER else f"{before[0]}/{name}")
            self._whole = whole
        try:
            yield
        finally:
            self._switch(before[0])
            self._whole = before[1]

    def step(self) -> AbstractContextManager[None]:
        """Around a training step, for the trace."""
        return self.trace.step() if self.trace is not None else nullcontext()

    def _switch(self, phase: str) -> None:
        now = self._counters()
        self.host[self._phase] = self.host.get(self._phase, 0) + (now - self._since)
        if self.trace is not None and self._phase not in (OTHER, phase):
            self.trace.host(self._phase, self._since[0], now[0])
        self._phase, self._since = phase, now

    def _counters(self) -> np.ndarray[Any, Any]:
        """As HOST_FIELDS says, since whenever."""
        d = self.device
        counts = (d.waited, self.dispatches, self.submissions, d.uploaded, d.read_back)
        return np.array([time.perf_counter(), *counts], np.float64)

    # ── timestamps ──

    @property
    def full(self) -> bool:
        return len(self._labels) >= _PAIRS

    @contextmanager
    def timed_pass(self, encoder: Any, label: str) -> Iterator[Any]:
        """A compute pass with a timestamp at each end."""
        first = 2 * len(self._labels)
        timed = encoder.begin_compute_pass(
            timestamp_writes={
                "query_set": self._queries,
                "beginning_of_pass_write_index": first,
                "end_of_pass_write_index": first + 1,
            }
        )
        yield timed
        timed.end()
        self._labels.append((label, self._phase))

    def resolve(self, encoder: Any) -> None:
        """Record the copy of this submission's timestamps."""
        if self._labels:
            encoder.resolve_query_set(self._queries, 0, 2 * len(self._labels), self._results, 0)

    def submitted(self, at: float) -> None:
        """What was submitted at `at` is on its way: count it, read its timestamps (which waits for it) and add them up."""
        self.submissions += 1
        if self.trace is not None:
            self.trace.count("device memory", at, bytes=self.device.memory.live)
        if not self._labels:
            return
        began = time.perf_counter()
        raw = self.device.raw.queue.read_buffer(self._results, 0, 16 * len(self._labels))
        self.device.waited += time.perf_counter() - began
        ticks = np.frombuffer(raw, np.uint64).reshape(-1, 2)
        times = (ticks * self._period).astype(np.int64) if self._period != 1.0 else ticks.astype(np.int64)
        if self.trace is not None:
            self.trace.align(at, int(times[0, 0]))
        for (label, phase), (start, end) in zip(self._labels, times.tolist(), strict=True):
            spent = max(end - start, 0)
            self.seconds[label] += 1e-9 * spent
            self.phase_seconds[phase] += 1e-9 * spent
            self.calls[label] += 1
            if self.trace is not None:
                self.trace.device(label, phase, start, start + spent)
        self._labels.clear()

    def free(self) -> None:
        """Release the device memory."""
        if self.timestamps:
            self.device.free_raw(self._results)
            self._queries.destroy()
            self.timestamps = False

    # ── results ──

    def report(self) -> dict[str, Any]:
        """`timestamps`, `host` (the sums of HOST_FIELDS), `phases` and `ops`: rows, slowest first."""
        self._switch(self._phase)
        total = dict(zip(HOST_FIELDS, _plain(np.sum(list(self.host.values()), axis=0)), strict=True))
        return {
            "timestamps": self.timestamps,
            "host": total,
            "phases": self.by_phase(),
            "ops": self.by_op(),
        }

    def by_phase(self) -> list[dict[str, Any]]:
        """Phase, device_seconds, and HOST_FIELDS with host_seconds for their seconds."""
        rows = []
        for phase, counts in self.host.items():
            fields = dict(zip(HOST_FIELDS, _plain(counts), strict=True))
            seconds = {
                "device_seconds": self.phase_seconds.get(phase, 0.0),
                "host_seconds": fields.pop("seconds"),
            }
            rows.append({"phase": phase, **seconds, **fields})
        return sorted(rows, key=lambda row: (-row["device_seconds"], -row["host_seconds"]))

    def by_op(self) -> list[dict[str, Any]]:
        """Op, calls, seconds: the kernels of an op added up."""
        seconds: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        for label, count, spent in self.table():
            op = label.partition(".")[0]
            seconds[op] += spent
            calls[op] += count
        rows = [{"op": op, "calls": calls[op], "seconds": spent} for op, spent in seconds.items()]
        return sorted(rows, key=lambda row: -float(row["seconds"]))

    def table(self) -> list[tuple[str, int, float]]:
        """(label, calls, seconds), slowest first."""
        return sorted(((k, self.calls[k], s) for k, s in self.seconds.items()), key=lambda row: -row[2])


def _plain(counts: np.ndarray[Any, Any]) -> list[float | int]:
    """HOST_FIELDS as Python's numbers."""
    return [
        float(n) if name in ("seconds", "waited") else int(n)
        for name, n in zip(HOST_FIELDS, counts, strict=True)
    ]


def _period(device: Device) -> float:
    """Nanoseconds a tick, which wgpu-py has no call for."""
    from wgpu.backends.wgpu_native import _api

    return float(_api.libf.wgpuQueueGetTimestampPeriod(device.raw.queue._internal))
