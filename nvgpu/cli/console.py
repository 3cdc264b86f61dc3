"""Progress on standard error: a live bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0
_WIDTH_IN_A_FILE = 140


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def printable(text: str) -> str:
    """`text` on one line: control characters and halves of surrogate pairs become escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_table(title: str, columns: list[str], rows: list[list[str]], *, to: Console | None = None) -> None:
    """A table on standard output (or `to`); numbers right-aligned, except for the first column."""
    table = Table(title=_plain(title, "table.title"), title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(_plain(name), justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    console = to or Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_IN_A_FILE
    console.print(table)


def _plain(text: str, style: str = "") -> Text:
    """Text without markup: names may hold brackets."""
    return Text(printable(text), style)


class ConsoleProgress:
    """The Progress that commands use: rate and ETA, plus the values that the work reports (loss, learning rate)."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or stderr()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._phase = self._unit = ""
        self._done = self._total = 0
        self._began = self._spoke = 0.0

    def start(self, phase: str, total: int, unit: str) -> None:
        self.stop()
        self._phase, self._unit, self._done, self._total = phase, unit, 0, total
        self._began = self._spoke = time.monotonic()
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task(phase, total=total, note="")
            self._bar.start()

    def advance(self, units: int = 1, **values: float) -> None:
        self._done += units
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, advance=units, note=self._note(now, values))
        elif now - self._spoke >= _SECONDS_BETWEEN_LINES or self._done >= self._total:
            self._spoke = now
            left = (now - self._began) / max(self._done, 1) * (self._total - self._done)
            self._print(
                f"{self._phase} {self._done}/{self._total} {self._note(now, values)} eta {left:.0f} s"
            )

    def _note(self, now: float, values: dict[str, float]) -> str:
        rate = self._done / max(now - self._began, 1e-9)
        shown = [f"{rate:.3g} {self._unit}/s"] + [f"{k} {v:.4g}" for k, v in values.items() if k != "tokens"]
        if "tokens" in values:
            shown.append(f"{rate * values['tokens']:.0f} tokens/s")
        return "  ".join(shown)

    def say(self, line: str) -> None:
        self._print(line)

    def _print(self, line: str) -> None:
        console = self._bar.console if self._bar is not None else self.console
        with suppress(OSError):  # a full disk behind standard error ends no run
            console.print(_plain(line), soft_wrap=True)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
