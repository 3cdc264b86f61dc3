"""Memory and time of a run before it: the run's own code on a ledger, which counts bytes and kernel calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvgpu.errors import GpuError, InputError
from nvgpu.formats.codecs import Dtype
from nvgpu.gpu import Device, Ledger, seconds_of
from nvgpu.gpu.ledger import Call
from nvgpu.model import names
from nvgpu.model.executor import Executor
from nvgpu.model.geometry import Geometry
from nvgpu.model.headers import Headers, zeros
from nvgpu.model.net import Net, NetOptions
from nvgpu.progress import Silent
from nvgpu.train.evaluate import evaluate
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.targets import Targets, batches_at_once
from nvgpu.train.windows import Windows, Xorshift64


@dataclass(frozen=True)
class Stage:
    """A stage of a run: device bytes at its peak, in all and by kind, and its largest buffer.

    streamed: bytes of layers that are uploaded each time they run; `uploads` of them in what `calls` hold: the kernel calls of
    a batch of the teacher's pass, or of a training step. problem: why the stage cannot run, as it would be said.
    """

    name: str
    peak: int
    kinds: dict[str, int]
    largest: tuple[str, int]
    streamed: int = 0
    problem: str | None = None
    calls: Mapping[Call, int] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Plan:
    """What a run takes. Bytes; seconds where a probe ran. `host` is memory of the host by use, files left out."""

    adapter: str
    precision: str
    budget: int
    limit: int  # bytes of the largest buffer that the adapter allows
    stages: list[Stage]
    host: dict[str, int]
    batches: int  # of the teacher's pass
    steps: int
    bpw: float  # of the student's binary low-rank tensors
    student_bytes: int
    seconds_per_step: float | None = None
    seconds_per_teacher_batch: float | None = None

    @property
    def peak(self) -> int:
        """Device bytes at the peak of the run."""
        return max(stage.peak for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether no buffer exceeds the adapter's limits, and the peak is within the budget."""
        return all(stage.problem is None for stage in self.stages)

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        stages = [{k: v for k, v in vars(stage).items() if k != "calls"} for stage in self.stages]
        return {**vars(self), "stages": stages, "peak": self.peak, "fits": self.fits}


def plan(ledger: Ledger, teacher: Headers, student: Headers, options: TrainOptions) -> Plan:
    """What the run of these options takes on the ledger's adapter.

    Raises:
        InputError, FormatError: models that cannot be trained together.
    """
    options = options.resolved(ledger.matrix_units)
    _check(teacher, student, options)
    run = _Run(ledger, teacher, student, options)
    stages = [
        run.stage("teacher pass", run.teach),
        run.stage("training", run.distil),
        run.stage("measurement", run.measure),
    ]
    blr = [entry for entry in student.tensors.values() if entry.dtype == Dtype.BLR]
    return Plan(
        adapter=ledger.adapter.label,
        precision=options.precision,
        budget=ledger.budget,
        limit=min(ledger.max_binding, ledger.limits["max-buffer-size"]),
        stages=stages,
        host=run.host(),
        batches=run.batches + run.held_out,
        steps=run.batches * options.epochs,
        bpw=sum(entry.bits for entry in blr) / sum(entry.shape[0] * entry.shape[1] for entry in blr),
        student_bytes=sum(entry.nbytes for entry in student.tensors.values()),
    )


def probed(found: Plan, device: Device) -> Plan:
    """With seconds: every kernel of a batch and of a step is timed on the device, at its sizes.

    Raises:
        GpuError: a kernel that cannot run there.
    """
    times = [seconds_of(device, stage.calls) for stage in found.stages[:2]]
    return Plan(**{**vars(found), "seconds_per_teacher_batch": times[0], "seconds_per_step": times[1]})


def _check(teacher: Headers, student: Headers, options: TrainOptions) -> None:
    ours, theirs = Geometry.of(student), Geometry.of(teacher)
    if ours.vocab_size != theirs.vocab_size:
        raise InputError(
            f"vocabulary sizes differ: {student.path} has {ours.vocab_size}, {teacher.path} has {theirs.vocab_size}"
        )
    if options.topk > ours.vocab_size:
        raise InputError(f"--topk {options.topk}: the vocabulary has {ours.vocab_size} tokens")
    for model, role, wanted in ((student, "student", True), (teacher, "teacher", False)):
        if wanted != any(entry.dtype == Dtype.BLR for entry in model.tensors.values()):
            found = "no binary low-rank tensor" if wanted else "binary low-rank tensors"
            raise InputError(f"{role} {model.path} has {found}; are student and teacher swapped?")


class _Run:
    """The stages of a run on a ledger, each as `nvgpu.train.run` does it."""

    def __init__(self, ledger: Ledger, teacher: Headers, student: Headers, options: TrainOptions) -> None:
        self.ledger = ledger
        self.teacher = teacher
        self.student = student
        self.options = options
        o = options
        self.rows = o.batch * o.window
        self.batches = max(o.tokens // o.window // o.batch, 1)
        self.held_out = o.eval_windows // o.batch
        self.mixed = o.precision == "mixed"
        self.params = 0
        if self.held_out == 0:
            raise InputError(f"--eval-windows {o.eval_windows}: fewer than one batch of {o.batch}")

    def stage(self, name: str, run: Callable[[], Net]) -> Stage:
        ledger, problem, streamed = self.ledger, None, 0
        ledger.restart()
        calls: Counter[Call] = Counter()
        try:
            net = run()
            calls = ledger.calls.copy()
            streamed = net.stream.nbytes if net.stream is not None else 0
        except GpuError as e:
            problem = str(e)
        if problem is None and 0 < ledger.budget < ledger.memory.peak:
            problem = f"{ledger.memory.peak} bytes exceed the budget of {ledger.budget} (--vram)"
        found = Stage(name, ledger.memory.peak, ledger.peak_kinds, ledger.largest, streamed, problem, calls)
        ledger.free_all()
        return found

    def teach(self) -> Net:
        o = self.options
        executor = Executor(Net(self.ledger, self.teacher, NetOptions(o.window, mixed=self.mixed)))
        at_once = o.windows_at_once * o.window
        parts = self.rows // at_once
        group = min(batches_at_once(executor, parts), self.batches + self.held_out) * parts
        ids = zeros("u4", (at_once,))
        for _ in executor.topk_of([ids] * group, o.topk):
            pass
        self.ledger.calls = Counter(
            {call: count * parts // group for call, count in self.ledger.calls.items()}
        )
        return executor.net

    def distil(self) -> Net:
        o = self.options
        signs = o.signs.spec(o.seed) if o.signs else None
        options = NetOptions(o.window, trainable=True, mixed=self.mixed, signs=signs)
        net = Net(self.ledger, self.student, options)
        self.params = net.params.count
        loop = self._loop(net)
        loop.held_out_kl()
        loop.step(0)
        self.ledger.calls.clear()
        loop.step(0)  # what later ones do
        if net.signs is not None:
            calls = self.ledger.calls.copy()
            net.signs.flipped()
            self.ledger.calls = calls
        return net

    def measure(self) -> Net:
        o = self.options
        net = Net(self.ledger, self.student, NetOptions(o.window, trainable=True, mixed=self.mixed))
        loop = self._loop(net)
        loop.held_out_kl()
        loop.student.free()
        net.free()
        tokens = zeros("u4", (self.held_out * self.rows,))
        evaluate(self.ledger, self.student, tokens, window=o.window, mixed=self.mixed, progress=Silent())
        return net

    def _loop(self, net: Net) -> Distillation:
        ids = zeros("u4", (1, self.rows))
        shape = (2, self.rows, self.options.topk)
        targets = Targets(zeros("u4", shape), zeros("f4", shape))
        return Distillation(Executor(net), Windows(ids, ids, Xorshift64(0)), targets, self.options, Silent())

    def host(self) -> dict[str, int]:
        o, geometry = self.options, Geometry.of(self.student)
        half = self.mixed or self.student.tensors[names.EMBED].dtype == Dtype.F16
        table = geometry.vocab_size * geometry.hidden_size * (2 if half else 4)
        bits = sum(e.nbytes for e in self.student.tensors.values() if e.dtype == Dtype.BLR) if o.signs else 0
        return {
            "teacher's targets": Targets.nbytes(self.batches + self.held_out, self.rows, o.topk),
            "embedding table": table,
            "best checkpoint": 4 * self.params + bits,
        }
