"""The event log of a run: one JSON object a line, on disk as soon as it happened. docs/report.md lists the events."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from nvgpu.errors import OutputError
from nvgpu.formats.files import AtomicFile, output_errors, reason
from nvgpu.progress import Progress

Event = dict[str, Any]


class Journal:
    """Appends events to `path`; without one, nothing happens. `sinks` see every event too.

    A file that can no longer be written ends no run: `failed` says why, and the log ends there.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.sinks: list[Callable[[Event], None]] = []
        self.failed: str | None = None
        self._file: BinaryIO | None = None

    def open(self, keep: bool) -> None:
        """Begin a new log, or go on behind the complete lines of the one that is there.

        Raises:
            OutputError: the file cannot be written.
        """
        if self.path is not None:
            self._rewrite(read_events(self.path) if keep and self.path.exists() else [])

    def add(self, event: str, **fields: Any) -> None:
        """One event, now; numbers that are not finite become null."""
        if self._file is None:
            return
        entry: Event = _plain({"event": event, "time": time.time(), **fields})
        try:
            self._file.write(_line(entry))
            self._file.flush()
        except OSError as e:
            self.failed = f"{self.path}: the log ends before event {event!r}: {reason(e)}"
            self.close()
        for sink in self.sinks:
            sink(entry)

    def rewind(self, tried: int, evals: int) -> None:
        """The run goes on behind `tried` steps and `evals` evaluations: what the log holds beyond them never happened.

        Raises:
            OutputError: the log cannot be written.
        """
        if self.path is None:
            return
        self.close()
        kept, seen = [], 0
        for event in read_events(self.path):
            seen += event["event"] == "eval"
            if event.get("tried", 0) <= tried and not (event["event"] == "eval" and seen > evals):
                kept.append(event)
        self._rewrite(kept)

    def _rewrite(self, events: list[Event]) -> None:
        assert self.path is not None
        with AtomicFile(self.path) as out:
            for event in events:
                out.write(_line(event))
        with output_errors(self.path):
            self._file = open(self.path, "ab")  # noqa: SIM115 - closed by close()

    def close(self) -> None:
        """No more events."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Noted:
    """A Progress that also puts what is said into the journal."""

    def __init__(self, progress: Progress, journal: Journal) -> None:
        self._progress = progress
        self._journal = journal
        self.start, self.doing, self.advance, self.stop = (
            progress.start,
            progress.doing,
            progress.advance,
            progress.stop,
        )

    def say(self, line: str) -> None:
        self._progress.say(line)
        self._journal.add("message", text=line)


def read_events(path: Path) -> list[Event]:
    """The complete lines of a log; a last line cut off by a crash is left out.

    Raises:
        OutputError: a line in front of it is no event.
    """
    with output_errors(path):
        lines = path.read_bytes().split(b"\n")
    events = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not (isinstance(event, dict) and isinstance(event.get("event"), str)):
            raise OutputError(f"{path}: line {number} is no event of a run's log")
        events.append(event)
    return events


def _line(event: Event) -> bytes:
    return json.dumps(event, allow_nan=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
