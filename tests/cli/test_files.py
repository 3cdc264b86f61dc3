"""requant, verify, sign and inspect from the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype, encode
from nvgpu.model.geometry import Geometry
from nvgpu.model.net import body_linear_names
from tests.cli.conftest import refused, run

GATE = "model.layers.0.mlp.gate_proj.weight"
EMBED = "model.embed_tokens.weight"


def report(*words: object) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# ── requant ──


@pytest.mark.parametrize("dtype", ["q4_block", "q4tp", "vbit_ro", "q1t", "f32", "q8_row"])
def test_requant_changes_the_body_alone(teacher: Path, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "out.cmf"
    answer = report("requant", teacher, "-o", out, "--dtype", dtype)
    with CmfFile.open(teacher) as before, CmfFile.open(out) as after:
        body = {
            n for n in body_linear_names(Geometry.of(after)) if not n.endswith(("in_proj_a", "in_proj_b"))
        }
        assert {row["name"] for row in answer["changed"]} == body
        assert list(before.tensors) == list(after.tensors) and after.tokenizer_json == before.tokenizer_json
        for name, entry in after.tensors.items():
            if name in body:
                assert entry.dtype.label == dtype
                expected = encode(before.array(name), entry.dtype, name)
                assert after.raw(name).tobytes() == expected.tobytes()
            else:
                assert entry.dtype == before.tensors[name].dtype
                assert after.raw(name).tobytes() == before.raw(name).tobytes()
        record = after.header["provenance"]["requant"]
        assert record[0]["dtype"] == dtype and record[0]["only"] == []
        assert after.header["hf"] == before.header["hf"]
    assert answer["bytes_after"] == out.stat().st_size


def test_requant_of_named_tensors(teacher: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "out.cmf", tmp_path / "again.cmf"
    words = ("--dtype", "q8_row", "--only", "*.mlp.*", "--only", "*embed_tokens*")
    answer = report("requant", teacher, "-o", out, *words)
    changed = {row["name"] for row in answer["changed"]}
    assert EMBED in changed and GATE in changed and len(changed) == 7
    report("requant", out, "-o", again, "--dtype", "f16", "--only", GATE)
    with CmfFile.open(again) as model:
        assert model.tensors[GATE].dtype == Dtype.F16 and model.tensors[EMBED].dtype == Dtype.Q8_ROW
        assert [r["dtype"] for r in model.header["provenance"]["requant"]] == ["q8_row", "f16"]


def test_requant_names_what_it_cannot_store(teacher: Path, tmp_path: Path) -> None:
    """Hidden size 64 fits groups of 32; a 33-column matrix and the norms do not."""
    odd = tmp_path / "odd.cmf"
    arrays = {"w": np.ones((4, 33), np.float32), "model.norm.weight": np.ones(64, np.float32)}
    with CmfWriter(odd, {"arch": {}}, [(n, Dtype.F32, v.shape) for n, v in arrays.items()], None) as writer:
        for name, value in arrays.items():
            writer.write(name, value)
    result = run("requant", odd, "-o", tmp_path / "out.cmf", "--dtype", "q4tp", "--only", "*")
    assert result.exit_code == 0, result.output
    assert "stored as q8_2f, which takes their shape: w\n" in result.stderr
    assert "left as they are, since q4tp holds matrices: model.norm.weight\n" in result.stderr
    with CmfFile.open(tmp_path / "out.cmf") as model:
        assert [e.dtype for e in model.tensors.values()] == [Dtype.Q8_2F, Dtype.F32]
    report("requant", odd, "-o", tmp_path / "out.cmf", "--dtype", "f16", "--only", "*")
    with CmfFile.open(tmp_path / "out.cmf") as model:
        assert {e.dtype for e in model.tensors.values()} == {Dtype.F16}


def test_requant_leaves_blr_alone_unless_named(student: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.cmf"
    assert report("requant", student, "-o", out, "--dtype", "q4tp")["changed"] == []
    with CmfFile.open(student) as before, CmfFile.open(out) as after:
        assert all(after.raw(n).tobytes() == before.raw(n).tobytes() for n in before.tensors)
    answer = report("requant", student, "-o", out, "--dtype", "q4tp", "--only", GATE)
    assert [(r["name"], r["before"], r["after"]) for r in answer["changed"]] == [(GATE, "blr", "q4tp")]


def test_requant_refusals(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.cmf"
    refused(run("requant", teacher, "-o", out, "--dtype", "q1", "--only", "nothing*"), "--only 'nothing*'")
    refused(run("requant", teacher, "-o", teacher, "--dtype", "q1"), "teacher.cmf", "input")
    assert run("requant", teacher, "-o", out, "--dtype", "blr").exit_code == 2
    assert run("requant", teacher, "-o", out, "--dtype", "q1", "--shard-max-gb", 0).exit_code == 2
    assert not out.exists()


def test_shards_from_convert_and_requant(hf: Path, teacher: Path, tmp_path: Path) -> None:
    """A set says what the one file says, is verified as a whole, and keeps its tensors when it is recoded."""
    result = run("convert", hf, "-o", tmp_path / "set.cmf", "--shard-max-gb", 3e-5)
    assert result.exit_code == 0 and "more shards" in result.stderr, result.output
    shards = sorted(tmp_path.glob("set-*.cmf"))
    assert len(shards) > 2
    with CmfFile.open(teacher) as whole, CmfFile.open(shards[1]) as model:
        assert list(model.tensors) == list(whole.tensors)
        assert all(model.raw(n).tobytes() == whole.raw(n).tobytes() for n in whole.tensors)
    assert report("verify", shards[-1])["files"] == [p.name for p in shards]
    assert report("inspect", shards[0])["bpw_body"] == report("inspect", teacher)["bpw_body"]
    answer = report("requant", shards[1], "-o", tmp_path / "one.cmf", "--dtype", "q4tp")
    assert answer["files"] == ["one.cmf"] and run("verify", tmp_path / "one.cmf").exit_code == 0
    answer = report(
        "requant", teacher, "-o", tmp_path / "r.cmf", "--dtype", "vbit_ro", "--shard-max-gb", 2e-5
    )
    assert len(answer["files"]) > 2
    for path in (tmp_path / name for name in answer["files"]):
        with CmfFile.open(path) as model:
            for part in model.parts:
                assert len(part.tensors) == 1 or sum(e.nbytes for e in part.tensors.values()) <= 20_000
    refused(run("requant", shards[0], "-o", tmp_path / "set.cmf", "--dtype", "f16", "--only", GATE,
                "--shard-max-gb", 3e-5), "is the input")  # fmt: skip


def test_compress_and_eval_of_shards(hf: Path, teacher: Path, text: Path, tmp_path: Path) -> None:
    assert run("convert", hf, "-o", tmp_path / "set.cmf", "--shard-max-gb", 3e-5).exit_code == 0
    shard = sorted(tmp_path.glob("set-*.cmf"))[1]
    for source, out in ((shard, "a.cmf"), (teacher, "b.cmf")):
        assert run("compress", source, "-o", tmp_path / out, "--bpw", 4, "--paths", 1).exit_code == 0
    assert (tmp_path / "a.cmf").read_bytes() == (tmp_path / "b.cmf").read_bytes()
    words = ("--text", text, "--window", 16, "--max-windows", 2)
    assert report("eval", shard, *words) == report("eval", teacher, *words)


@pytest.mark.parametrize("dtype", ["q4tp", "bf16"])
@pytest.mark.parametrize("precision", ["f32", "mixed"])
def test_eval_decodes_rows_as_the_whole(
    teacher: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, precision: str
) -> None:
    """Matrices decoded five rows at a time give what their float32 copies give."""
    small, wide = tmp_path / "small.cmf", tmp_path / "wide.cmf"
    report("requant", teacher, "-o", small, "--dtype", dtype, "--only", "*proj*", "--only", "*embed*")
    report("requant", small, "-o", wide, "--dtype", "f32", "--only", "*proj*", "--only", "*embed*")
    words = ("--text", text, "--window", 16, "--max-windows", 2, "--precision", precision)
    expected = report("eval", wide, *words)
    monkeypatch.setattr("nvgpu.model.net._DECODED_AT_ONCE", 5 * 64)
    assert report("eval", small, *words) == expected


# ── verify ──


def test_verify_finds_nothing_in_sound_files(teacher: Path, student: Path) -> None:
    for path in (teacher, student):
        answer = report("verify", path)
        assert answer["ok"] and answer["findings"] == [] and answer["signature"] == "none"


def test_verify_lists_every_finding(teacher: Path, tmp_path: Path) -> None:
    """A wrong shape, a NaN, a missing tensor, an oversized id and a flipped payload byte: five at once."""
    bad = tmp_path / "bad.cmf"
    with CmfFile.open(teacher) as model:
        shapes = {n: (e.dtype, e.shape) for n, e in model.tensors.items()}
        del shapes["model.layers.1.self_attn.q_norm.weight"]
        shapes[GATE] = (Dtype.F16, (8, 64))
        header = {**model.header, "arch": {**model.arch, "vocab_size": 3}}
        with CmfWriter(bad, header, [(n, *v) for n, v in shapes.items()], model.tokenizer_json) as writer:
            for name, (_, shape) in shapes.items():
                values = np.zeros(shape, np.float16) if name == GATE else model.raw(name).copy()
                if name == EMBED:
                    values[:2] = 0xFF
                writer.write(name, values)
    data = bytearray(bad.read_bytes())
    with CmfFile.open(bad) as model:
        offset = model.parts[0].envelope.sections["data"][0] + model.tensors["model.norm.weight"].offset
    data[offset] ^= 1
    bad.write_bytes(data)
    result = run("verify", bad, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["findings"]
    for check, part in (
        ("hash", "model.norm.weight does not match its hash"),
        ("finite", f"{EMBED} holds non-finite"),
        ("arch", "q_norm.weight is missing"),
        ("arch", "up_proj.weight has shape"),
        ("tokenizer", "arch.vocab_size is 3"),
    ):
        assert [f for f in found if f["check"] == check and part in f["message"]], (check, found)
    table = run("verify", bad)
    assert table.exit_code == 1 and "findings" in table.stdout


def test_verify_reads_over_bad_records(teacher: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.cmf"
    data = bytearray(teacher.read_bytes())
    directory = int.from_bytes(data[0x20:0x28], "little")
    data[directory + 16 + 6] = 200
    data[directory + 16 + 56 + 7] = 9
    bad.write_bytes(data)
    result = run("verify", bad, "--json")
    messages = [f["message"] for f in json.loads(result.stdout)["findings"]]
    assert result.exit_code == 1
    assert any("unknown dtype 200" in m for m in messages) and any("9 axes" in m for m in messages)
    assert any("section directory does not match" in m for m in messages)


def test_verify_of_what_does_not_open(tmp_path: Path, text: Path) -> None:
    result = run("verify", text, "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1 and [f["check"] for f in answer["findings"]] == ["structure"]
    refused(run("verify", tmp_path / "no.cmf"), "no.cmf")


# ── signatures ──


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    return _write_keys(private, tmp_path / "private.pem", tmp_path / "public.pem")


def _write_keys(private: Any, secret: Path, public: Path) -> tuple[Path, Path]:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret.write_bytes(private.private_bytes(serialization.Encoding.PEM, *form))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(private.public_key().public_bytes(serialization.Encoding.PEM, spki))
    return secret, public


def test_a_signature(teacher: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    assert run("sign", teacher, "--key", private).exit_code == 0
    signature = tmp_path / "teacher.cmf.sig"
    assert len(signature.read_bytes()) == 64
    assert report("verify", teacher, "--pubkey", public)["signature"] == "valid"
    assert report("verify", teacher)["signature"].startswith("not checked")
    data = bytearray(signature.read_bytes())
    for i in (0, 31, 32, 63):
        data[i] ^= 1
        signature.write_bytes(data)
        result = run("verify", teacher, "--pubkey", public, "--json")
        assert result.exit_code == 1 and "not a signature of teacher.cmf" in result.stdout
        data[i] ^= 1
    for bad, part in ((b"", "0 bytes, expected the 64"), (bytes(65), "65 bytes")):
        signature.write_bytes(bad)
        assert part in run("verify", teacher, "--pubkey", public, "--json").stdout
    signature.unlink()
    assert "is not signed" in run("verify", teacher, "--pubkey", public, "--json").stdout


def test_a_signature_of_another_file_or_key(
    teacher: Path, student: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    assert run("sign", student, "--key", keys[0]).exit_code == 0
    shutil.copy(tmp_path / "student.cmf.sig", tmp_path / "teacher.cmf.sig")
    assert run("verify", teacher, "--pubkey", keys[1]).exit_code == 1
    other = _write_keys(ed25519.Ed25519PrivateKey.generate(), tmp_path / "o.pem", tmp_path / "op.pem")
    assert run("verify", student, "--pubkey", other[1]).exit_code == 1
    assert run("verify", student, "--pubkey", keys[1]).exit_code == 0


def test_keys_that_are_none(teacher: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    public = keys[1]
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    refused(run("sign", teacher, "--key", junk), "junk.pem", "private key")
    refused(run("sign", teacher, "--key", public), "public.pem", "private key")
    refused(run("sign", teacher, "--key", tmp_path / "no.pem"), "no.pem")
    curve = _write_keys(ec.generate_private_key(ec.SECP256R1()), tmp_path / "e.pem", tmp_path / "ep.pem")
    refused(run("sign", teacher, "--key", curve[0]), "e.pem", "expected Ed25519")
    assert "expected Ed25519" in run("verify", teacher, "--pubkey", curve[1], "--json").stdout
    assert not (tmp_path / "teacher.cmf.sig").exists()


def test_without_the_library(teacher: Path, keys: tuple[Path, Path]) -> None:
    code = "import sys; sys.modules['cryptography'] = None; from nvgpu.cli.main import main; main()"
    words = [sys.executable, "-c", code, "sign", str(teacher), "--key", str(keys[0])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: signatures need the package cryptography")


# ── inspect ──


def test_inspect_by_layer_and_role(teacher: Path, student: Path) -> None:
    answer = report("inspect", student)
    rows = {t["name"]: t for t in answer["tensors"]}
    assert rows[GATE]["layer"] == "0" and rows[GATE]["role"] == "mlp.gate_proj.weight"
    assert rows[EMBED]["layer"] == "" and rows[EMBED]["role"] == EMBED
    assert sum(t["share"] for t in answer["tensors"]) == pytest.approx(1)
    assert answer["masks"] == answer["skills"] == [] and answer["bytes"] == student.stat().st_size
    text = run("inspect", teacher).stdout
    for part in ("layer", "mlp.gate_proj.weight", "q_proj", "provenance", "header", "tokenizer"):
        assert part in text


def test_inspect_of_another_family(tmp_path: Path) -> None:
    path = tmp_path / "other.cmf"
    with CmfWriter(path, {"arch": {"arch_name": "other"}}, [("w", Dtype.F32, (2, 2))], None) as writer:
        writer.write("w", np.ones((2, 2), np.float32))
    assert report("inspect", path)["bpw_body"] is None
    assert report("verify", path)["skipped"] == ["arch: 'other' is not qwen3.5"]
    assert "not checked" in run("verify", path).stdout
    assert run("inspect", path).exit_code == 0
