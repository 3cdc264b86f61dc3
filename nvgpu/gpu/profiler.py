"""Device time per kernel from timestamp queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nvgpu.errors import GpuError
from nvgpu.gpu.device import Device

_PAIRS = 512


class Profiler:
    """Sums device seconds and calls per kernel label; needs the feature timestamp-query."""

    def __init__(self, device: Device) -> None:
        import wgpu

        if "timestamp-query" not in device.features:
            raise GpuError(f"profiling: adapter {device.adapter.label} grants no timestamp-query")
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._labels: list[str] = []
        self._queries = device.raw.create_query_set(type="timestamp", count=2 * _PAIRS)
        self._results = device.allocate(
            "timestamps", 16 * _PAIRS, wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        )

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
        self._labels.append(label)

    def resolve(self, encoder: Any) -> None:
        """Record the copy of this submission's timestamps."""
        if self._labels:
            encoder.resolve_query_set(self._queries, 0, 2 * len(self._labels), self._results, 0)

    def collect(self) -> None:
        """Read the timestamps of the last submission (waits for it) and add them up."""
        if not self._labels:
            return
        raw = self.device.raw.queue.read_buffer(self._results, 0, 16 * len(self._labels))
        ticks = np.frombuffer(raw, np.uint64).reshape(-1, 2).astype(np.int64)
        for label, (start, end) in zip(self._labels, ticks, strict=True):
            self.seconds[label] += float(end - start) * 1e-9  # wgpu reports nanoseconds on every backend
            self.calls[label] += 1
        self._labels.clear()

    def by_op(self) -> list[dict[str, Any]]:
        """Op, calls, seconds, slowest first: the kernels of an op added up."""
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
