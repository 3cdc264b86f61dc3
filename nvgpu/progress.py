"""What long work reports; the command line shows it on a terminal or as plain lines."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """`start` opens a phase of `total` units, `advance` moves it and shows values, `say` prints a line."""

    def start(self, phase: str, total: int, unit: str) -> None: ...
    def advance(self, units: int = 1, **values: float) -> None: ...
    def say(self, line: str) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """Reports nothing."""

    def start(self, phase: str, total: int, unit: str) -> None:
        pass

    def advance(self, units: int = 1, **values: float) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def stop(self) -> None:
        pass
