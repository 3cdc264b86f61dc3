"""`nvgpu plan`: memory and time of a training run, from the models' headers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from nvgpu.cli.common import Positive, budget_bytes, command, json_option, print_json
from nvgpu.cli.console import print_table
from nvgpu.cli.sign_options import settings as sign_settings
from nvgpu.cli.train import train
from nvgpu.encode.compress import CompressOptions, is_body_linear, plan_ranks
from nvgpu.encode.encoders import AUTO, most_ranks
from nvgpu.encode.rank import RANK_STEP, blr_bits, check_shape, max_rank
from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.gpu import Ledger, choose_adapter, list_adapters, open_device
from nvgpu.gpu.ledger import KINDS
from nvgpu.model.headers import Headers
from nvgpu.train.options import TrainOptions
from nvgpu.train.plan import Plan, probed
from nvgpu.train.plan import plan as run_plan

_TAKEN = {field.name for field in fields(TrainOptions)} | {"train_signs", "adapter", "vram"}


def options_of_train(made: click.Command) -> click.Command:
    """Gives a command the options of `nvgpu train` that change what a run takes."""
    taken = [p for p in train.params if p.name in _TAKEN or str(p.name).startswith("sign_")]
    made.params[-1:-1] = taken  # before --debug
    return made


@options_of_train
@command("plan")
@click.argument("teacher", type=Path)
@click.argument("student", type=Path, required=False)
@click.option("--bpw", type=Positive(), help="Without STUDENT: bits per weight of one that is not made yet.")
@click.option(
    "--paths", default=1, show_default=True, type=click.IntRange(1, 2), help="With --bpw: paths a tensor."
)
@click.option(
    "--probe",
    is_flag=True,
    help="Also time every kernel of a step on the device, at its sizes; takes seconds.",
)
@json_option
def plan(
    teacher: Path,
    student: Path | None,
    bpw: float | None,
    paths: int,
    probe: bool,
    as_json: bool,
    adapter: str | None,
    vram: float | None,
    **options: Any,
) -> None:
    """What `nvgpu train STUDENT TEACHER` with these options takes: device memory by stage, host memory, time.

    From the headers of TEACHER and STUDENT alone: no weight is read, and without --probe nothing runs on the GPU.
    """
    if (student is None) == (bpw is None):
        raise click.UsageError("expected STUDENT, or --bpw for one that is not made yet")
    signs = sign_settings(options)
    settings = TrainOptions(**options, signs=signs)
    with ExitStack() as files:
        theirs = files.enter_context(CmfFile.open(teacher))
        headers = Headers.of(theirs)
        if student is not None:
            ours = Headers.of(files.enter_context(CmfFile.open(student)))
        else:
            assert bpw is not None
            ranks = plan_ranks(theirs, CompressOptions(bpw, paths=paths))
            ours = headers.compressed({name: choice[paths] for name, choice in ranks.items()}, paths)
    show(planned(headers, ours, settings, adapter, vram, probe), reachable(headers), as_json)


def planned(
    teacher: Headers,
    student: Headers,
    settings: TrainOptions,
    adapter: str | None,
    vram: float | None,
    probe: bool,
) -> Plan:
    """The plan for an adapter, which is opened for a probe only."""
    if not probe:
        chosen = choose_adapter(list_adapters(), adapter)
        return run_plan(Ledger.of_adapter(chosen, budget_bytes(vram)), teacher, student, settings)
    device = open_device(adapter, budget=budget_bytes(vram))
    return probed(run_plan(Ledger.of(device), teacher, student, settings), device)


def reachable(teacher: Headers) -> dict[str, tuple[float, float]]:
    """Least and most bits per weight of the body by `--paths`: every matrix at rank 8, and at the most that `auto` can use."""
    shapes = [check_shape(n, e.shape) for n, e in teacher.tensors.items() if is_body_linear(n)]
    if not shapes:
        raise InputError(f"{teacher.path}: no linear to compress")
    weights = sum(m * n for m, n in shapes)

    def full(m: int, n: int) -> int:
        return max_rank(m, n, most_ranks(AUTO))

    rank: list[Callable[[int, int], int]] = [lambda m, n: RANK_STEP, full]
    found = {}
    for paths in (1, 2):
        least, most = (sum(blr_bits(m, n, of(m, n), paths) for m, n in shapes) / weights for of in rank)
        found[str(paths)] = (least, most)
    return found


def show(found: Plan, bpw: dict[str, tuple[float, float]], as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        print_json(found.asdict() | {"reachable_bpw": bpw})
        return
    kinds = [kind for kind, _ in KINDS] + ["workspace"]
    used = [kind for kind in kinds if any(stage.kinds.get(kind) for stage in found.stages)]
    rows = [[kind, *(_mib(stage.kinds.get(kind, 0)) for stage in found.stages)] for kind in used]
    rows.append(["peak", *(_mib(stage.peak) for stage in found.stages)])
    rows.append(["largest buffer", *(f"{s.largest[0]} {_mib(s.largest[1])}" for s in found.stages)])
    if any(stage.streamed for stage in found.stages):
        rows.append(["streamed a sweep", *(_mib(stage.streamed) for stage in found.stages)])
    bound = f"budget {_mib(found.budget)} MiB, " if found.budget else ""
    title = f"{found.adapter}, {found.precision}: device memory at each stage's peak, MiB"
    print_table(title, ["", *(stage.name for stage in found.stages)], rows)
    facts = [
        ["buffer limit", f"{bound}{_mib(found.limit)} MiB a buffer"],
        *([f"host: {name}", f"{_mib(nbytes)} MiB"] for name, nbytes in found.host.items()),
        [
            "student",
            f"{found.bpw:.4f} bits per weight of the body, {_mib(found.student_bytes)} MiB of tensors",
        ],
        *(
            [f"reachable with --paths {paths}", f"{least:.4f} to {most:.4f} bits per weight"]
            for paths, (least, most) in bpw.items()
        ),
    ]
    if found.seconds_per_step is not None and found.seconds_per_teacher_batch is not None:
        total = found.seconds_per_step * found.steps + found.seconds_per_teacher_batch * found.batches
        facts += [
            ["a step (kernels only)", f"{found.seconds_per_step:.3g} s, {found.steps} steps"],
            ["a batch of the teacher", f"{found.seconds_per_teacher_batch:.3g} s, {found.batches} batches"],
            ["teacher and steps", f"{total:.3g} s, without evaluations, uploads and the host's work"],
        ]
    facts += [[f"{s.name} does not fit", str(s.problem)] for s in found.stages if s.problem is not None]
    print_table("run", ["", ""], facts)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f}"
