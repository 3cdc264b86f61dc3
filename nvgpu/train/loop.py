"""The distillation loop: steps, skipped steps, schedule, evaluation, and the best snapshot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nvgpu.errors import TrainingError
from nvgpu.model.executor import Executor
from nvgpu.progress import Progress
from nvgpu.train.journal import Journal
from nvgpu.train.optimizer import Adam
from nvgpu.train.options import TrainOptions
from nvgpu.train.schedule import learning_rate
from nvgpu.train.signs import SignTraining
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
    unscored: int = 0  # batches without a row that counts
    diverged: bool = False
    losses: list[float] = field(default_factory=list)
    evals: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far: held-out KL, its step (0: the start), the flat parameter values, and the words of the signs
    where they train."""

    kl: float
    step: int
    values: Array
    bits: Array | None = None


class Distillation:
    """Trains `student` towards `targets`, which hold the training batches first and the held-out ones behind them.

    `unstorable` says why a checkpoint's parameters cannot be written; such a checkpoint is never the best.
    `after_step` is called between steps, where `snapshot` and `restore` make sense.
    """

    ARRAYS: tuple[str, ...] = ("values", "m1", "m2", "best", "order")

    def __init__(
        self,
        student: Executor,
        windows: Windows,
        targets: Targets,
        options: TrainOptions,
        progress: Progress,
        unstorable: Unstorable = lambda values: None,
        after_step: Callable[[Distillation], None] = lambda loop: None,
        journal: Journal | None = None,
    ) -> None:
        self.student = student
        self.windows = windows
        self.targets = targets
        self.options = options
        self.progress = progress
        self.unstorable = unstorable
        self.after_step = after_step
        self.journal = journal or Journal()
        self.adam = Adam(student.rec, student.ws, student.net.params)
        self.state = Progression()
        self.epoch = self.index = 0  # of the next batch, which is order[index]
        self.order: list[int] = []
        self.start_kl = math.nan  # held-out KL before training
        self.total = windows.scored_batches * options.epochs
        self._rows_at_once = options.windows_at_once * options.window
        self.signs: SignTraining | None = None
        if student.net.signs is not None and options.signs is not None:
            deferred = options.windows_at_once < options.batch
            self.signs = SignTraining(student, options.signs, self.total, deferred, progress)
            kinds = student.net.signs.matrices[0].state()
            self.ARRAYS = (*self.ARRAYS, "best.bits", *(f"signs.{kind}" for kind in kinds))

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
        arrays |= {"best": self.best.values, "order": np.array(self.order, np.int64)}
        if self.signs is not None and self.best.bits is not None:
            facts["signs"], kinds = self.signs.snapshot()
            arrays |= {"best.bits": self.best.bits, **{f"signs.{kind}": a for kind, a in kinds.items()}}
        return facts, arrays

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
        if self.signs is not None:
            kinds = {
                name.removeprefix("signs."): a for name, a in arrays.items() if name.startswith("signs.")
            }
            self.signs.restore(facts["signs"], kinds)
            self.signs.signs.payloads(arrays["best.bits"])  # refuses those of another net
        self.best = Best(
            float(facts["best_kl"]), int(facts["best_step"]), arrays["best"], arrays.get("best.bits")
        )
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
        self.progress.start("train", self.total, "steps", done=self.tried)
        diverged = self._epochs()
        if diverged is not None:
            self._log("diverged", message=str(diverged))
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
        began = time.perf_counter()
        self.start_kl = self.held_out_kl()
        self._log("start", heldout_kl=self.start_kl, seconds=time.perf_counter() - began)
        if not math.isfinite(self.start_kl):
            raise TrainingError(f"held-out KL before training is {self.start_kl}, expected a finite number")
        self.progress.say(f"held-out KL before training: {self.start_kl:.5f}")
        self.best = self._checkpoint(self.start_kl, 0, self.student.net.params.values.read())

    def _checkpoint(self, kl: float, step: int, values: Array) -> Best:
        bits = self.signs.signs.bits() if self.signs is not None else None
        return Best(kl, step, values, bits)

    def _epochs(self) -> TrainingError | None:
        """The steps and evaluations; what ended them early, if anything did."""
        while self.epoch < self.options.epochs:
            if self.index == 0:
                self.order = self.windows.epoch_order()
            while self.index < len(self.order):
                try:
                    with self.student.rec.step():
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
        """One optimiser step on a training batch; False if it was skipped: not finite, or without a row that counts.

        Raises:
            TrainingError: too many steps in a row that were not finite.
        """
        began = time.perf_counter()
        ids, weights = self.windows.train[batch], self.windows.row_weights(batch)
        sum_of_weights = float(weights.sum(dtype=np.float64))
        if sum_of_weights == 0:
            self.state.unscored += 1
            return False
        rows = np.zeros(len(ids), np.float64)
        if self.signs is not None:
            self.signs.begin(self.state.done)
        for part in self._parts(len(ids)):
            if weights[part].any():
                targets = self.targets.ids[batch, part], self.targets.p[batch, part]
                rows[part] = self.student.step(ids[part], *targets, weights[part] / sum_of_weights)
        loss, norm = float(rows @ weights) / sum_of_weights, self.adam.grad_norm() / self.student.gscale
        bad = self.signs.end() if self.signs is not None else 0
        if not (math.isfinite(loss) and math.isfinite(norm)) or bad:
            if self.signs is not None:
                self.signs.skipped(bad)
            self._skip(loss, norm, began)
            return False
        self.state.done += 1
        self.state.skipped_in_a_row = 0
        self.state.losses.append(loss)
        rate = learning_rate(self.options.lr, self.state.done, self.total)
        clip = min(1.0, self.options.clip / norm) if norm > 0 else 1.0
        self.adam.step(rate, self.state.done, clip / self.student.gscale)
        shown = self.signs.taken() if self.signs is not None else {}
        shown = {"loss": loss, "grad": norm, "lr": rate, **shown}
        memory = self.student.net.device.memory
        self._log("step", **shown, tokens=len(ids), seconds=time.perf_counter() - began, memory=memory.live)
        kl = {"KL": self.state.evals[-1]["heldout_kl"] if self.state.evals else self.start_kl}
        self.progress.advance(1, **shown, **kl, tokens=float(len(ids)), memory=memory.live, peak=memory.peak)
        return True

    @property
    def tried(self) -> int:
        """Steps so far, the skipped ones too."""
        return self.state.done + self.state.skipped

    def _log(self, event: str, **fields: Any) -> None:
        self.journal.add(event, step=self.state.done, tried=self.tried, **fields)

    def _skip(self, loss: float, norm: float, began: float) -> None:
        self.adam.drop()
        self.student.gscale = max(self.student.gscale / 2, 1.0)
        state = self.state
        state.skipped += 1
        state.skipped_in_a_row += 1
        self.progress.advance(1)
        self._log(
            "skip", loss=loss, grad=norm, gscale=self.student.gscale, seconds=time.perf_counter() - began
        )
        self.progress.say(f"skipped a step: loss {loss:.4g}, gradient norm {norm:.4g}")
        if state.skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"{state.skipped_in_a_row} steps in a row were not finite (last loss {loss:.4g}, gradient norm {norm:.4g}); "
                "a lower --lr may help"
            )

    def evaluate(self) -> None:
        """Held-out KL now; keeps the parameters if it is the best so far."""
        began = time.perf_counter()
        kl = self.held_out_kl()
        found = self.signs.evaluated(kl, self.best.kl) if self.signs is not None else {}
        self.state.evals.append({"step": self.state.done, "heldout_kl": kl, **found})
        if kl < self.best.kl:
            params = self.student.net.params
            values = params.values.read()
            why = self.unstorable(params.unpack(values))
            if why is None:
                self.best = self._checkpoint(kl, self.state.done, values)
            else:
                self.progress.say(f"step {self.state.done} cannot become the best: {why}")
        best = {"best_kl": self.best.kl, "best_step": self.best.step}
        self._log("eval", heldout_kl=kl, **best, **found, seconds=time.perf_counter() - began)
        self.progress.say(
            f"step {self.state.done}: held-out KL {kl:.5f} (best {self.best.kl:.5f} at step {self.best.step})"
        )

    def held_out_kl(self) -> float:
        """Mean top-k KL over the held-out rows that count."""
        self.progress.doing("evaluation")
        total = sum_of_weights = 0.0
        with self.student.rec.phase("evaluation", whole=True):
            for b, ids in enumerate(self.windows.held_out, len(self.windows.train)):
                weights = self.windows.row_weights(b).astype(np.float64)
                sum_of_weights += float(weights.sum())
                for part in self._parts(len(ids)):
                    if weights[part].any():
                        rows = self.student.loss(
                            ids[part], self.targets.ids[b, part], self.targets.p[b, part]
                        )
                        total += float(rows @ weights[part])
        return total / sum_of_weights

    def _parts(self, rows: int) -> list[slice]:
        return [slice(i, i + self._rows_at_once) for i in range(0, rows, self._rows_at_once)]


def _as_json(entry: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in entry.items()}
