"""Export to Hugging Face folders: equal values, rebuilt configs, shards, and failures that leave nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from nvgpu.errors import FormatError, InputError, OutputError
from nvgpu.formats import hf
from nvgpu.formats.blr import BlrPath, BlrTensor
from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.hf import export_hf, import_hf
from nvgpu.formats.safetensors_file import open_safetensors
from tests.formats.small_folder import SmallFolder


def test_f32_export_holds_the_source_values(tiny: Path, tiny_f32: Path, tmp_path: Path) -> None:
    with CmfFile.open(tiny_f32) as model:
        export_hf(model, tmp_path / "out", dtype="f32")
    exported = load_file(tmp_path / "out" / "model.safetensors")  # the public reader
    stored = open_safetensors(tiny / "model.safetensors")
    assert exported.keys() == stored.keys()
    for name, values in exported.items():
        source = (stored[name].raw().view("<u2").astype(np.uint32) << 16).view(np.float32)
        assert values.shape == stored[name].shape
        assert values.tobytes() == source.tobytes()


def test_bf16_export_gives_the_folder_back(tiny: Path, tmp_path: Path) -> None:
    import_hf(tiny, tmp_path / "t.cmf")
    with CmfFile.open(tmp_path / "t.cmf") as model:
        export_hf(model, tmp_path / "out")
    ours, source = (open_safetensors(f / "model.safetensors") for f in (tmp_path / "out", tiny))
    assert ours.keys() == source.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == ("BF16", source[name].shape)
        assert np.array_equal(tensor.raw(), source[name].raw())
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    for name in ("config", "generation_config", "tokenizer_config"):
        ours_json, source_json = (
            json.loads((f / f"{name}.json").read_text()) for f in (tmp_path / "out", tiny)
        )
        assert ours_json == source_json


def test_f16_export(tiny_f32: Path, tmp_path: Path) -> None:
    with CmfFile.open(tiny_f32) as model:
        export_hf(model, tmp_path / "out", dtype="f16")
        exported = load_file(tmp_path / "out" / "model.safetensors")
        for name, values in exported.items():
            assert values.dtype == np.float16
            assert np.array_equal(values, model.array(name).astype(np.float16))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float16"


def test_nested_source_becomes_a_text_model(small: SmallFolder, tmp_path: Path) -> None:
    text = {k: v for k, v in small.config.items() if k not in ("architectures", "dtype")}
    small.config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {**text, "torch_dtype": "float32"},
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    import_hf(small.save(), tmp_path / "s.cmf")
    with CmfFile.open(tmp_path / "s.cmf") as model:
        export_hf(model, tmp_path / "out", dtype="f32")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {**text, "architectures": ["Qwen3_5ForCausalLM"], "torch_dtype": "float32", "eos_token_id": 2}
    assert config == expected
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == small.tensors.keys()  # the separate head included
    for name, values in exported.items():
        assert np.array_equal(values, small.tensors[name])


def test_blr_tensors_come_out_dense(small: SmallFolder, tmp_path: Path) -> None:
    import_hf(small.save(), tmp_path / "s.cmf")
    name = "model.layers.0.mlp.up_proj.weight"
    rng = np.random.default_rng(0)
    path = BlrPath(
        h=rng.random(24).astype(np.float16), l=rng.random(8).astype(np.float16),
        g=rng.random(16).astype(np.float16), u=rng.integers(0, 256, (24, 1), dtype=np.uint8),
        v=rng.integers(0, 256, (8, 2), dtype=np.uint8),
    )  # fmt: skip
    tensor = BlrTensor(24, 16, 8, (path,))
    with CmfFile.open(tmp_path / "s.cmf") as source:
        entries = [(n, Dtype.BLR if n == name else e.dtype, e.shape) for n, e in source.tensors.items()]
        with CmfWriter(tmp_path / "b.cmf", source.header, entries, source.tokenizer_json) as writer:
            for n in source.tensors:
                writer.write(n, tensor.pack() if n == name else source.raw(n))
    with CmfFile.open(tmp_path / "b.cmf") as model:
        export_hf(model, tmp_path / "out", dtype="f32")
    assert np.array_equal(load_file(tmp_path / "out" / "model.safetensors")[name], tensor.dense())


def test_shards(small: SmallFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "SHARD_BYTES", 300_000)
    import_hf(small.save(), tmp_path / "s.cmf")
    with CmfFile.open(tmp_path / "s.cmf") as model:
        export_hf(model, tmp_path / "out", dtype="f32")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(v.nbytes for v in small.tensors.values())
    assert len(set(index["weight_map"].values())) == 2
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "out" / file, "numpy") as shard:
            assert np.array_equal(shard.get_tensor(name), small.tensors[name])
    report = import_hf(tmp_path / "out", tmp_path / "again.cmf")
    assert report.tensors == len(small.tensors)


def test_chat_template_file(small: SmallFolder, tmp_path: Path) -> None:
    folder = small.save()
    (folder / "chat_template.jinja").write_text("{{ 'é' }}", encoding="utf-8")
    import_hf(folder, tmp_path / "s.cmf")
    with CmfFile.open(tmp_path / "s.cmf") as model:
        export_hf(model, tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text(encoding="utf-8") == "{{ 'é' }}"


# ---- exports that cannot be ----


def test_occupied_folder(tiny_f32: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with CmfFile.open(tiny_f32) as model, pytest.raises(OutputError, match="out: exists and is not an empty"):
        export_hf(model, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_full_disk_leaves_nothing(tiny_f32: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with CmfFile.open(tiny_f32) as model, pytest.raises(OutputError, match="no space left on device"):
        export_hf(model, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_values_beyond_f16(small: SmallFolder, tmp_path: Path) -> None:
    small.tensors["lm_head.weight"][5, 5] = 1e6
    import_hf(small.save(), tmp_path / "s.cmf")
    with CmfFile.open(tmp_path / "s.cmf") as model:
        with pytest.raises(InputError, match=r"lm_head\.weight \(.*s\.cmf\): largest magnitude 1e\+06"):
            export_hf(model, tmp_path / "out", dtype="f16")
        assert not (tmp_path / "out").exists()
        with pytest.raises(InputError, match="dtype 'q8_row': expected f32, f16 or bf16"):
            export_hf(model, tmp_path / "out", dtype="q8_row")


def test_files_without_their_source_config(small: SmallFolder, tmp_path: Path) -> None:
    import_hf(small.save(), tmp_path / "s.cmf")
    with CmfFile.open(tmp_path / "s.cmf") as source:
        entries = [(n, e.dtype, e.shape) for n, e in source.tensors.items()]
        for change, message in (
            ({"hf": None}, r"b\.cmf: header has no hf\.config"),
            (
                {"hf": {"config": {**small.config, "intermediate_size": 8}}},
                r"mlp\..* has shape \[24, 16\], expected",
            ),
            (
                {"hf": {"config": {**small.config, "tie_word_embeddings": True}}},
                r"lm_head\.weight has no place",
            ),
        ):
            header = {**source.header, **change}
            with CmfWriter(tmp_path / "b.cmf", header, entries, source.tokenizer_json) as writer:
                for n in source.tensors:
                    writer.write(n, source.raw(n))
            with CmfFile.open(tmp_path / "b.cmf") as model, pytest.raises(FormatError, match=message):
                export_hf(model, tmp_path / "out")
