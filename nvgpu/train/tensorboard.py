"""TensorBoard event files beside the log, where the package tensorboardX is installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Self

_SCALARS = {
    "step": {
        "loss": "train/loss",
        "grad": "train/gradient_norm",
        "lr": "train/lr",
        "eta": "signs/rate",
        "flips": "signs/flips",
    },
    "start": {"heldout_kl": "held_out/kl"},
    "eval": {"heldout_kl": "held_out/kl", "flipped": "signs/flipped", "churn": "signs/churn"},
}
"""Fields of events that become curves; an evaluation's `flipped.ROLE.SIDE` are curves too."""


class Writer:
    """Writes the scalars of events; the files appear with the first of them."""

    def __init__(self, make: Any, folder: Path) -> None:
        self._make = make
        self._folder = folder
        self._purge = 0  # a new run replaces what is there
        self._writer: Any = None

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """None where tensorboardX is missing."""
        try:
            module = importlib.import_module("tensorboardX")
        except ImportError:
            return None
        return cls(module.SummaryWriter, folder)

    def rewind(self, step: int) -> None:
        """TensorBoard is to forget what older files hold behind this step."""
        self._purge = step + 1

    def add(self, event: dict[str, Any]) -> None:
        """The scalars of one event of the log."""
        names = dict(_SCALARS.get(event["event"], {}))
        names |= {key: f"signs/{key}" for key in event if key.startswith("flipped.")}
        for key, name in names.items():
            if event.get(key) is not None:
                self._open().add_scalar(name, event[key], event["step"], walltime=event["time"])
        if event["event"] == "eval":
            self._open().flush()

    def _open(self) -> Any:
        if self._writer is None:
            self._writer = self._make(logdir=str(self._folder), purge_step=self._purge)
        return self._writer

    def close(self) -> None:
        """Write out what is left."""
        if self._writer is not None:
            self._writer.close()
