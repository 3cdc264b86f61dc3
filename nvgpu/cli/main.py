"""The command line: one group `nvgpu`, and `nvgpu-train` as a command of its own."""

from __future__ import annotations

import click

from nvgpu import __version__

try:
    from nvgpu.cli.compress import compress
    from nvgpu.cli.convert import convert, export
    from nvgpu.cli.devices import devices
    from nvgpu.cli.evaluate import evaluate
    from nvgpu.cli.inspect import inspect
    from nvgpu.cli.plan import plan
    from nvgpu.cli.report import report
    from nvgpu.cli.requant import requant
    from nvgpu.cli.train import train
    from nvgpu.cli.verify import sign, verify
except KeyboardInterrupt:  # the imports take a second
    raise SystemExit(130) from None


@click.group()
@click.version_option(__version__, prog_name="nvgpu")
def main() -> None:
    """Make a Qwen3.5-family language model 3 to 20 times smaller, on any GPU.

    \b
    nvgpu convert HF_DIR -o teacher.cmf
    nvgpu compress teacher.cmf -o student.cmf --bpw 1.0
    nvgpu plan teacher.cmf student.cmf
    nvgpu train student.cmf teacher.cmf --calib text.txt -o trained.cmf
    nvgpu eval trained.cmf --text held_out.txt --teacher teacher.cmf
    nvgpu export trained.cmf -o HF_DIR
    """


for _command in (
    convert,
    compress,
    plan,
    train,
    evaluate,
    export,
    inspect,
    report,
    requant,
    verify,
    sign,
    devices,
):
    main.add_command(_command)


def train_main() -> None:
    """Entry point of `nvgpu-train`."""
    train(prog_name="nvgpu-train")
