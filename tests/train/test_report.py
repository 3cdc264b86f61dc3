"""The event log, the page made from it, TensorBoard files, profile and trace of whole runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nvgpu.errors import InputError, Interrupted, OutputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device
from nvgpu.model.size import body_bpw, file_bpw
from nvgpu.progress import Silent
from nvgpu.train import report, tensorboard
from nvgpu.train import state as state_module
from nvgpu.train.journal import read_events
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import StateOptions, TrainReport, train
from nvgpu.train.sign_options import SignOptions
from nvgpu.train.watch import WatchOptions

OPTIONS = TrainOptions(tokens=96, window=16, batch=2, epochs=2, topk=4, eval_windows=2, eval_every=2)
STEPS = 6
SIGNS = replace(OPTIONS, signs=SignOptions(lr=1e-3, warm=0))
SECTIONS = {"summary", "before-after", "charts", "settings", "messages"}


def run(
    device: Device,
    inputs: Path,
    output: Path,
    watching: WatchOptions,
    options: TrainOptions = OPTIONS,
    saving: StateOptions | None = None,
) -> TrainReport:
    sources = [TextSource.parse(str(inputs / "text.txt"))]
    models = inputs / "student.cmf", inputs / "teacher.cmf"
    return train(device, *models, sources, output, options, Silent(), saving, watching=watching)


class Page(HTMLParser):
    """Ids, the texts of the cells of every row, and what the page refers to; refuses tags that do not match."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.titles: list[str] = []
        self.refers: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {str(given["id"])} if "id" in given else set()
        self.refers += [str(v) for k, v in attrs if k in ("href", "src", "xlink:href", "action", "data")]
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "dt", "dd"):
            self.rows.append([]) if tag == "dt" else None
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.refers += [str(v) for k, v in attrs if k in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("td", "dt", "dd"):
            self.rows[-1][-1] += data
        if self._open and self._open[-1] == "h3":
            self.titles.append(data)

    def row(self, name: str) -> list[str]:
        """The cells behind the one that says `name`."""
        (found,) = [row[1:] for row in self.rows if row and row[0] == name]
        return found


def self_contained(text: str) -> bool:
    """Nothing is loaded: references stay inside the page, and no style or script brings in more."""
    inside = all(ref.startswith("#") for ref in Page(text).refers)
    urls = re.findall(r"url\(([^)]*)\)", text)
    named = text.replace("http://www.w3.org/1999/xlink", "").replace("http://www.w3.org/2000/svg", "")
    bad = ("://", "@import", "<script", "<link", "<iframe", "javascript:")
    return inside and all(u.startswith("#") for u in urls) and not any(b in named for b in bad)


@pytest.fixture(scope="module")
def signed(
    device: Device, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TrainReport]:
    """A run with signs, profile and trace, whose files lie in the folder: (folder, report)."""
    folder = tmp_path_factory.mktemp("signed")
    watching = WatchOptions(folder / "report", profile=True, trace=folder / "trace.json", trace_steps=2)
    return folder, run(device, inputs, folder / "out.cmf", watching, SIGNS)


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "report" / "log.jsonl") if event["event"] == kind]


def test_log_tells_the_run(inputs: Path, signed: tuple[Path, TrainReport]) -> None:
    folder, found = signed
    kinds = [event["event"] for event in read_events(folder / "report" / "log.jsonl")]
    assert [
        k for k in kinds if k in ("run", "teacher", "start", "written", "measured", "profile", "end")
    ] == [
        "run",
        "teacher",
        "start",
        "written",
        "measured",
        "profile",
        "end",
    ]
    steps, evals = events_of(folder, "step"), events_of(folder, "eval")
    assert [event["loss"] for event in steps] == found.losses
    assert (
        [event["step"] for event in steps] == [event["tried"] for event in steps] == list(range(1, STEPS + 1))
    )
    for logged, entry in zip(evals, found.evals, strict=True):
        assert {key: logged[key] for key in entry} == entry
    assert "flipped.mlp.gate.U" in evals[0] and all({"eta", "flips", "grad", "lr"} <= set(e) for e in steps)
    assert events_of(folder, "measured")[0]["heldout_kl"] == found.kl_written
    assert events_of(folder, "end")[0]["outcome"] == "finished"


def test_page_is_whole_and_equals_the_log(inputs: Path, signed: tuple[Path, TrainReport]) -> None:
    folder, found = signed
    text = (folder / "report" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.ids >= SECTIONS | {"profile"}
    assert self_contained(text)
    wanted = [
        "Loss",
        "Held-out KL",
        "Learning rate",
        "Gradient norm",
        "Signs flipped per role",
        "Time per stage",
    ]
    assert page.titles[:6] == wanted and page.titles[6].startswith("Time per phase")
    assert text.count("<svg") == 7 and "step" in text and "KL (nats)" in text
    with CmfFile.open(inputs / "student.cmf") as before, CmfFile.open(folder / "out.cmf") as after:
        sizes = [[f"{of(model):.3f}" for model in (before, after)] for of in (file_bpw, body_bpw)]
    assert page.row("held-out KL (top-4), written file")[:2] == [
        f"{found.kl_start:.5f}",
        f"{found.kl_written:.5f}",
    ]
    assert page.row("held-out perplexity")[:2] == [
        f"{found.ppl_start:.5g}",
        f"{found.ppl_written:.5g}",
    ]
    assert page.row("bits per weight, whole file")[:2] == sizes[0]
    assert page.row("bits per weight, body linears")[:2] == sizes[1]
    assert page.row("file size (MB)")[1] == f"{(folder / 'out.cmf').stat().st_size / 1e6:.3f}"
    assert page.row("held-out KL, best") == [f"{found.kl_best:.5f}"]
    assert page.row("steps") == [f"{STEPS} of {STEPS}"]
    assert page.row("--lr") == ["0.03"] and page.row("--sign-lr") == ["0.001"]
    assert page.row("--tokens") == ["96"] and page.row("student") == ["student.cmf"]


def test_references_outside_are_found() -> None:
    assert self_contained("<p>a</p>")
    for bad in (
        '<img src="http://a/b.png">',
        '<a href="x.html">x</a>',
        "<style>@import 'x'</style>",
        "<p>https://a</p>",
    ):
        assert not self_contained(bad)


def test_page_can_be_made_anew(signed: tuple[Path, TrainReport], tmp_path: Path) -> None:
    """From the log alone, also where it was cut off in the middle of a line."""
    folder, _ = signed
    log = (folder / "report" / "log.jsonl").read_bytes()
    (tmp_path / "log.jsonl").write_bytes(log)
    assert report.write(tmp_path).read_bytes() == (folder / "report" / "report.html").read_bytes()
    lines = log.splitlines(keepends=True)
    for count in (1, 4, 8, len(lines) // 2, len(lines) - 2):
        (tmp_path / "log.jsonl").write_bytes(b"".join(lines[:count]) + lines[count][:20])
        page = Page(report.write(tmp_path).read_text(encoding="utf-8"))
        assert page.ids >= SECTIONS
    (tmp_path / "log.jsonl").write_bytes(b"{}\n" + log)
    with pytest.raises(OutputError, match="line 1 is no event"):
        report.write(tmp_path)
    (tmp_path / "log.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="holds no run"):
        report.write(tmp_path)


# ── profile and trace ──


def test_watching_changes_no_byte(
    device: Device, inputs: Path, signed: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    run(device, inputs, tmp_path / "out.cmf", WatchOptions(), SIGNS)
    assert (tmp_path / "out.cmf").read_bytes() == (signed[0] / "out.cmf").read_bytes()


def test_profile_names_every_phase(device: Device, signed: tuple[Path, TrainReport]) -> None:
    folder, found = signed
    profile = found.profile
    assert profile is not None and profile == {
        k: v for k, v in events_of(folder, "profile")[0].items() if k in profile
    }
    rows = {row["phase"]: row for row in profile["phases"]}
    layers = {
        f"{way}/{part}"
        for way in ("forward", "recompute", "backward")
        for part in ("attention", "gdn", "mlp")
    }
    assert layers | {"embed", "head", "optimiser", "signs", "teacher pass", "evaluation"} <= set(rows)
    for field in ("dispatches", "submissions", "uploaded", "read_back"):
        assert sum(row[field] for row in rows.values()) == profile["host"][field] > 0
    assert sum(row["host_seconds"] for row in rows.values()) == pytest.approx(profile["host"]["seconds"])
    assert rows["recompute/mlp"]["dispatches"] == rows["forward/mlp"]["dispatches"]
    if profile["timestamps"]:
        spent = sum(row["device_seconds"] for row in rows.values())
        assert spent == pytest.approx(sum(row["seconds"] for row in profile["ops"])) and spent > 0
        assert sum(row["calls"] for row in profile["ops"]) == profile["host"]["dispatches"]


def test_trace_holds_the_first_steps(signed: tuple[Path, TrainReport]) -> None:
    document = json.loads((signed[0] / "trace.json").read_text())
    events = document["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [name for name in names if name.startswith("step")] == ["step 1", "step 2"]
    assert {"embed", "forward/gdn", "backward/mlp", "signs"} <= set(names) and "teacher pass" not in names
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    kernels = [event for event in spans if event["pid"] == 2]
    if kernels:
        found = {event["name"] for event in kernels}
        assert {"adam", "kl_topk", "attention_fwd"} <= found
        assert sum(event["name"] == "adam" for event in kernels) == 2
        last = max(event["ts"] + event["dur"] for event in spans if event["pid"] == 1)
        assert max(event["ts"] for event in kernels) <= last


def test_without_timestamps_the_host_is_counted(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "features", device.features - {"timestamp-query"})
    watching = WatchOptions(tmp_path / "report", profile=True)
    found = run(device, inputs, tmp_path / "out.cmf", watching)
    assert found.profile is not None and not found.profile["timestamps"] and found.profile["ops"] == []
    assert found.profile["host"]["dispatches"] > 0
    said = [event["text"] for event in events_of(tmp_path, "message")]
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "Time per phase (host)" in text and "grants no timestamp-query" in text
    assert any("grants no timestamp-query" in line for line in said)


# ── runs that end otherwise ──


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, error: BaseException | None = None) -> None:
    """A signal, or this error, arrives in the step before that many are done."""
    original = state_module.Keeper.after_step

    def after_step(self: state_module.Keeper, loop: Distillation) -> None:
        if loop.state.done == steps and error is not None:
            raise error
        if loop.state.done == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, loop)

    monkeypatch.setattr(state_module.Keeper, "after_step", after_step)


def test_resumed_run_continues_its_log(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = WatchOptions(tmp_path / "report")
    saving = StateOptions(tmp_path / "state", every=2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(patch, 3, KeyboardInterrupt())  # the state of step 2 is the last one
        run(device, inputs, tmp_path / "out.cmf", watching, saving=saving)
    first = events_of(tmp_path, "step")
    assert len(first) == 3 and events_of(tmp_path, "end")[0]["outcome"] == "interrupted"
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "The run was interrupted" in text and Page(text).row("steps") == [f"3 of {STEPS}"]
    with open(tmp_path / "report" / "log.jsonl", "ab") as log:
        log.write(b'{"event": "st')  # cut off by a crash
    found = run(device, inputs, tmp_path / "out.cmf", watching, saving=replace(saving, resume=saving.folder))
    steps, evals = events_of(tmp_path, "step"), events_of(tmp_path, "eval")
    assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
    assert steps[:2] == first[:2]
    assert [event["loss"] for event in steps] == found.losses
    assert [event["step"] for event in evals] == [2, 4, 6]
    assert [event["step"] for event in events_of(tmp_path, "resume")] == [2]
    assert len(events_of(tmp_path, "run")) == 2
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "The run finished." in text and Page(text).row("resumed at steps") == ["2"]
    # once more from the end: nothing is doubled
    run(device, inputs, tmp_path / "out.cmf", watching, saving=replace(saving, resume=saving.folder))
    assert len(events_of(tmp_path, "step")) == STEPS and len(events_of(tmp_path, "eval")) == 3


def test_signal_ends_with_a_report(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = StateOptions(tmp_path / "state")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_after(patch, 2)
        run(device, inputs, tmp_path / "out.cmf", WatchOptions(tmp_path / "report"), saving=saving)
    assert "--resume" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_diverged_run_ends_with_a_report(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that are not finite from the third step on: the best checkpoint is written, the page says what happened."""
    monkeypatch.setattr("nvgpu.train.loop._MAX_SKIPPED_IN_A_ROW", 2)
    monkeypatch.setattr("nvgpu.train.optimizer.Adam.grad_norm", _finite_for(2))
    found = run(device, inputs, tmp_path / "out.cmf", WatchOptions(tmp_path / "report"))
    assert found.diverged and found.skipped == 2
    skips = events_of(tmp_path, "skip")
    assert [(event["step"], event["tried"], event["grad"]) for event in skips] == [(2, 3, None), (2, 4, None)]
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "The run diverged: 2 steps in a row were not finite" in text and "skipped" in text


def _finite_for(steps: int) -> Any:
    from nvgpu.train.optimizer import Adam

    original, calls = Adam.grad_norm, iter(range(1000))
    return lambda self: original(self) if next(calls) < steps else float("nan")


def test_refused_runs_leave_nothing(device: Device, inputs: Path, tmp_path: Path) -> None:
    output, folder = tmp_path / "out.cmf", tmp_path / "report"
    with pytest.raises(InputError, match="expected at least"):
        run(device, inputs, output, WatchOptions(folder), replace(OPTIONS, tokens=1, eval_windows=1000))
    assert not folder.exists()
    with pytest.raises(InputError, match="found a file"):
        run(device, inputs, output, WatchOptions(inputs / "text.txt"))
    with pytest.raises(OutputError, match="does not exist"):
        run(device, inputs, output, WatchOptions(tmp_path / "missing" / "report"))
    folder.mkdir()
    (folder / "log.jsonl").write_text("my own notes\n")
    with pytest.raises(OutputError, match="no event of a run's log"):
        run(device, inputs, output, WatchOptions(folder))
    assert (folder / "log.jsonl").read_text() == "my own notes\n"
    with pytest.raises(InputError, match="is the input"):
        run(device, inputs, output, WatchOptions(trace=inputs / "text.txt"))
    assert not output.exists()


# ── TensorBoard, Chromium ──


def test_tensorboard_files_hold_the_curves(
    device: Device, inputs: Path, signed: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    folder, found = signed
    (path,) = (folder / "report" / "tensorboard").iterdir()
    data, at, values = path.read_bytes(), 0, {}
    while at < len(data):  # records: u64 length, u32 checksum, the event, u32 checksum
        (length,) = struct.unpack_from("<Q", data, at)
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
        values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        at += 16 + length
    losses = [values["train/loss", step] for step in range(1, STEPS + 1)]
    assert losses == pytest.approx(found.losses, rel=1e-6)
    assert values["held_out/kl", 0] == pytest.approx(found.kl_start, rel=1e-6)
    assert ("signs/flipped.mlp.gate.U", STEPS) in values


def test_missing_tensorboard_is_said(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard.Writer, "open", classmethod(lambda cls, folder: None))
    run(device, inputs, tmp_path / "out.cmf", WatchOptions(tmp_path / "report"))
    said = [event["text"] for event in events_of(tmp_path, "message")]
    assert "no TensorBoard files: the package tensorboardX is not installed" in said
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == ["log.jsonl", "report.html"]


@pytest.mark.slow
def test_a_browser_draws_the_page(signed: tuple[Path, TrainReport], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    page = (signed[0] / "report" / "report.html").resolve()
    for width in (1280, 390):
        picture = tmp_path / f"{width}.png"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--screenshot={picture}",
            f"--window-size={width},4000",
        ]
        subprocess.run([browser, *flags, page.as_uri()], check=True, capture_output=True, timeout=120)
        assert picture.read_bytes()[:4] == b"\x89PNG" and picture.stat().st_size > 40_000
