"""Whole-file compression of the bundled model: what is stored how, honest bits, equal bytes, refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nvgpu.encode.compress import CompressOptions, compress, is_body_linear
from nvgpu.errors import InputError
from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype, encode
from nvgpu.progress import Silent

MODEL = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
EMBED = "model.embed_tokens.weight"
PLAIN = CompressOptions(1.0, "svid-refit", paths=1, refine_signs=False)
Q = "model.layers.3.self_attn.q_proj.weight"


def bundled_tensors():
    """The checkpoint's bf16 payloads and shapes, read without the importer."""
    data = (MODEL / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            yield name, tuple(entry["shape"]), np.frombuffer(data[begin:end], np.uint8)


def write(path, tensors, dtype=Dtype.BF16):
    tensors = list(tensors)
    header = {"arch": {}, "provenance": {"convert": {"source": "test"}}}
    directory = [(name, dtype, shape) for name, shape, _ in tensors]
    with CmfWriter(path, header, directory, (MODEL / "tokenizer.json").read_bytes()) as writer:
        for name, _, payload in tensors:
            writer.write(name, payload)
    return path


def write_small(path, **matrices):
    """A model of one MLP projection and what else is given, in f32."""
    matrices = {"model.layers.0.mlp.up_proj.weight": np.ones((64, 64), np.float32), **matrices}
    return write(path, ((n, a.shape, encode(a, Dtype.F32, n)) for n, a in matrices.items()), Dtype.F32)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    with CmfFile.open(write(tmp_path_factory.mktemp("teacher") / "teacher.cmf", bundled_tensors())) as opened:
        yield opened


@pytest.fixture(scope="module")
def student(teacher, tmp_path_factory):
    path = tmp_path_factory.mktemp("student") / "student.cmf"
    report = compress(teacher, path, PLAIN)
    with CmfFile.open(path) as opened:
        yield opened, report


def test_body_linears_become_blr_and_the_rest_f16(teacher, student):
    opened, report = student
    assert list(opened.tensors) == list(teacher.tensors)
    body = [n for n in teacher.tensors if is_body_linear(n)]
    assert [row.name for row in report.tensors] == body and len(body) == 3 * 6 + 7
    for name, entry in opened.tensors.items():
        assert entry.shape == teacher.tensors[name].shape
        assert entry.dtype == (Dtype.BLR if name in body else Dtype.F16)
        if name not in body:
            np.testing.assert_array_equal(opened.array(name), teacher.array(name).astype(np.float16))
    assert opened.tokenizer_json == teacher.tokenizer_json


def test_bits_are_honest(student):
    opened, report = student
    payloads = {row.name: opened.tensors[row.name].nbytes for row in report.tensors}
    assert sum(8 * nbytes - 128 for nbytes in payloads.values()) == sum(row.bits for row in report.tensors)
    assert report.body_bpw == sum(row.bits for row in report.tensors) / report.body_weights
    for row in report.tensors:
        m, n = row.shape
        assert row.bits == row.paths * (row.rank * (m + n) + 16 * (m + n + row.rank))
        assert row.bits == 8 * payloads[row.name] - 128
        assert row.bpw == row.bits / (m * n) <= row.bpw_target
    size = opened.path.stat().st_size
    assert report.file_bytes == size
    assert report.parameters == sum(int(np.prod(e.shape)) for e in opened.tensors.values())
    assert report.file_bpw == 8 * size / report.parameters
    assert 0.94 < report.body_bpw <= 1.0


def test_reported_error_is_that_of_the_file(teacher, student):
    opened, report = student
    for row in report.tensors:
        w = teacher.array(row.name).astype(np.float64)
        error = np.linalg.norm(w - opened.array(row.name)) / np.linalg.norm(w)
        assert row.relative_error == pytest.approx(error, rel=1e-5)
    mean = np.mean([row.relative_error for row in report.tensors])
    assert report.mean_relative_error == pytest.approx(mean)


def test_provenance_says_how_it_was_made(teacher, student):
    opened, report = student
    made = opened.header["provenance"]
    assert made["convert"] == teacher.header["provenance"]["convert"]
    assert {k: made["compress"][k] for k in ("method", "bpw", "paths", "embed_dtype")} == {
        "method": "svid-refit", "bpw": 1.0, "paths": 1, "embed_dtype": "f16"
    }  # fmt: skip
    assert "version" in made["compress"]
    json.dumps(report.asdict())


def test_equal_input_gives_equal_bytes(teacher, student, tmp_path):
    compress(teacher, tmp_path / "again.cmf", PLAIN)
    assert (tmp_path / "again.cmf").read_bytes() == student[0].path.read_bytes()


def test_two_paths_and_small_embeddings(teacher, student, tmp_path):
    told = []

    class Told(Silent):
        def start(self, phase, total, unit):
            told.append(total)

        def advance(self, units=1, **values):
            told.append(values["error"])

    path = tmp_path / "s.cmf"
    report = compress(teacher, path, replace(PLAIN, paths=2, embed_dtype="q8_2f"), progress=Told())
    assert told == [25, *(row.relative_error for row in report.tensors)]
    with CmfFile.open(path) as opened:
        assert opened.tensors[EMBED].dtype == Dtype.Q8_2F
        assert len(BlrTensor.parse(opened.raw(Q), Q).paths) == 2
        error = opened.array(EMBED) - teacher.array(EMBED)
        assert np.linalg.norm(error) < 0.01 * np.linalg.norm(teacher.array(EMBED))
    assert report.body_bpw <= 1.0 and report.file_bytes < student[1].file_bytes
    assert report.mean_relative_error < student[1].mean_relative_error


@pytest.mark.parametrize(
    ("change", "said"),
    [({"bpw": 0.05}, r"model\.layers\.\d\..*0\.05 bits per weight cannot be reached"),
     ({"method": "x"}, "--method x"), ({"paths": 3}, "--paths 3"), ({"embed_dtype": "q9"}, "q9")],
)  # fmt: skip
def test_options_that_cannot_work_leave_no_file(teacher, tmp_path, change, said):
    options = {"bpw": 1.0, "method": "svid", "paths": 1, **change}
    with pytest.raises(InputError, match=said):
        compress(teacher, tmp_path / "s.cmf", CompressOptions(**options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [("model.norm.weight", np.full(8, 1e5), "model.norm.weight.*f16"),
     ("model.layers.0.mlp.gate_proj.weight", np.ones((16, 12)), "gate_proj.*multiple of 8")],
)  # fmt: skip
def test_tensors_that_cannot_be_stored_are_named_and_leave_no_file(tmp_path, name, values, said):
    path = write_small(tmp_path / "t.cmf", **{name: values.astype(np.float32)})
    with CmfFile.open(path) as opened, pytest.raises(InputError, match=said):
        compress(opened, tmp_path / "s.cmf", CompressOptions(4.0, "svid", paths=1))
    assert list(tmp_path.iterdir()) == [path]


def test_a_compressed_or_bodiless_model_is_refused(student, tmp_path):
    with pytest.raises(InputError, match="binary low-rank already"):
        compress(student[0], tmp_path / "s.cmf", PLAIN)
    path = write(tmp_path / "t.cmf", ((n, s, p) for n, s, p in bundled_tensors() if n == "model.norm.weight"))
    with CmfFile.open(path) as opened, pytest.raises(InputError, match="no linear to compress"):
        compress(opened, tmp_path / "s.cmf", PLAIN)


def test_body_linears_by_name():
    assert is_body_linear(Q) and is_body_linear("model.layers.11.linear_attn.in_proj_z.weight")
    for name in ("linear_attn.in_proj_a.weight", "linear_attn.conv1d.weight", "self_attn.q_norm.weight"):
        assert not is_body_linear("model.layers.0." + name)
    assert not is_body_linear(EMBED) and not is_body_linear("mtp." + Q)
