"""What the commands share: errors as one line, JSON on standard output, common options."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from nvgpu.cli.console import printable
from nvgpu.errors import Interrupted, NvgpuError, OutputError
from nvgpu.formats.text import LOSS_ON

adapter_option = click.option(
    "--adapter",
    metavar="SELECTOR",
    help="Adapter: an index, a type (discrete, integrated, cpu) or part of the name. Default: NVGPU_ADAPTER, else the best one.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else."
)
EXISTING = click.Path(dir_okay=False)


vram_option = click.option(
    "--vram",
    metavar="GIB",
    type=click.FloatRange(min=0, min_open=True),
    help="Device memory to keep to, in GiB; layers that take more than half of it are streamed. Default: no bound.",
)

loss_on_option = click.option(
    "--loss-on",
    default="all",
    show_default=True,
    type=click.Choice(LOSS_ON),
    help="Rows that count: all, or only those that predict an answer: tokens of assistant turns, their last one included.",
)


def budget_bytes(vram: float | None) -> int:
    """`--vram` in bytes; 0 where it is not given."""
    return int((vram or 0) * (1 << 30))


shard_option = click.option(
    "--shard-max-gb",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    help="Split the output into NAME-00001-of-00005.cmf and so on, each of at most so many gigabytes (10^9 bytes) of weights.",
)


def shard_bytes(gigabytes: float | None) -> int | None:
    """`--shard-max-gb` in bytes; None where it is not given."""
    return None if gigabytes is None or math.isinf(gigabytes) else max(1, int(gigabytes * 1e9))


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
        output = ctx.params.get("output")
        before = _state(output)
        try:
            return self._run(ctx)
        except KeyboardInterrupt:
            written = f"{output} was written" if _state(output) != before else "no output was written"
            _complain(f"interrupted; {written}")
            ctx.exit(130)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as e:
            if ctx.meta.get("nvgpu.debug") or (isinstance(e, OSError) and e.errno == errno.EPIPE):
                raise  # click ends quietly where the reader of a pipe has gone
            if isinstance(e, Interrupted):
                _complain(str(e))
                ctx.exit(e.exit_code)
            _complain(f"error: {_message(e)}")
            ctx.exit(1)

    def _run(self, ctx: click.Context) -> Any:
        prints = any(param.name == "as_json" for param in self.params)
        if prints and sys.stdout is None:
            raise OutputError("standard output is closed, expected a place to print to")
        if isinstance(sys.stdout, io.TextIOWrapper):  # names may hold what the terminal's encoding lacks
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or Python fails again when it flushes at exit
            raise OutputError("standard output cannot be written: no space left on device") from e
        return result


def _message(error: Exception) -> str:
    if isinstance(error, NvgpuError):
        return str(error)
    return f"internal: {type(error).__name__}: {error} (run with --debug for the traceback)"


def _complain(line: str) -> None:
    with suppress(OSError):  # nobody is left to tell
        click.echo(printable(line), err=True)


def _state(path: Any) -> tuple[int, int, int] | None:
    """What changes when a file or folder is written at `path`; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, TypeError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


class Positive(click.FloatRange):
    """A finite number above 0; click's own ranges let NaN pass."""

    def __init__(self, most: float = math.inf) -> None:
        super().__init__(min=0, max=most, min_open=True, max_open=math.isinf(most))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


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
