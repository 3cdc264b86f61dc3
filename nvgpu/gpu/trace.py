"""A timeline in the Trace Event Format, which Perfetto and Chrome's viewer open: host and device tracks, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_HOST, _DEVICE = 1, 2  # process ids, which the viewers show as groups of tracks


class Trace:
    """Collects from the begin of the first training step to the end of the `steps`-th one, and then is `complete`.

    It holds at most `most` events; those beyond are counted in `dropped`.

    Host times are seconds of `time.perf_counter`, device times nanoseconds of the device's own clock. The two are aligned so that
    no submission starts on the device before it was submitted: up to the shortest way from one to the other, device events
    appear too early.
    """

    def __init__(self, steps: int, most: int = 200_000) -> None:
        self.steps = steps
        self.most = most
        self.on = False
        self.stepped = 0
        self.dropped = 0
        self._host: list[dict[str, Any]] = []
        self._device: list[tuple[str, str, int, int]] = []
        self._offset: float | None = None  # seconds to add to the device's clock

    @property
    def complete(self) -> bool:
        return self.stepped >= self.steps

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a training step."""
        if self.complete:
            yield
            return
        self.on, began = True, time.perf_counter()
        yield
        self.stepped += 1
        self.host(f"step {self.stepped}", began, time.perf_counter())
        self.on = not self.complete

    def host(self, name: str, start: float, end: float, **args: Any) -> None:
        """Something that the host did from `start` to `end`."""
        self._keep({"name": name, "ph": "X", "ts": start, "dur": end - start, "tid": 1, "args": args})

    def count(self, name: str, at: float, **values: float) -> None:
        """Values over time."""
        self._keep({"name": name, "ph": "C", "ts": at, "tid": 1, "args": values})

    def _keep(self, event: dict[str, Any]) -> None:
        if self.on and self._room():
            self._host.append({"pid": _HOST, **event})

    def device(self, label: str, phase: str, begin: int, end: int) -> None:
        """A kernel that ran from `begin` to `end`."""
        if self.on and self._room():
            self._device.append((label, phase, begin, end))

    def align(self, submitted: float, begin: int) -> None:
        """What was submitted at the host's `submitted` began at the device's `begin`."""
        offset = submitted - begin * 1e-9
        self._offset = offset if self._offset is None else max(self._offset, offset)

    def _room(self) -> bool:
        full = len(self._host) + len(self._device) >= self.most
        self.dropped += full
        return not full

    def document(self, adapter: str) -> dict[str, Any]:
        """The whole timeline as the format wants it: microseconds from its first event on."""
        named = [_name(_HOST, "host"), _name(_DEVICE, f"device: {adapter}")]
        shift = (self._offset or 0.0) * 1e6
        device = [
            {
                "pid": _DEVICE,
                "name": label.partition(".")[0],
                "cat": phase,
                "ph": "X",
                "ts": begin * 1e-3 + shift,
                "dur": (end - begin) * 1e-3,
                "tid": 1,
                "args": {"kernel": label, "phase": phase},
            }
            for label, phase, begin, end in self._device
        ]
        host = [{**event, "ts": 1e6 * event["ts"]} for event in self._host]
        host = [{**event, "dur": 1e6 * event["dur"]} if "dur" in event else event for event in host]
        first = min((event["ts"] for event in host + device), default=0.0)
        events = [{**event, "ts": event["ts"] - first} for event in host + device]
        other = {"adapter": adapter, "dropped_events": self.dropped}
        return {"traceEvents": named + events, "displayTimeUnit": "ms", "otherData": other}


def _name(pid: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
