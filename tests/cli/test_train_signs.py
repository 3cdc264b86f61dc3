"""`nvgpu train --train-signs` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvgpu.formats.cmf import CmfFile
from tests.cli.conftest import run

SMALL = ("--tokens", 64, "--window", 16, "--batch", 2, "--eval-windows", 2, "--topk", 4, "--eval-every", 1)


def test_signs_train_and_are_reported(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    flags = ("--train-signs", "--sign-opt", "fact", "--sign-lr", 0.02, "--sign-warm", 0, "--sign-seed", 7)
    output = tmp_path / "out.cmf"
    result = run("train", student, teacher, "--calib", text, "-o", output, *SMALL, *flags, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    with CmfFile.open(output) as written:
        record = written.header["provenance"]["nvg_train"]["signs"]
    assert report["signs"] == record
    assert (record["opt"], record["lr"], record["warm"], record["seed"]) == ("fact", 0.02, 0, 7)
    assert "sign training: " in result.stderr and "% flipped" in result.stderr
    assert {"flipped", "churn", "flipped.mlp.gate.U"} <= set(report["evals"][0])


def test_without_signs_nothing_is_said(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    result = run("train", student, teacher, "--calib", text, "-o", tmp_path / "out.cmf", *SMALL, "--json")
    assert json.loads(result.stdout)["signs"] is None and "sign" not in result.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--sign-tau", 0.1), "--sign-tau: needs --train-signs"),
        (("--train-signs", "--sign-opt", "sgd"), "'sgd' is not one of 'fact', 'fact-mom', 'adam'"),
        (("--train-signs", "--sign-eps", "nan"), "nan is not a number"),
        (("--train-signs", "--sign-b1", 1), "1.0 is not in the range 0.0<=x<=0.999"),
    ],
)
def test_usage(flags: tuple[object, ...], message: str, tmp_path: Path) -> None:
    result = run("train", "s.cmf", "t.cmf", "--calib", "x.txt", "-o", tmp_path / "out.cmf", *flags)
    assert result.exit_code == 2
    assert message in result.stderr
