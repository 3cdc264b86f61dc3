"""Progress on standard error: a live bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0
_MOST_SECONDS_BETWEEN_LINES = 300.0
_RATE_OVER = 50  # calls of advance
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
    """The Progress that commands use.

    On a terminal two live lines: the bar with rate and ETA, and the values that the work reports. Elsewhere plain lines, ten
    seconds apart at first and up to five minutes on a long run.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or stderr()
        self._bar: Progress | None = None
        self._live: Live | None = None
        self._task = TaskID(0)
        self._phase = self._unit = ""
        self._done = self._total = 0
        self._began = self._spoke = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER)
        self._values: dict[str, float] = {}

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        self.stop()
        self._phase, self._unit, self._done, self._total = phase, unit, done, total
        self._began = self._spoke = time.monotonic()
        self._recent.clear()
        self._recent.append((self._began, done))
        self._values = {}
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}", markup=False),
            )
            self._bar = Progress(*columns, console=self.console)
            self._task = self._bar.add_task(phase, total=total, completed=done, rate="")
            self._live = Live(console=self.console, transient=True, refresh_per_second=5)
            self._live.start()
            self._show("")

    def doing(self, what: str) -> None:
        self._show(what)

    def advance(self, units: int = 1, **values: float) -> None:
        self._done += units
        self._values |= values
        now = time.monotonic()
        self._recent.append((now, self._done))
        if self._live is not None:
            self._show("")
        elif now - self._spoke >= self._silence(now) or self._done >= self._total:
            self._spoke = now
            self._print(f"{self._phase} {self._done}/{self._total} {self._rate()}  {self._note()}".rstrip())

    def _silence(self, now: float) -> float:
        """Seconds between two plain lines: a thirtieth of the time so far, within bounds."""
        return min(max((now - self._began) / 30, _SECONDS_BETWEEN_LINES), _MOST_SECONDS_BETWEEN_LINES)

    def _show(self, doing: str) -> None:
        if self._live is None or self._bar is None:
            return
        self._bar.update(self._task, completed=self._done, rate=self._rate())
        note = "  ".join(filter(None, [doing, self._note()]))
        self._live.update(Group(self._bar, Text(f"  {note}", "dim", overflow="ellipsis", no_wrap=True)))

    def _rate(self) -> str:
        """Rate over the last units, and the time that the rest takes at it."""
        (since, before), (now, _) = self._recent[0], self._recent[-1]
        if self._done <= before:
            return ""
        rate = (self._done - before) / max(now - since, 1e-9)
        shown = f"{rate:.3g} {self._unit}/s"
        if "tokens" in self._values:
            shown += f"  {rate * self._values['tokens']:.0f} tokens/s"
        return f"{shown}  ETA {duration((self._total - self._done) / rate)}"

    def _note(self) -> str:
        v = self._values
        shown = [f"{k} {x:.4g}" for k, x in v.items() if k not in ("tokens", "memory", "peak")]
        if "memory" in v:
            shown.append(f"device {v['memory'] / 1e9:.3f} GB (peak {v.get('peak', v['memory']) / 1e9:.3f})")
        return "  ".join(shown)

    def say(self, line: str) -> None:
        self._print(line)

    def _print(self, line: str) -> None:
        console = self._live.console if self._live is not None else self.console
        with suppress(OSError):  # a full disk behind standard error ends no run
            console.print(_plain(line), soft_wrap=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = self._bar = None


def duration(seconds: float) -> str:
    """Such as 48 s, 3:07 min, 2:05 h."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
