"""What a run tells about itself: its event log, TensorBoard files, the profile, the trace, and the report at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nvgpu.errors import InputError, Interrupted
from nvgpu.formats.files import AtomicFile, check_target, output_errors
from nvgpu.gpu import Device, Profiler, Trace
from nvgpu.progress import Progress
from nvgpu.train import report, tensorboard
from nvgpu.train.journal import Journal, Noted, read_events


@dataclass(frozen=True)
class WatchOptions:
    """`report`: folder for the report, its log and TensorBoard files. `profile`: measure times and counts per phase and op.
    `trace`: file for a timeline of the first `trace_steps` training steps; implies `profile`."""

    report: Path | None = None
    profile: bool = False
    trace: Path | None = None
    trace_steps: int = 3

    def check(self, others: Sequence[Path]) -> None:
        """Folder and file can be written, and what stands there is of a run.

        Raises:
            InputError, OutputError: they cannot, or the folder's log is none.
        """
        if self.trace is not None:
            check_target(self.trace, others)
        if self.report is None:
            return
        if self.report.exists() and not self.report.is_dir():
            raise InputError(f"--report {self.report}: found a file, expected a folder or a place for one")
        if not self.report.exists():
            check_target(self.report)
            return
        log = self.report / report.LOG
        for path in (log, self.report / report.PAGE):
            check_target(path, others)
        if log.exists():
            read_events(log)


class Watch:
    """Used as a context manager around a run: however that ends, the log gets its end, and report and trace are written.

    Nothing is written before `begin`, so that a refused run leaves no report.
    """

    def __init__(self, options: WatchOptions, device: Device, progress: Progress) -> None:
        self.options = options
        self.device = device
        self.journal = Journal(options.report / report.LOG if options.report else None)
        self.progress: Progress = Noted(progress, self.journal)
        self._tracer = Trace(options.trace_steps) if options.trace else None
        self.profiler: Profiler | None = None
        if options.profile or self._tracer:
            self.profiler = Profiler(device, optional=True, trace=self._tracer)
        self.profile: dict[str, Any] | None = None
        self._writer: tensorboard.Writer | None = None
        self._begun = False
        self._since = time.perf_counter()

    # ── from begin to end ──

    def begin(self, resuming: bool, facts: dict[str, Any]) -> None:
        """The run's inputs are good: `facts` about it open the log."""
        self._begun = True
        if self.options.report is not None:
            self._open(self.options.report, resuming, facts)
        if self.profiler is not None and not self.profiler.timestamps:
            self.progress.say(
                f"adapter {self.device.adapter.label} grants no timestamp-query: the profile has the host's numbers only"
            )

    def _open(self, folder: Path, resuming: bool, facts: dict[str, Any]) -> None:
        with output_errors(folder):
            folder.mkdir(exist_ok=True)
        self.journal.open(keep=resuming)
        self.journal.add("run", seconds=self.lap(), resuming=resuming, **facts)
        self._writer = tensorboard.Writer.open(folder / "tensorboard")
        if self._writer is None:
            self.progress.say("no TensorBoard files: the package tensorboardX is not installed")
        else:
            self.journal.sinks.append(self._writer.add)

    def lap(self) -> float:
        """Seconds since the last call, or since the start."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before

    def resumed(self, step: int, tried: int, evals: int) -> None:
        """The run goes on behind a saved state, or starts anew (all 0) where there was none."""
        self.journal.rewind(tried, evals)
        if self._writer is not None:
            self._writer.rewind(step)
        self.journal.add("resume", step=step, tried=tried)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish("finished", "")
            return
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        try:
            self._finish("interrupted" if stopped else "failed", " ".join(str(error).split()))
        except Exception as e:  # the error that ended the run is the one to raise
            self.progress.say(f"no report: {e}")

    def _finish(self, outcome: str, message: str) -> None:
        if self.profiler is not None:
            self.profile = self.profiler.report()
            self.journal.add("profile", **self.profile)
            self.profiler.free()
        if not self._begun:
            return
        if self._tracer is not None:
            self._write_trace(self._tracer)
        memory = self.device.memory
        self.journal.add("end", outcome=outcome, message=message, memory_peak=memory.peak)
        self.journal.close()
        if self._writer is not None:
            self._writer.close()
        if self.journal.failed is not None:
            self.progress.say(self.journal.failed)
        if self.options.report is not None:
            page = report.write(self.options.report)
            self.progress.say(f"report: {page}")

    def after_step(self) -> None:
        """Between steps: the trace is written as soon as it is complete."""
        if self._tracer is not None and self._tracer.complete:
            self._write_trace(self._tracer)

    def _write_trace(self, trace: Trace) -> None:
        assert self.options.trace is not None
        self._tracer = None
        with AtomicFile(self.options.trace) as out:
            out.write(json.dumps(trace.document(self.device.adapter.label)).encode())
        left_out = f", {trace.dropped} events left out" * bool(trace.dropped)
        self.progress.say(f"trace of {trace.stepped} steps: {self.options.trace}{left_out}")
