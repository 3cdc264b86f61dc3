"""Progress on standard error: two live lines on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from nvgpu.cli import console as module
from nvgpu.cli.console import ConsoleProgress, duration


class Clock:
    """A monotonic clock that stands still until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def lines_of(out: io.StringIO) -> list[str]:
    return out.getvalue().splitlines()


def test_plain_lines_get_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    progress = ConsoleProgress(Console(file=out, width=200))
    progress.start("train", 40_000, "steps")
    for _ in range(40_000):
        clock.now += 1.0
        progress.advance(1, loss=2.5, tokens=4096.0)
    lines = lines_of(out)
    assert lines[0] == "train 10/40000 1 steps/s  4096 tokens/s  ETA 11:06 h  loss 2.5"
    assert 100 < len(lines) < 250
    assert lines[-1].startswith("train 40000/40000 ")


def test_rate_is_of_the_last_units_and_not_of_resumed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    progress = ConsoleProgress(Console(file=out, width=200))
    progress.start("train", 120, "steps", done=100)
    clock.now += 20.0
    progress.advance(2)
    assert lines_of(out) == ["train 102/120 0.1 steps/s  ETA 3:00 min"]


def test_memory_is_shown_in_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    out = io.StringIO()
    progress = ConsoleProgress(Console(file=out, width=200))
    progress.start("train", 1, "steps")
    progress.advance(1, loss=1.0, KL=0.25, memory=1.5e9, peak=2e9)
    assert "loss 1  KL 0.25  device 1.500 GB (peak 2.000)" in out.getvalue()


def test_a_terminal_shows_the_bar_and_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    progress = ConsoleProgress(Console(file=out, force_terminal=True, width=100, color_system=None))
    progress.start("train", 4, "steps")
    progress.advance(1, loss=2.5, KL=0.75, tokens=64.0, memory=1e9, peak=1e9)
    progress.doing("evaluation")
    progress.say("step 1: said")
    progress.stop()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "1/4" in shown and "tokens/s  ETA" in shown
    assert "evaluation  loss 2.5  KL 0.75  device 1.000 GB" in shown and "step 1: said" in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (99, "99 s"), (187, "3:07 min"), (7500, "2:05 h"), (400_000, "111:06 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
