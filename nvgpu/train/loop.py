"""The distillation loop: steps, skipped steps, schedule, evaluation, and the best snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nvgpu.errors import TrainingError
from nvgpu.model.executor import Executor
from nvgpu.progress import Progress
from nvgpu.train.optimizer import Adam
from nvgpu.train.options import TrainOptions
from nvgpu.train.schedule import learning_rate
from nvgpu.train.targets import Targets
from nvgpu.train.windows import Windows

_MAX_SKIPPED_IN_A_ROW = 24

Array = np.ndarray[Any, Any]
Unstorable = Callable[[Mapping[str, Array]], str | None]


@dataclass
class Progression:
    """What a run has done so far: counters, losses per successful step, and evaluations."""

    done: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    diverged: bool = False
    losses: list[float] = field(default_factory=list)
    evals: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far: held-out KL, its step (0: the start), and the flat parameter values."""

    kl: float
    step: int
    values: Array


class Distillation:
    """Trains `student` towards `targets`, which hold the training batches first and the held-out ones behind them.

    `unstorable` says why a checkpoint's parameters cannot be written; such a checkpoint is never the best.
    `after_step` is called between steps, where `snapshot` and `restore` make sense.
    """

    ARRAYS = ("values", "m1", "m2", "best", "order")

    def __init__(
        self,
        student: Executor,
        windows: Windows,
        targets: Targets,
        options: TrainOptions,
        progress: Progress,
        unstorable: Unstorable = lambda values: None,
        after_step: Callable[[Distillation], None] = lambda loop: None,
    ) -> None:
        self.student = student
        self.windows = windows
        self.targets = targets
        self.options = options
        self.progress = progress
        self.unstorable = unstorable
        self.after_step = after_step
        self.adam = Adam(student.rec, student.ws, student.net.params)
        self.state = Progression()
        self.epoch = self.index = 0  # of the next batch, which is order[index]
        self.order: list[int] = []
        self.total = len(windows.train) * options.epochs
        self._rows_at_once = options.windows_at_once * options.window

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All that the rest of the run depends on, between two steps: facts for JSON, and ARRAYS."""
        params = self.student.net.params
        facts = {
            "progression": asdict(self.state) | {"evals": [_as_json(e) for e in self.state.evals]},
            "epoch": self.epoch,
            "index": self.index,
            "stream": self.windows.stream.state,
            "gscale": self.student.gscale,
            "start_kl": self.start_kl,
            "best_kl": self.best.kl,
            "best_step": self.best.step,
        }
        held = {"values": params.values, "m1": params.m1, "m2": params.m2}
        arrays = {name: buffer.read() for name, buffer in held.items()}
        return facts, {**arrays, "best": self.best.values, "order": np.array(self.order, np.int64)}

    def restore(self, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Continue from a snapshot of the same run.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        params = self.student.net.params
        for name in ("values", "m1", "m2", "best"):
            if arrays[name].shape != (params.count,) or arrays[name].dtype != np.float32:
                raise ValueError(f"{name} is {arrays[name].dtype} {list(arrays[name].shape)}")
        self.state = Progression(**facts["progression"])
        for entry in self.state.evals:
            if entry["heldout_kl"] is None:
                entry["heldout_kl"] = math.nan
        self.epoch, self.index = int(facts["epoch"]), int(facts["index"])
        self.windows.stream.state = int(facts["stream"])
        self.student.gscale = float(facts["gscale"])
        self.start_kl = float(facts["start_kl"])
        self.best = Best(float(facts["best_kl"]), int(facts["best_step"]), arrays["best"])
        self.order = [int(i) for i in arrays["order"]]
        for name, buffer in (("values", params.values), ("m1", params.m1), ("m2", params.m2)):
            buffer.write(arrays[name])

    def run(self, resumed: bool = False) -> Best:
        """All epochs, or those before the run diverged; returns the best checkpoint, the start if nothing beats it.

        Raises:
            TrainingError: the run diverged and nothing beat the start.
        """
        if not resumed:
            self._begin()
        self.progress.start("train", self.total, "steps")
        self.progress.advance(self.state.done + self.state.skipped)
        diverged = self._epochs()
        if not self.state.evals or self.state.evals[-1]["step"] != self.state.done:
            self.evaluate()  # the data has ended
        self.progress.stop()
        if diverged is not None:
            if self.best.step == 0:
                raise diverged
            self.state.diverged = True
            self.progress.say(
                f"the run diverged: {diverged}; the checkpoint of step {self.best.step} is kept"
            )
        return self.best

    def _begin(self) -> None:
        self.start_kl = self.held_out_kl()
        if not math.isfinite(self.start_kl):
            raise TrainingError(f"held-out KL before training is {self.start_kl}, expected a finite number")
        self.progress.say(f"held-out KL before training: {self.start_kl:.5f}")
        self.best = Best(self.start_kl, 0, self.student.net.params.values.read())

    def _epochs(self) -> TrainingError | None:
        """The steps and evaluations; what ended them early, if anything did."""
        while self.epoch < self.options.epochs:
            if self.index == 0:
                self.order = self.windows.epoch_order()
            while self.index < len(self.order):
                try:
                    stepped = self.step(self.order[self.index])
                except TrainingError as e:
                    return e
                self.index += 1
                if stepped and self.state.done % self.options.eval_every == 0:
                    self.evaluate()
                self.after_step(self)
            self.epoch, self.index = self.epoch + 1, 0
        return None

    def step(self, batch: int) -> bool:
        """One optimiser step on a training batch; False if it was not finite and therefore skipped.

        Raises:
            TrainingError: too many skipped steps in a row.
        """
        ids = self.windows.train[batch]
        weight = np.full(self._rows_at_once, 1.0 / len(ids), np.float32)
        rows = np.empty(len(ids), np.float64)
        for part in self._parts(len(ids)):
            rows[part] = self.student.step(
                ids[part], self.targets.ids[batch, part], self.targets.p[batch, part], weight
            )
        loss, norm = float(rows.mean()), self.adam.grad_norm() / self.student.gscale
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._skip(loss, norm)
            return False
        self.state.done += 1
        self.state.skipped_in_a_row = 0
        self.state.losses.append(loss)
        rate = learning_rate(self.options.lr, self.state.done, self.total)
        clip = min(1.0, self.options.clip / norm) if norm > 0 else 1.0
        self.adam.step(rate, self.state.done, clip / self.student.gscale)
        self.progress.advance(1, loss=loss, grad=norm, lr=rate, tokens=float(len(ids)))
        return True

    def _skip(self, loss: float, norm: float) -> None:
        self.adam.drop()
        self.student.gscale = max(self.student.gscale / 2, 1.0)
        state = self.state
        state.skipped += 1
        state.skipped_in_a_row += 1
        self.progress.advance(1)
        self.progress.say(f"skipped a step: loss {loss:.4g}, gradient norm {norm:.4g}")
        if state.skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"{state.skipped_in_a_row} steps in a row were not finite (last loss {loss:.4g}, gradient norm {norm:.4g}); "
                "a lower --lr may help"
            )

    def evaluate(self) -> None:
        """Held-out KL now; keeps the parameters if it is the best so far."""
        kl = self.held_out_kl()
        self.state.evals.append({"step": self.state.done, "heldout_kl": kl})
        if kl < self.best.kl:
            params = self.student.net.params
            values = params.values.read()
            why = self.unstorable(params.unpack(values))
            if why is None:
                self.best = Best(kl, self.state.done, values)
            else:
                self.progress.say(f"step {self.state.done} cannot become the best: {why}")
        self.progress.say(
            f"step {self.state.done}: held-out KL {kl:.5f} (best {self.best.kl:.5f} at step {self.best.step})"
        )

    def held_out_kl(self) -> float:
        """Mean top-k KL over the held-out windows."""
        first = len(self.windows.train)
        total = 0.0
        for b, ids in enumerate(self.windows.held_out, first):
            for part in self._parts(len(ids)):
                rows = self.student.loss(ids[part], self.targets.ids[b, part], self.targets.p[b, part])
                total += float(rows.sum(dtype=np.float64))
        return total / self.windows.held_out.size

    def _parts(self, rows: int) -> list[slice]:
        return [slice(i, i + self._rows_at_once) for i in range(0, rows, self._rows_at_once)]


def _as_json(entry: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in entry.items()}
