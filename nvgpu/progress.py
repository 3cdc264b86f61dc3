"""What long work reports; the command line shows it on a terminal or as plain lines."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """`start` opens a phase of `total` units, `done` of them from before; `advance` moves it and shows values.

    `doing` names what happens inside the phase until the next `advance`; `say` prints a line.
    """

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None: ...
    def doing(self, what: str) -> None: ...
    def advance(self, units: int = 1, **values: float) -> None: ...
    def say(self, line: str) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """Reports nothing."""

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        pass

    def doing(self, what: str) -> None:
        pass

    def advance(self, units: int = 1, **values: float) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def stop(self) -> None:
        pass
