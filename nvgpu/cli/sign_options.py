"""Options of sign training for `nvgpu train`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from nvgpu.ref.signs import OPTIMISERS
from nvgpu.train.sign_options import MOST_STEPS, RANGES, SignOptions, flag

_D = SignOptions()
_AUTO = {"lr": "min(0.15 tau/sqrt(steps), 4e-3 tau)", "seed": "--seed"}
_HELP = {
    "opt": "Optimiser of the latents: factored second moment, the same with momentum, or Adam with a full second moment.",
    "tau": "Half of the largest first latent; the slope of the straight-through tanh is 2/tau.",
    "lr": "Peak rate of the latents, on the schedule of --lr.",
    "warm": "First sign steps at rate 0, while the moments settle.",
    "b1": "Decay of the momentum (fact-mom, adam).",
    "b2": "Decay of the second moments.",
    "eps": "Share of the RMS gradient added to every denominator.",
    "clamp": "Largest update of a latent, before the rate.",
    "hyst": "A bit flips when its latent is this far beyond 0.",
    "max_step_flip": "Halve the rate when more than this share of the signs flips in each of three steps running.",
    "max_total_flip": "Halve the rate at an evaluation when more than this share of the signs differs from the start.",
    "seed": "Seed of the first latents and of the stochastic rounding.",
}


class _Range(click.FloatRange):
    """A finite range; click's own let NaN pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if found != found:
            self.fail(f"{value} is not a number", param, ctx)
        return found


def _kind(name: str) -> click.ParamType[Any]:
    if name == "opt":
        return click.Choice(OPTIMISERS)
    if name in RANGES:
        return _Range(*RANGES[name])
    return click.IntRange(0, MOST_STEPS if name == "warm" else (1 << 64) - 1)


def sign_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--train-signs` and every `--sign-…` option; `settings` reads them."""
    for field in reversed(fields(SignOptions)):
        default = getattr(_D, field.name)
        command = click.option(
            flag(field.name),
            f"sign_{field.name}",
            type=_kind(field.name),
            help=_HELP[field.name],
            show_default=_AUTO.get(field.name, str(default)),
        )(command)
    return click.option(
        "--train-signs", is_flag=True, help="Also train the signs of every binary low-rank tensor."
    )(command)


def settings(options: dict[str, Any]) -> SignOptions | None:
    """Takes the options of `sign_options` out of a command's; None without `--train-signs`.

    Raises:
        click.UsageError: a `--sign-…` option without `--train-signs`.
    """
    wanted = options.pop("train_signs")
    given = {field.name: options.pop(f"sign_{field.name}") for field in fields(SignOptions)}
    given = {name: value for name, value in given.items() if value is not None}
    if not wanted and given:
        raise click.UsageError(f"{flag(next(iter(given)))}: needs --train-signs")
    return SignOptions(**given) if wanted else None
