"""What the commands share: errors as one line, JSON on standard output, common options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from nvgpu.errors import NvgpuError

adapter_option = click.option(
    "--adapter",
    metavar="SELECTOR",
    help="Adapter: an index, a type (discrete, integrated, cpu) or part of the name. Default: NVGPU_ADAPTER, else the best one.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else."
)
EXISTING = click.Path(dir_okay=False)


class Command(click.Command):
    """A command whose expected failures are one line on standard error and exit code 1 (a traceback with --debug)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--debug"], is_flag=True, expose_value=False, help="Show tracebacks.", callback=_keep
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NvgpuError as e:
            if ctx.meta.get("nvgpu.debug"):
                raise
            click.echo(f"error: {e}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted; no output was written", err=True)
            ctx.exit(130)


def _keep(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta["nvgpu.debug"] = value


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorator: `click.command` with our error handling."""
    return click.command(name, cls=Command)


def print_json(value: Any) -> None:
    """One JSON object; non-finite numbers become null, since JSON has none."""
    sys.stdout.write(json.dumps(_plain(value), allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value - value != 0.0:
        return None
    return value
