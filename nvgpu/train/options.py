"""Settings of a training run; the command line and the Python API share them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from nvgpu.errors import InputError
from nvgpu.formats.text import LOSS_ON
from nvgpu.train.sign_options import SignOptions

PRECISIONS = ("auto", "f32", "mixed")
MAX_TOPK = 256  # what the device's top-k selection keeps
MAX_RATE = 1e30  # products of it stay within f32
_MANY = 1 << 40
COUNTS = {
    "tokens": (1, _MANY),
    "window": (2, _MANY),
    "batch": (1, _MANY),
    "epochs": (1, _MANY),
    "topk": (1, MAX_TOPK),
    "eval_windows": (1, _MANY),
    "eval_every": (1, _MANY),
    "micro_batch": (0, _MANY),
    "seed": (0, (1 << 64) - 1),
}
"""Least and largest value of every whole number."""


@dataclass(frozen=True)
class TrainOptions:
    """Everything that changes the arithmetic of a run.

    tokens: training tokens drawn from the sources. window, batch: tokens a window, windows a step. epochs: passes over the
    windows. lr: peak learning rate (relative to the magnitude for h, l, g). topk: teacher probabilities kept per token.
    eval_windows, eval_every: held-out windows, and steps between evaluations. clip: global gradient norm.
    micro_batch: windows on the device at once (0: the batch). precision: `f32`, `mixed` (GEMMs
    round weights and inputs to f16 and sum in f32), or `auto`: mixed where matrix units run. loss_on: rows that count, `all` or
    those that predict an `answer`. signs: how they train (None:
    they do not).
    """

    tokens: int = 1_000_000
    window: int = 512
    batch: int = 8
    epochs: int = 1
    lr: float = 3e-2
    topk: int = 64
    eval_windows: int = 32
    eval_every: int = 50
    clip: float = 1.0
    micro_batch: int = 0
    precision: str = "auto"
    loss_on: str = "all"
    seed: int = 42
    signs: SignOptions | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in COUNTS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"--{name.replace('_', '-')}: found {value}, expected {low} to {high}")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if not 0 < value <= MAX_RATE:
                raise InputError(f"--{name}: found {value}, expected more than 0, at most {MAX_RATE:g}")
        if self.precision not in PRECISIONS:
            raise InputError(
                f"--precision: found {self.precision!r}, expected one of {', '.join(PRECISIONS)}"
            )
        if self.loss_on not in LOSS_ON:
            raise InputError(f"--loss-on: found {self.loss_on!r}, expected one of {', '.join(LOSS_ON)}")
        if self.micro_batch and self.batch % self.micro_batch:
            raise InputError(
                f"--micro-batch: found {self.micro_batch}, expected a divisor of --batch {self.batch}"
            )

    @property
    def windows_at_once(self) -> int:
        return self.micro_batch or self.batch

    def resolved(self, matrix_units: bool) -> TrainOptions:
        """The options with `auto` replaced by what it means on a device."""
        if self.precision != "auto":
            return self
        return replace(self, precision="mixed" if matrix_units else "f32")

    def record(self) -> dict[str, Any]:
        """The options as provenance keeps them, without those of signs; micro-batches change no result that matters, so they
        are left in too."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "signs"}
