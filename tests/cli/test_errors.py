"""Bad input: one line that names the thing, exit code 1, and no output."""

from __future__ import annotations

import json
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


def test_truncated_safetensors(hf: Path, tmp_path: Path) -> None:
    weights = hf / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(run("convert", hf, "-o", tmp_path / "out.cmf"), "model.safetensors")
    assert not (tmp_path / "out.cmf").exists()


def test_lfs_pointer(hf: Path, tmp_path: Path) -> None:
    (hf / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    refused(run("convert", hf, "-o", tmp_path / "out.cmf"), "model.safetensors", "LFS")


def test_missing_tensor(hf: Path, tmp_path: Path) -> None:
    tensors = make_tensors(CONFIG, 1)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_folder(hf, CONFIG, tensors)
    refused(run("convert", hf, "-o", tmp_path / "out.cmf"), "model.layers.1.mlp.up_proj.weight")
    assert not (tmp_path / "out.cmf").exists()


def test_unknown_architecture(hf: Path, tmp_path: Path) -> None:
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    refused(run("convert", hf, "-o", tmp_path / "out.cmf"), "MambaForCausalLM")


def test_tokenizer_mismatch(teacher: Path, student: Path, text: Path, hf: Path, tmp_path: Path) -> None:
    words = json.loads((hf / "tokenizer.json").read_text())
    vocab = words["model"]["vocab"]
    vocab["t5"], vocab["t6"] = vocab["t6"], vocab["t5"]
    (hf / "tokenizer.json").write_text(json.dumps(words))
    other = tmp_path / "other.cmf"
    assert run("convert", hf, "-o", other).exit_code == 0
    out = tmp_path / "out.cmf"
    refused(run("train", student, other, "--calib", text, "-o", out, "--window", 16), "tokenizers", "t5")
    refused(run("eval", student, "--text", text, "--teacher", other, "--window", 16), "tokenizers", "t5")
    assert not out.exists()


def test_too_little_text(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.cmf"
    refused(
        run("train", student, teacher, "--calib", text, "-o", out, "--window", 64), "--calib", "windows of 64"
    )
    refused(run("eval", teacher, "--text", text, "--window", 4096), "--text", "window of 4096")
    assert not out.exists()


def test_too_few_held_out_windows(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    words = ["--window", 16, "--batch", 4, "--eval-windows", 3]
    refused(
        run("train", student, teacher, "--calib", text, "-o", tmp_path / "out.cmf", *words),
        "--eval-windows 3",
    )


def test_output_is_an_input(teacher: Path, student: Path, text: Path) -> None:
    before = student.read_bytes(), teacher.read_bytes()
    refused(
        run("train", student, teacher, "--calib", text, "-o", student, "--window", 16), "student.cmf", "input"
    )
    refused(run("compress", teacher, "-o", teacher, "--bpw", 4), "teacher.cmf", "input")
    assert (student.read_bytes(), teacher.read_bytes()) == before


def test_unwritable_output(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "missing" / "out.cmf"
    refused(run("train", student, teacher, "--calib", text, "-o", nowhere, "--window", 16), "missing")
    refused(run("compress", teacher, "-o", nowhere, "--bpw", 4), "missing")
    refused(run("convert", tmp_path / "hf", "-o", nowhere), "missing")


def test_missing_and_wrong_files(tmp_path: Path, text: Path) -> None:
    refused(run("inspect", tmp_path / "no.cmf"), "no.cmf")
    refused(run("inspect", text), "text.txt")
    refused(run("inspect", tmp_path), tmp_path.name)
    refused(run("convert", tmp_path / "nowhere", "-o", tmp_path / "out.cmf"), "nowhere")


def test_unreachable_budget(teacher: Path, tmp_path: Path) -> None:
    refused(
        run("compress", teacher, "-o", tmp_path / "out.cmf", "--bpw", 0.01),
        "bits per weight cannot be reached",
    )
    assert not (tmp_path / "out.cmf").exists()


def test_a_good_file_survives_a_failed_write(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.cmf"
    shutil.copy(teacher, out)
    refused(run("compress", teacher, "-o", out, "--bpw", 0.01))
    assert out.read_bytes() == teacher.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "kept.cmf", "teacher.cmf"]


def test_usage_errors_exit_with_2(teacher: Path, tmp_path: Path) -> None:
    assert run("compress", teacher).exit_code == 2
    assert run("train", teacher, teacher, "-o", tmp_path / "x").exit_code == 2
    assert run("compress", teacher, "-o", tmp_path / "x", "--bpw", "much").exit_code == 2


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run("inspect", tmp_path / "no.cmf", "--debug")
    assert result.exit_code == 1 and result.exception is not None and result.exc_info is not None
    assert "no.cmf" in str(result.exception)


def test_json_is_all_there_is_on_standard_output(
    teacher: Path, student: Path, text: Path, tmp_path: Path
) -> None:
    evaluation = run(
        "eval", student, "--text", text, "--teacher", teacher, "--window", 16, "--topk", 8, "--json"
    )
    found = json.loads(evaluation.stdout)
    assert found["windows"] == 37 and found["tokens"] == 37 * 15 and found["kl"] > 0
    assert found["kl_topk"] > 0 and found["ppl"] > 1
    words = ["--window", 16, "--batch", 2, "--eval-windows", 4, "--tokens", 64, "--topk", 8]
    training = run(
        "train", student, teacher, "--calib", f"{text}=2", "-o", tmp_path / "out.cmf", *words, "--json"
    )
    assert json.loads(training.stdout)["steps"] == 2
    assert json.loads(run("inspect", student, "--json").stdout)["bpw_body"] < 4
    assert json.loads(run("devices", "--json").stdout)["adapters"]


def test_a_model_is_its_own_teacher(teacher: Path, text: Path) -> None:
    result = run("eval", teacher, "--text", text, "--teacher", teacher, "--window", 16, "--topk", 8, "--json")
    assert abs(json.loads(result.stdout)["kl"]) < 1e-6
