"""The report of a run: one self-contained page made from its log, whether the run has ended well or not."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from nvgpu.errors import InputError
from nvgpu.formats.files import AtomicFile
from nvgpu.train import charts
from nvgpu.train.journal import Event, read_events

LOG = "log.jsonl"
PAGE = "report.html"
_MOST_MESSAGES = 200
_MOST_OPS = 40
_STAGES = {
    "run": "preparation",
    "teacher": "teacher pass",
    "step": "training steps",
    "skip": "skipped steps",
    "start": "evaluation",
    "eval": "evaluation",
    "saved": "saving the state",
    "written": "writing the file",
    "measured": "measuring the file",
}
"""Events that took `seconds`, and what these were spent on."""


def write(folder: Path) -> Path:
    """Make the page in `folder` from the log there.

    Raises:
        InputError: the log has no run.
        OutputError: the log is damaged, or the page cannot be written.
    """
    page = render(read_events(folder / LOG), str(folder / LOG))
    with AtomicFile(folder / PAGE) as out:
        out.write(page.encode())
    return folder / PAGE


def render(events: list[Event], where: str) -> str:
    """The page of a log's events.

    Raises:
        InputError: they have no run.
    """
    history = History(events, where)
    text = (files("nvgpu.train") / "report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text).render(
        title=f"Training {history.run['output']}",
        outcome=history.outcome,
        cards=_cards(history),
        before_after=_before_after(history),
        charts=_charts(history),
        settings=_settings(history),
        profile=_profile(history),
        messages=[(_clock(e["time"]), e["text"]) for e in history.of("message")][-_MOST_MESSAGES:],
        tool=history.run["tool"],
        log=LOG,
    )


class History:
    """A log's events by kind; several sessions of a resumed run follow each other."""

    def __init__(self, events: list[Event], where: str) -> None:
        self.events = events
        self._by_kind: dict[str, list[Event]] = {}
        for event in events:
            self._by_kind.setdefault(event["event"], []).append(event)
        if not self.of("run"):
            raise InputError(f"{where}: holds no run")
        self.run = self.of("run")[-1]

    def of(self, kind: str) -> list[Event]:
        """All events of a kind, in their order."""
        return self._by_kind.get(kind, [])

    def last(self, kind: str) -> Event:
        """The newest of a kind; empty where there is none."""
        return (self.of(kind) or [{}])[-1]

    def newest(self, *kinds: str) -> Event:
        """The newest of some kinds in this session, or an empty one."""
        since = max(i for i, event in enumerate(self.events) if event["event"] == "run")
        found = [event for event in self.events[since:] if event["event"] in kinds]
        return (found or [{}])[-1]

    def curve(self, kind: str, key: str, factor: float = 1.0) -> list[tuple[float, float | None]]:
        """A field of a kind's events over the steps."""
        pairs = [(event["step"], event.get(key)) for event in self.of(kind)]
        return [(step, None if value is None else factor * value) for step, value in pairs]

    @property
    def kl(self) -> list[tuple[float, float | None]]:
        """Held-out KL at the start and at every evaluation."""
        return self.curve("start", "heldout_kl")[-1:] + self.curve("eval", "heldout_kl")

    @property
    def outcome(self) -> dict[str, str]:
        """How the newest session ended: kind and sentence."""
        end, diverged = self.newest("end"), self.newest("diverged")
        if not end:
            return {"kind": "running", "text": "The run goes on, or was killed: its log has no end."}
        if diverged:
            return {"kind": "diverged", "text": f"The run diverged: {diverged['message']}"}
        if end["outcome"] == "finished":
            return {"kind": "finished", "text": "The run finished."}
        return {
            "kind": end["outcome"],
            "text": f"The run {_VERBS[end['outcome']]}{end['message'] and ': ' + end['message']}",
        }


_VERBS = {"interrupted": "was interrupted", "failed": "failed"}


def _cards(h: History) -> list[tuple[str, str]]:
    """The figures that matter most: (name, value)."""
    steps, evaluated = h.last("step"), h.last("eval")
    rates = [event["tokens"] / event["seconds"] for event in h.of("step") if event["seconds"] > 0]
    found = [
        ("steps", f"{steps.get('step', 0)} of {h.run['total_steps']}"),
        ("held-out KL, start", _number(h.last("start").get("heldout_kl"))),
        ("held-out KL, best", _number(evaluated.get("best_kl"))),
    ]
    if h.newest("measured"):
        found.append(("perplexity, written file", _number(h.newest("measured")["perplexity"], ".5g")))
    if rates:
        found.append(("tokens/s in steps, median", f"{sorted(rates)[len(rates) // 2]:.0f}"))
    return found


def _before_after(h: History) -> list[dict[str, str]]:
    """Rows with measure, before, after, change."""
    student, written, measured = h.run["student"], h.newest("written"), h.newest("measured")
    start, best = h.last("start").get("heldout_kl"), h.last("eval")
    top = f"held-out KL (top-{h.run['options']['topk']})"
    rows = [
        (f"{top}, best checkpoint (step {best.get('best_step', 0)})", start, best.get("best_kl"), ".5f"),
        (f"{top}, written file", start, measured.get("heldout_kl"), ".5f"),
        ("held-out perplexity", measured.get("perplexity_start"), measured.get("perplexity"), ".5g"),
        ("file size (MB)", student["bytes"] / 1e6, _scaled(written.get("bytes"), 1e-6), ".3f"),
        ("bits per weight, whole file", student["bpw_file"], written.get("bpw_file"), ".3f"),
        ("bits per weight, body linears", student["bpw_body"], written.get("bpw_body"), ".3f"),
    ]
    return [
        {"name": name, "before": _number(a, form), "after": _number(b, form), "change": _change(a, b)}
        for name, a, b, form in rows
    ]


def _charts(h: History) -> list[dict[str, str]]:
    """Title and drawing of each chart that has something to show."""
    found = []

    def add(title: str, drawing: str) -> None:
        found.append({"title": title, "svg": drawing})

    steps, skipped = h.of("step"), [event["step"] for event in h.of("skip")]
    if steps:
        loss = h.curve("step", "loss")
        add("Loss", charts.lines({"loss": loss}, y="KL to the teacher's top-k (nats)", faults=skipped))
    if h.kl:
        add("Held-out KL", charts.lines({"held-out KL": h.kl}, y="KL (nats)", marks=True))
    if steps:
        add("Learning rate", _rates(h))
        clip = ("clip", h.run["options"]["clip"])
        norms = {"gradient norm": h.curve("step", "grad")}
        add("Gradient norm", charts.lines(norms, y="global L2 norm", log=True, level=clip, faults=skipped))
    if h.run["signs"] and h.of("eval"):
        add("Signs flipped per role", _flips(h))
    add("Time per stage", charts.bars(_stages(h.events), x="wall time (s)"))
    profile = h.newest("profile")
    if profile:
        field, name = ("device_seconds", "device") if profile["timestamps"] else ("host_seconds", "host")
        rows = [(row["phase"], row[field]) for row in profile["phases"] if row[field] > 0]
        add(f"Time per phase ({name})", charts.bars(rows, x=f"{name} time (s)"))
    return found


def _rates(h: History) -> str:
    rate = h.curve("step", "lr")
    if not h.run["signs"]:
        return charts.lines({"learning rate": rate}, y="learning rate")
    return charts.two_scales(("learning rate", rate), ("sign rate", h.curve("step", "eta")))


def _flips(h: History) -> str:
    """Share of each role's signs, U and V together, that differ from the start."""
    keys = [key for key in h.last("eval") if key.startswith("flipped.")]
    roles: dict[str, list[str]] = {}
    for key in keys:
        roles.setdefault(key.removeprefix("flipped.").rpartition(".")[0], []).append(key)
    curves = {}
    for role, sides in roles.items():
        pairs = [(event["step"], [event[side] for side in sides if side in event]) for event in h.of("eval")]
        curves[role] = [(0, 0.0)] + [
            (step, 100 * sum(shares) / max(len(shares), 1)) for step, shares in pairs
        ]
    return charts.lines(curves, y="signs that differ (%)")


def _stages(events: Iterable[Event]) -> list[tuple[str, float]]:
    """Seconds by what they were spent on, over all sessions."""
    found: dict[str, float] = {}
    for event in events:
        stage = _STAGES.get(event["event"])
        if stage is not None:
            found[stage] = found.get(stage, 0.0) + event.get("seconds", 0.0)
    return list(found.items())


def _settings(h: History) -> list[list[tuple[str, str]]]:
    """Two tables: the run, and its options."""
    run = h.run
    about = [
        ("student", run["student"]["file"]),
        ("teacher", run["teacher"]),
        ("calibration", ", ".join(run["calibration"])),
        ("output", run["output"]),
        ("windows", f"{run['training_windows']} to train on, {run['held_out_windows']} held out"),
        ("adapter", run["adapter"]),
        ("matrix units", "yes" if run["matrix_units"] else "no"),
        ("device memory, peak", _number(_scaled(h.newest("end").get("memory_peak"), 1e-9), ".3f GB")),
        ("started", _clock(h.of("run")[0]["time"])),
        ("resumed at steps", ", ".join(str(event["step"]) for event in h.of("resume")) or "never"),
    ]
    options = [(f"--{_dashed(name)}", _text(value)) for name, value in run["options"].items()]
    signs = [(f"--sign-{_dashed(name)}", _text(value)) for name, value in (run["signs"] or {}).items()]
    return [about, options + signs]


def _profile(h: History) -> dict[str, Any] | None:
    """The profile's tables as texts; None where nothing was profiled."""
    profile = h.newest("profile")
    if not profile:
        return None
    device = sum(row["device_seconds"] for row in profile["phases"])
    return {
        "sums": host_sums(profile),
        "columns": PHASE_COLUMNS,
        "phases": [phase_cells(row, device) for row in profile["phases"]],
        "ops": [op_cells(row, device) for row in profile["ops"][:_MOST_OPS]],
    }


# ── the profile's tables, which the command line prints too ──

PHASE_COLUMNS = (
    "phase",
    "device s",
    "%",
    "host s",
    "waiting s",
    "dispatches",
    "submissions",
    "MB up",
    "MB back",
)


def host_sums(profile: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of the sums over all phases."""
    host, device = profile["host"], sum(row["device_seconds"] for row in profile["phases"])
    measured = (
        f"{device:.3f} s" if profile["timestamps"] else "not measured: the adapter grants no timestamp-query"
    )
    return [
        ("device time in kernels", measured),
        ("host time", f"{host['seconds']:.3f} s, of which {host['waited']:.3f} s waiting for the device"),
        ("submissions, dispatches", f"{host['submissions']}, {host['dispatches']}"),
        ("uploaded, read back", f"{host['uploaded'] / 1e6:.2f} MB, {host['read_back'] / 1e6:.2f} MB"),
    ]


def phase_cells(row: Mapping[str, Any], device: float) -> list[str]:
    """PHASE_COLUMNS of a phase; `device` is the device time of all."""
    return [
        row["phase"],
        f"{row['device_seconds']:.3f}",
        _share(row["device_seconds"], device),
        f"{row['host_seconds']:.3f}",
        f"{row['waited']:.3f}",
        str(row["dispatches"]),
        str(row["submissions"]),
        f"{row['uploaded'] / 1e6:.2f}",
        f"{row['read_back'] / 1e6:.2f}",
    ]


def op_cells(row: Mapping[str, Any], device: float) -> list[str]:
    """Op, calls, device seconds, and their share of the device time of all."""
    return [row["op"], str(row["calls"]), f"{row['seconds']:.3f}", _share(row["seconds"], device)]


# ── texts ──


def _number(value: float | None, form: str = ".5f") -> str:
    form, _, unit = form.partition(" ")
    return "–" if value is None else f"{value:{form}} {unit}".rstrip()


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None or not before:
        return "–"
    return f"{100 * (after / before - 1):+.1f} %"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "–"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _text(value: Any) -> str:
    return "auto" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _clock(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
