"""`--report`, `--profile`, `--trace` and `nvgpu report` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import refused, run

SMALL = ("--tokens", 64, "--window", 16, "--batch", 2, "--eval-windows", 2, "--topk", 4)


def test_files_and_tables(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "report", tmp_path / "trace.json"
    output = tmp_path / "out.cmf"
    flags = ("--report", folder, "--trace", trace, "--trace-steps", 1)
    result = run("train", student, teacher, "--calib", text, "-o", output, *SMALL, *flags)
    assert result.exit_code == 0, result.output
    assert f"report: {folder / 'report.html'}" in result.stderr and "trace of 1 steps" in result.stderr
    for part in ("submissions, dispatches", "backward/mlp", "teacher pass", "MB back"):
        assert part in result.stdout
    assert json.loads(trace.read_text())["traceEvents"]
    page = folder / "report.html"
    before = page.read_bytes()
    page.unlink()
    result = run("report", folder)
    assert result.exit_code == 0 and result.stdout.strip() == str(page)
    assert page.read_bytes() == before


def test_json_holds_the_profile(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.cmf"
    result = run("train", student, teacher, "--calib", text, "-o", output, *SMALL, "--profile", "--json")
    profile = json.loads(result.stdout)["profile"]
    assert {"timestamps", "host", "phases", "ops"} == set(profile) and profile["host"]["dispatches"] > 0


def test_refusals(tmp_path: Path) -> None:
    refused(run("report", tmp_path), "log.jsonl: no such file")
    result = run("train", "s.cmf", "t.cmf", "--calib", "x", "-o", tmp_path / "o.cmf", "--trace-steps", 2)
    assert result.exit_code == 2 and "--trace-steps: needs --trace" in result.stderr
