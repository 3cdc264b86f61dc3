"""What the command-line tests share: small models, a text, and how a refusal looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvgpu.cli.main import main
from tests.random_model import make_config, make_tensors, write_folder

CONFIG = make_config()


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 1, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and result.stderr.rstrip().endswith(lines[0])
    assert "Traceback" not in result.output
    for part in parts:
        assert part in lines[0], lines[0]


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    write_folder(tmp_path / "hf", CONFIG, make_tensors(CONFIG, 1))
    return tmp_path / "hf"


@pytest.fixture
def teacher(hf: Path, tmp_path: Path) -> Path:
    assert run("convert", hf, "-o", tmp_path / "teacher.cmf").exit_code == 0
    return tmp_path / "teacher.cmf"


@pytest.fixture
def student(teacher: Path, tmp_path: Path) -> Path:
    # the smallest tensors cannot reach 1.0 with two paths
    result = run("compress", teacher, "-o", tmp_path / "student.cmf", "--bpw", 4, "--paths", 1)
    assert result.exit_code == 0, result.output
    return tmp_path / "student.cmf"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"t{i % 97}" for i in range(600)))
    return path


def train(student: Path, teacher: Path, text: Path, output: Path) -> Result:
    small = ("--tokens", 64, "--window", 16, "--batch", 2, "--eval-windows", 2, "--topk", 4)
    return run("train", student, teacher, "--calib", text, "-o", output, *small)
