"""`nvgpu plan` and `nvgpu train --dry-run`: the same figures, as a table and as JSON, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvgpu.gpu import device as device_module
from tests.cli.conftest import refused, run

SMALL = ("--tokens", 64, "--window", 16, "--batch", 2, "--eval-windows", 2, "--topk", 4)


def test_plan_and_dry_run_agree(
    teacher: Path, student: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "_request", None)  # no device is opened
    found = run("plan", teacher, student, *SMALL, "--train-signs", "--json")
    assert found.exit_code == 0, found.output
    given = ("--calib", text, "-o", tmp_path / "out.cmf", *SMALL, "--train-signs", "--dry-run", "--json")
    dry = run("train", student, teacher, *given)
    assert dry.exit_code == 0, dry.output
    document = json.loads(found.stdout)
    assert json.loads(dry.stdout) == document
    assert document["fits"] and document["peak"] == max(s["peak"] for s in document["stages"])
    assert document["stages"][1]["kinds"]["signs"] > 0 and document["steps"] == 2
    assert not (tmp_path / "out.cmf").exists()


def test_a_student_by_its_bpw(teacher: Path, student: Path) -> None:
    made, planned = (
        json.loads(run("plan", teacher, *which, *SMALL, "--json").stdout)
        for which in ((student,), ("--bpw", 4, "--paths", 1))
    )
    assert planned["stages"] == made["stages"] and planned["bpw"] == made["bpw"]
    least, most = made["reachable_bpw"]["1"]
    assert least < made["bpw"] <= most
    refused(run("plan", teacher, "--bpw", 0.01, *SMALL), "0.01 bits per weight cannot be reached")


def test_the_table(teacher: Path, student: Path) -> None:
    result = run("plan", teacher, student, *SMALL, "--vram", 0.0001)
    assert result.exit_code == 0, result.output
    for part in ("teacher pass", "training", "peak", "optimiser", "does not fit", "exceed the budget"):
        assert part in result.stdout
    result = run("plan", teacher, student, *SMALL, "--probe")
    assert result.exit_code == 0, result.output
    assert "a step (kernels only)" in result.stdout and "does not fit" not in result.stdout


def test_usage(teacher: Path, student: Path) -> None:
    for words in ((teacher,), (teacher, student, "--bpw", 1)):
        result = run("plan", *words)
        assert result.exit_code == 2 and "expected STUDENT, or --bpw" in result.stderr
    refused(run("plan", student, teacher, *SMALL), "are student and teacher swapped?")
