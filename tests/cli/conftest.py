"""What the command-line tests share: small models, a text, and how a refusal looks."""

from __future__ import annotations

import shutil
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


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models made once: `hf/`, `teacher.cmf` and `student.cmf`."""
    folder = tmp_path_factory.mktemp("made")
    write_folder(folder / "hf", CONFIG, make_tensors(CONFIG, 1))
    assert run("convert", folder / "hf", "-o", folder / "teacher.cmf").exit_code == 0
    # the smallest tensors cannot reach 1.0 with two paths
    words = (folder / "teacher.cmf", "-o", folder / "student.cmf", "--bpw", 4, "--paths", 1)
    result = run("compress", *words)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def hf(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "hf", tmp_path / "hf"))


@pytest.fixture
def teacher(hf: Path, made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "teacher.cmf", tmp_path))


@pytest.fixture
def student(teacher: Path, made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "student.cmf", tmp_path))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"t{i % 97}" for i in range(600)))
    return path


def train(student: Path, teacher: Path, text: Path, output: Path, *more: object) -> Result:
    small = ("--tokens", 64, "--window", 16, "--batch", 2, "--eval-windows", 2, "--topk", 4)
    return run("train", student, teacher, "--calib", text, "-o", output, *small, *more)
