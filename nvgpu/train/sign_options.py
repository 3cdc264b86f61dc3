"""Settings of sign training; the command line and the Python API share them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from nvgpu.errors import InputError
from nvgpu.layers.signs import SignSpec
from nvgpu.ref.signs import OPTIMISERS

MOST_STEPS = 1 << 23  # a step's number is kept as f32
RANGES: dict[str, tuple[float, float]] = {
    "tau": (2.0**-10, 0.5),
    "lr": (0.0, 1.0),
    "b1": (0.0, 0.999),
    "b2": (0.0, 0.99999),
    "eps": (0.0, 1e3),
    "clamp": (2.0**-10, 1e3),
    "hyst": (0.0, 1.0),
    "max_step_flip": (0.0, 1.0),
    "max_total_flip": (0.0, 1.0),
}
"""Least and largest value of every real number."""


@dataclass(frozen=True)
class SignOptions:
    """How signs train.

    opt: `fact`, `fact-mom` or `adam`. tau: half of the largest first latent. lr: peak rate (None: min(0.15 tau / sqrt(steps),
    4e-3 tau)). warm: sign steps at rate 0 while the moments settle. b1, b2: decays of the moments. eps: share of the RMS in the
    denominator. clamp: largest update before the rate. hyst: latent beyond 0 at which a bit flips. max_step_flip: share of
    flips a step that, three steps in a row, halves the rate. max_total_flip: share of signs that differ from the start at an
    evaluation, which halves it. seed: of latents and rounding (None: the run's).
    """

    opt: str = "fact-mom"
    tau: float = 0.25
    lr: float | None = None
    warm: int = 4
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-3
    clamp: float = 4.0
    hyst: float = 0.0
    max_step_flip: float = 2e-3
    max_total_flip: float = 0.10
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.opt not in OPTIMISERS:
            raise InputError(f"--sign-opt: found {self.opt!r}, expected one of {', '.join(OPTIMISERS)}")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{flag(name)}: found {value}, expected {low:g} to {high:g}")
        for name, most in (("warm", MOST_STEPS), ("seed", (1 << 64) - 1)):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise InputError(f"{flag(name)}: found {value}, expected 0 to {most}")

    def peak(self, steps: int) -> float:
        """Peak rate of a run of so many steps."""
        if self.lr is not None:
            return self.lr
        return min(0.15 * self.tau / math.sqrt(max(steps, 1)), 4e-3 * self.tau)

    def spec(self, seed: int) -> SignSpec:
        """What the net needs to know, `seed` being the run's."""
        return SignSpec(self.opt, self.tau, seed if self.seed is None else self.seed)

    def record(self) -> dict[str, Any]:
        """The options as provenance keeps them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def flag(name: str) -> str:
    """The command line's name of an option."""
    return f"--sign-{name.replace('_', '-')}"


def run_key(options: SignOptions | None) -> dict[str, Any]:
    """What a state and the run that goes on from it must share."""
    record = options.record() if options else {}
    return {"--train-signs": options is not None, **{flag(name): value for name, value in record.items()}}
