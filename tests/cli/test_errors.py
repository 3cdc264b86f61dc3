"""Bad input: one line that names the thing, exit code 1, and no output."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.cli.common import print_json
from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype, encode
from tests.cli.conftest import CONFIG, refused, run
from tests.random_model import make_tensors, write_folder


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


def rewrite(
    source: Path,
    target: Path,
    changes: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """A copy of a file with other header values (dotted keys) and payloads (f32 arrays, or u8 payloads as they are)."""
    tensors = tensors or {}
    with CmfFile.open(source) as model:
        header = copy.deepcopy(model.header)
        for path, value in changes.items():
            *parents, last = path.split(".")
            where = header
            for key in parents:
                where = where[key]
            where[last] = value
        kinds = {n: Dtype.F32 if a.dtype == np.float32 else model.entry(n).dtype for n, a in tensors.items()}
        entries = [(n, kinds.get(n, e.dtype), e.shape) for n, e in model.tensors.items()]
        with CmfWriter(target, header, entries, model.tokenizer_json) as writer:
            for name in model.tensors:
                array = tensors.get(name, model.raw(name))
                writer.write(name, encode(array, Dtype.F32, name) if array.dtype == np.float32 else array)
    return target


def with_nan(source: Path, target: Path, name: str) -> Path:
    """A copy whose tensor `name` (f16) begins with NaN."""
    with CmfFile.open(source) as model:
        payload = model.raw(name).copy()
    payload[:2] = (0x00, 0x7E)
    return rewrite(source, target, {}, {name: payload})


@pytest.mark.parametrize(
    ("key", "value", "commands", "part"),
    [
        ("provenance", ["x"], "inspect compress export", "provenance is list"),
        ("arch.partial_rotary_factor", "half", "inspect", "arch.partial_rotary_factor is 'half'"),
        ("arch.partial_rotary_factor", None, "inspect", "arch.partial_rotary_factor is None"),
        (
            "arch.layer_types",
            [["LinearAttention"], {}],
            "inspect",
            "arch.layer_types holds ['LinearAttention']",
        ),
        ("arch.rms_norm_eps", 10**400, "inspect", "arch.rms_norm_eps is 1000"),
        ("arch.head_dim", 1 << 34, "inspect", "arch.head_dim is 17179869184"),
        ("tokenizer_config", "x", "export", "tokenizer_config is str"),
        ("tokenizer_config", {"chat_template": 3}, "export", "chat_template is int"),
        ("tokenizer_config", {"chat_template": "\ud800"}, "export", "surrogate"),
        ("hf.tokenizer_config", "x", "export", "hf.tokenizer_config is str"),
        ("hf.generation_config", [], "export", "hf.generation_config is list"),
    ],
)
def test_odd_headers(teacher: Path, tmp_path: Path, key: str, value: Any, commands: str, part: str) -> None:
    bad, out = rewrite(teacher, tmp_path / "bad.cmf", {key: value}), tmp_path / "out"
    words = {"inspect": [], "compress": ["-o", out, "--bpw", 4], "export": ["-o", out]}
    for command in commands.split():
        refused(run(command, bad, *words[command]), "bad.cmf", part)
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rope_parameters": {"partial_rotary_factor": 1e307}}, "partial_rotary_factor is 1e+307"),
        ({"layer_types": None, "num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824"),
    ],
)
def test_odd_configs(hf: Path, tmp_path: Path, change: dict[str, Any], part: str) -> None:
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps({**config, **change}))
    refused(run("convert", hf, "-o", tmp_path / "out.cmf"), "config.json", part)


def test_template_lists_with_odd_names(hf: Path, tmp_path: Path) -> None:
    templates = [{"name": ["default"], "template": "no"}, {"name": "default", "template": "yes"}]
    (hf / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert run("convert", hf, "-o", tmp_path / "out.cmf").exit_code == 0
    with CmfFile.open(tmp_path / "out.cmf") as model:
        assert model.header["tokenizer_config"]["chat_template"] == "yes"


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_convert_keeps_its_input(hf: Path, name: str) -> None:
    before = (hf / name).read_bytes()
    refused(run("convert", hf, "-o", hf / name), name, "is the input")
    assert (hf / name).read_bytes() == before


def test_weights_that_are_not_finite(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    out, name = tmp_path / "out.cmf", "model.embed_tokens.weight"
    bad = with_nan(teacher, tmp_path / "bad.cmf", name)
    refused(run("compress", bad, "-o", out, "--bpw", 4), "bad.cmf", name, "non-finite")
    refused(run("export", bad, "-o", tmp_path / "folder", "--dtype", "f16"), "bad.cmf", name, "non-finite")
    bad = with_nan(student, tmp_path / "bad.cmf", "model.norm.weight")
    result = run("train", bad, teacher, "--calib", text, "-o", out, "--window", 16)
    refused(result, "bad.cmf", "model.norm.weight", "non-finite")
    assert not out.exists() and not (tmp_path / "folder").exists()


def test_logits_that_are_not_finite(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    gain = np.full(CONFIG["hidden_size"], 3e38, np.float32)
    bad = rewrite(teacher, tmp_path / "bad.cmf", {}, {"model.norm.weight": gain})
    refused(run("eval", bad, "--text", text, "--window", 16, "--json"), "bad.cmf", "not finite")
    refused(
        run("eval", teacher, "--text", text, "--teacher", bad, "--window", 16, "--topk", 8),
        "bad.cmf",
        "not finite",
    )
    words = ["--window", 16, "--batch", 2, "--eval-windows", 2, "--tokens", 64, "--topk", 8]
    refused(
        run("train", student, bad, "--calib", text, "-o", tmp_path / "out.cmf", *words),
        "bad.cmf",
        "not finite",
    )
    assert not (tmp_path / "out.cmf").exists()


def test_swapped_models(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    words = ["--calib", text, "-o", tmp_path / "out.cmf", "--window", 16]
    refused(run("train", teacher, student, *words), "teacher.cmf", "are student and teacher swapped?")
    refused(run("train", student, student, *words), "student.cmf", "are student and teacher swapped?")


def test_places_where_no_file_can_stand(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    long = tmp_path / ("n" * 300)
    for output, part in (
        (Path("/dev/null"), "special file"),
        (tmp_path / "fifo", "special file"),
        (long, "too long"),
    ):
        refused(run("convert", tmp_path / "hf", "-o", output), output.name, part)
        refused(run("compress", teacher, "-o", output, "--bpw", 4), output.name, part)
        refused(
            run("train", student, teacher, "--calib", text, "-o", output, "--window", 16), output.name, part
        )
    for output, part in ((Path("."), "no name"), (tmp_path / "link", "symbolic link"), (long, "too long")):
        refused(run("export", teacher, "-o", output), part)
    refused(run("convert", long, "-o", tmp_path / "out.cmf"), long.name)
    refused(run("compress", long, "-o", tmp_path / "out.cmf", "--bpw", 4), long.name)
    refused(run("train", student, teacher, "--calib", long, "-o", tmp_path / "out.cmf"), long.name)


@pytest.mark.parametrize(
    "words",
    [
        *("--topk 0", "--topk 257", "--window 0", "--window 1", "--batch 0", "--lr nan", "--lr 1e300"),
        *("--tokens 99999999999999999999", "--seed -1", "--eval-every 0", "--micro-batch -1", "--clip 0"),
    ],
)
def test_numbers_out_of_range(words: str, tmp_path: Path) -> None:
    assert run("train", "s", "t", "--calib", "c", "-o", tmp_path / "x", *words.split()).exit_code == 2
    assert run("compress", "t", "-o", tmp_path / "x", "--bpw", "nan").exit_code == 2


def test_weights_whose_sum_overflows(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    words = ["--window", 16, "--batch", 2, "--eval-windows", 2, "--tokens", 64, "--topk", 8]
    sources = ["--calib", f"{text}=1.7e308", "--calib", f"{text}=1e308"]
    assert run("train", student, teacher, *sources, "-o", tmp_path / "out.cmf", *words).exit_code == 0


def test_a_shader_dump_that_leads_nowhere(teacher: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVGPU_DUMP_WGSL", f"{text}/folder")
    refused(run("eval", teacher, "--text", text, "--window", 16), "NVGPU_DUMP_WGSL", "text.txt/folder")


@pytest.mark.parametrize("selector", ["²", "9" * 5000])
def test_adapters_that_are_no_index(selector: str) -> None:
    refused(run("devices", "--adapter", selector), "no match")


def test_sources_are_named(teacher: Path, student: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("t1 t2")
    words = ["--calib", tmp_path / "short.txt", "-o", tmp_path / "out.cmf", "--window", 16]
    result = run("train", student, teacher, *words)
    refused(result, "found 0 whole windows", "short.txt")
    assert "short.txt gives 2 tokens, less than one window of 16" in result.stderr


def test_capped_budget_is_said(teacher: Path, tmp_path: Path) -> None:
    result = run("compress", teacher, "-o", tmp_path / "out.cmf", "--bpw", 100, "--method", "svid")
    assert "--bpw 100 is more than" in result.stderr and "capped at 1 x min(out, in)" in result.stderr


def test_names_with_markup_and_control_characters(teacher: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a[red][:x]\udcff\n.cmf"
    shutil.copy(teacher, odd)
    result = run("inspect", odd)
    assert result.exit_code == 0 and "a[red][:x]\\udcff\\n.cmf" in result.output.replace("\n", "")
    refused(run("inspect", tmp_path / "b[/red]\udcff\n.cmf"), "b[/red]\\udcff\\n.cmf")


def test_an_empty_tensor_is_shown(teacher: Path, tmp_path: Path) -> None:
    with CmfFile.open(teacher) as model:
        entries = [(n, e.dtype, e.shape) for n, e in model.tensors.items()]
        with CmfWriter(
            tmp_path / "e.cmf", model.header, [*entries, ("empty", Dtype.F32, (0, 4))], model.tokenizer_json
        ) as writer:
            for name in model.tensors:
                writer.write(name, model.raw(name))
            writer.write("empty", b"")
    assert run("inspect", tmp_path / "e.cmf").exit_code == 0


@pytest.mark.parametrize(
    ("error", "name"), [(ValueError("odd"), "ValueError: odd"), (MemoryError(), "MemoryError")]
)
def test_unexpected_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, teacher: Path, tmp_path: Path, error: Exception, name: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("nvgpu.cli.compress.compress_calibrated", fail)
    words = ["compress", teacher, "-o", tmp_path / "out.cmf", "--bpw", 4]
    refused(run(*words), f"internal: {name}", "--debug")
    assert run(*words, "--debug").exception is error


@pytest.mark.parametrize(
    ("where", "message"),
    [("compress_calibrated", "no output was written"), ("print_table", "out.cmf was written")],
)
def test_interrupts_say_what_is_true(
    monkeypatch: pytest.MonkeyPatch, teacher: Path, tmp_path: Path, where: str, message: str
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"nvgpu.cli.compress.{where}", interrupt)
    result = run("compress", teacher, "-o", tmp_path / "out.cmf", "--bpw", 4)
    assert result.exit_code == 130 and f"{message}\n" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("end", "part"), [(">/dev/full", "no space left"), (">&-", "standard output is closed")]
)
@pytest.mark.parametrize("option", ["", "--json"])
def test_standard_output_that_takes_nothing(teacher: Path, end: str, part: str, option: str) -> None:
    command = f'"{sys.executable}" -m nvgpu inspect "{teacher}" {option} {end}'
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and part in done.stderr


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), float("inf"), 1.0]})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.0]}
