"""Sign training over a run: rates, guards, counts and statistics; the device side is in `nvgpu.layers.signs`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nvgpu.errors import InputError
from nvgpu.model.executor import Executor
from nvgpu.ops.signs import CLAMPED, FLIPS, NON_FINITE, SATURATED, STEPPED
from nvgpu.progress import Progress
from nvgpu.ref.signs import Hyper
from nvgpu.train.schedule import learning_rate
from nvgpu.train.sign_options import SignOptions

Array = np.ndarray[Any, Any]

_STEPS_OVER = 3  # steps in a row with too many flips that halve the rate
_WORSE = 1.05  # times the best held-out KL: a bad evaluation
_BAD_EVALS = 2


@dataclass
class SignState:
    """What the signs of a run have done so far.

    steps: sign steps, whole or partial. partial: those of skipped steps. factor: of the rate, halved by guards. streak: steps
    in a row with too many flips. bad_evals: evaluations in a row far above the best. The rest are sums over all steps; `flips`
    counts a sign as often as it flipped.
    """

    steps: int = 0
    partial: int = 0
    factor: float = 1.0
    streak: int = 0
    bad_evals: int = 0
    saturated: int = 0
    clamped: int = 0
    non_finite: int = 0
    flips: dict[str, int] = field(default_factory=dict)


class SignTraining:
    """The sign steps of a run of `total` steps; `deferred`: gradients of several passes are summed before the step."""

    def __init__(
        self, student: Executor, options: SignOptions, total: int, deferred: bool, progress: Progress
    ) -> None:
        assert student.net.signs is not None
        if not student.net.signs.matrices:
            raise InputError("--train-signs: the student has no binary low-rank linear")
        self.student = student
        self.signs = student.net.signs
        self.options = options
        self.total = total
        self.deferred = deferred
        self.progress = progress
        self.state = SignState()
        self.peak = options.peak(total)
        self.eta = 0.0  # of the step at hand
        self.flips = 0  # in it
        self.moved = 0  # matrices that it moved
        self.live = self.signs.live

    def describe(self) -> str:
        """One line about what trains."""
        auto = " (auto)" if self.options.lr is None else ""
        return (
            f"sign training: {self.live} signs in {len(self.signs.matrices)} matrices, optimiser {self.options.opt} "
            f"({self.signs.nbytes / 1e9:.3f} GB of state), tau {self.options.tau:g}, peak rate {self.peak:.3e}{auto}, "
            f"{self.options.warm} warm-up steps at rate 0"
        )

    # ── a step ──

    def begin(self, done: int) -> None:
        """Before the passes of the step behind `done` successful ones."""
        o, number = self.options, self.state.steps + 1
        shape = learning_rate(1.0, done + 1, self.total)
        self.eta = self.peak * self.state.factor * shape if number > o.warm else 0.0
        hyper = Hyper(
            eta=self.eta,
            step=number,
            unscale=1 / self.student.gscale,
            b1=o.b1,
            b2=o.b2,
            eps=o.eps,
            clamp=o.clamp,
            hyst=o.hyst,
            k=2 / o.tau,
        )
        self.signs.begin(self.student.rec, hyper, deferred=self.deferred)

    def end(self) -> int:
        """After the passes: how many sign gradients were not finite. Where no matrix moved, this was no sign step."""
        tally = self.signs.finish(self.student.rec, self.student.ws)
        state, bad = self.state, int(tally[NON_FINITE])
        state.non_finite += bad
        self.moved = int(tally[STEPPED])
        if not self.moved:
            return bad
        state.steps += 1
        found = {name: int(tally[FLIPS + i]) for i, name in enumerate(self.signs.slots)}
        self.flips = sum(found.values())
        state.flips = {name: state.flips.get(name, 0) + count for name, count in found.items()}
        state.saturated += int(tally[SATURATED])
        state.clamped += int(tally[CLAMPED])
        return bad

    def skipped(self, bad: int) -> None:
        """The step was skipped; what its backward has written to the signs stays."""
        if self.moved:
            self.state.partial += 1
        if bad:
            self.progress.say(
                f"{bad} sign gradients were not finite; {self.moved} of {len(self.signs.matrices)} sign matrices had moved"
            )

    def taken(self) -> dict[str, float]:
        """The step was taken: its values to show. Too many flips for three steps running halve the rate."""
        state, share = self.state, self.flips / self.live
        state.streak = state.streak + 1 if share > self.options.max_step_flip else 0
        if state.streak >= _STEPS_OVER:
            state.streak = 0
            self._halve(
                f"{share:.2e} of the signs flipped, more than {self.options.max_step_flip:g} for {_STEPS_OVER} steps"
            )
        return {"eta": self.eta, "flips": float(self.flips)}

    # ── evaluations ──

    def evaluated(self, kl: float, best: float) -> dict[str, float]:
        """Statistics at an evaluation; too many flipped signs, or a KL far above the best twice, halve the rate."""
        state, roles = self.state, self.signs.flipped()
        distinct = sum(flipped for flipped, _ in roles.values())
        share, updates = distinct / self.live, self.live * max(state.steps, 1)
        found = {
            "flipped": share,
            "churn": sum(state.flips.values()) / max(distinct, 1),
            "saturated": state.saturated / updates,
            "clamped": state.clamped / updates,
        }
        by_role = {name: flipped / live for name, (flipped, live) in roles.items()}
        self.progress.say(
            f"signs: {100 * share:.3f} % flipped ({distinct}), churn {found['churn']:.2f}, saturated {found['saturated']:.2e} "
            f"and clamped {found['clamped']:.2e} of the updates; "
            + ", ".join(f"{name} {100 * value:.2f} %" for name, value in by_role.items())
        )
        if share > self.options.max_total_flip:
            self._halve(
                f"{100 * share:.2f} % of the signs differ, more than {100 * self.options.max_total_flip:g} %"
            )
        state.bad_evals = state.bad_evals + 1 if not kl <= _WORSE * best else 0
        if state.bad_evals >= _BAD_EVALS:
            state.bad_evals = 0
            self._halve(f"held-out KL above {_WORSE} times the best twice")
        return found | {f"flipped.{name}": value for name, value in by_role.items()}

    def _halve(self, why: str) -> None:
        self.state.factor *= 0.5
        self.progress.say(f"sign rate halved (now {self.state.factor:g} of the schedule): {why}")

    # ── what outlives the steps ──

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts for JSON, and arrays by kind."""
        return asdict(self.state), self.signs.state()

    def restore(self, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
        """The inverse of `snapshot`. Raises TypeError or ValueError where it is of another run."""
        self.state = SignState(**facts)
        self.signs.restore(arrays)

    def record(self, bits: Array) -> dict[str, Any]:
        """Provenance of the checkpoint with these `bits`, which the net then holds."""
        self.signs.write_bits(bits)
        roles, state = self.signs.flipped(), self.state
        return {
            **self.options.record(),
            "seed": self.signs.spec.seed,
            "eta0": self.peak,
            "eta_final_multiplier": state.factor,
            "steps": state.steps,
            "partial_steps": state.partial,
            "flipped_fraction": sum(flipped for flipped, _ in roles.values()) / self.live,
            "per_role": {name: flipped / live for name, (flipped, live) in roles.items()},
        }
