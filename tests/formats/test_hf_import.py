"""Import of Hugging Face folders: the bundled model, the layouts people have, and every folder that cannot work."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError, OutputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype, decode, dtype_by_name
from nvgpu.formats.hf import import_hf
from nvgpu.formats.safetensors_file import open_safetensors
from tests.formats.small_folder import SmallFolder

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def _converted(folder: Path, **options: Any) -> CmfFile:
    output = folder.parent / "out.cmf"
    import_hf(folder, output, **options)
    return CmfFile.open(output)


# ---- the bundled model ----


def test_bundled_model(tiny: Path, tmp_path: Path) -> None:
    report = import_hf(tiny, tmp_path / "t.cmf")
    assert report.dtypes == {"bf16": 35, "f16": 20} and report.left_out == {}
    assert "55 tensors (35 bf16, 20 f16)" in report.lines()[0]
    assert report.nbytes == (tmp_path / "t.cmf").stat().st_size
    stored = open_safetensors(tiny / "model.safetensors")
    with CmfFile.open(tmp_path / "t.cmf") as model:
        assert set(model.tensors) == set(stored)
        assert next(iter(model.tensors)) == "model.embed_tokens.weight"
        assert list(model.tensors)[-1] == "model.norm.weight"
        for name, entry in model.tensors.items():
            assert entry.dtype == (Dtype.F16 if len(entry.shape) == 1 else Dtype.BF16)
            if len(entry.shape) > 1:
                assert np.array_equal(model.raw(name), stored[name].raw())
        assert model.tensors["model.layers.0.linear_attn.conv1d.weight"].shape == (1024, 1, 4)
        assert model.tokenizer_json == (tiny / "tokenizer.json").read_bytes()
        for name in ("config", "generation_config", "tokenizer_config"):
            assert model.header["hf"][name] == json.loads((tiny / f"{name}.json").read_text())
        assert model.header["provenance"]["source_model"] == "tiny-qwen3.5"
        assert model.header["tokenizer_config"] == {
            "eos_token_ids": [2], "bos_token_id": None, "pad_token_id": 0,
        }  # fmt: skip


def test_arch_keys(tiny_f32: Path) -> None:
    with CmfFile.open(tiny_f32) as model:
        assert model.arch == {
            "arch_name": "qwen3.5",
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_layers": 4,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 64,
            "vocab_size": 4096,
            "layer_types": ["LinearAttention"] * 3 + ["FullAttention"],
            "rms_norm_eps": 1e-6,
            "norm_style": "gemma",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_core": {"kind": "gated_delta_net", "num_heads": 4, "value_head_dim": 128},
        }


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_row", "q8_2f"])
def test_every_dtype(tiny: Path, tmp_path: Path, dtype: str) -> None:
    import_hf(tiny, tmp_path / "t.cmf", dtype=dtype)
    stored = open_safetensors(tiny / "model.safetensors")
    bound = {"f32": 0, "f16": 2e-3, "bf16": 0, "q8_row": 0.02, "q8_2f": 0.02}[dtype]
    with CmfFile.open(tmp_path / "t.cmf") as model:
        for name, entry in model.tensors.items():
            small = len(entry.shape) != 2 or "in_proj_a" in name or "in_proj_b" in name
            if len(entry.shape) == 1:
                assert entry.dtype == (Dtype.F32 if dtype == "f32" else Dtype.F16)
            elif dtype.startswith("q8") and small:
                assert entry.dtype == Dtype.F16
            else:
                assert entry.dtype == dtype_by_name(dtype)
            source = decode(stored[name].raw(), Dtype.BF16, entry.shape, name)
            error = np.linalg.norm(model.array(name) - source) / np.linalg.norm(source)
            assert error <= (bound if len(entry.shape) > 1 else 2e-3)


def test_same_folder_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    for name in "ab":
        import_hf(tiny, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# ---- layouts ----


def _same_tensors(model: CmfFile, small: SmallFolder) -> None:
    for name, values in small.tensors.items():
        assert model.array(name).tobytes() == values.tobytes()
    assert len(model.tensors) == len(small.tensors)


def test_f32_checkpoint_keeps_f32(small: SmallFolder) -> None:
    with _converted(small.save()) as model:
        _same_tensors(model, small)
        assert {e.dtype for e in model.tensors.values()} == {Dtype.F32}


@pytest.mark.parametrize("index", [True, False])
def test_shards(small: SmallFolder, index: bool) -> None:
    with _converted(small.save(shards=3, index=index)) as model:
        _same_tensors(model, small)


def test_nested_config_with_vision_and_mtp(small: SmallFolder, tmp_path: Path) -> None:
    plain = dict(small.tensors)
    small.config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {k: v for k, v in small.config.items() if k != "architectures"},
        "vision_config": {"depth": 1},
        "tie_word_embeddings": False,
        "eos_token_id": [7, 2],
    }
    small.tensors = {
        (n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n): v
        for n, v in plain.items()
    }
    extra = ["model.visual.blocks.0.attn.qkv.weight", "model.visual.pos_embed.weight", "mtp.fc.weight"]
    small.tensors.update({name: np.ones((2, 3), np.float32) for name in extra})
    report = import_hf(small.save(), tmp_path / "out.cmf")
    assert report.left_out == {"vision": extra[:2], "multi-token prediction": extra[2:]}
    text = "\n".join(report.lines())
    assert all(name in text for name in extra)
    with CmfFile.open(tmp_path / "out.cmf") as model:
        small.tensors = plain
        _same_tensors(model, small)
        assert model.header["tokenizer_config"]["eos_token_ids"] == [2, 7]
        assert model.header["hf"]["config"]["vision_config"] == {"depth": 1}


def test_tied_head(small: SmallFolder) -> None:
    small.config["tie_word_embeddings"] = True
    small.tensors["lm_head.weight"] = small.tensors["model.embed_tokens.weight"]
    with _converted(small.save()) as model:
        assert "lm_head.weight" not in model.tensors
        assert model.arch["tie_word_embeddings"] is True
    small.tensors["lm_head.weight"] = small.tensors["lm_head.weight"] + np.float32(1)
    with pytest.raises(FormatError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        _converted(small.save())


def test_rope_parameters_win(small: SmallFolder) -> None:
    small.config.update(rope_theta=5.0, partial_rotary_factor=1.0)
    with _converted(small.save()) as model:
        assert (model.arch["rope_theta"], model.arch["partial_rotary_factor"]) == (1e6, 0.5)
    small.config["rope_parameters"] = {"rope_type": "default", "mrope_section": [1, 1, 0]}
    with _converted(small.save()) as model:
        assert (model.arch["rope_theta"], model.arch["partial_rotary_factor"]) == (5.0, 1.0)


def test_layer_types_from_the_interval(small: SmallFolder) -> None:
    del small.config["layer_types"]
    small.config["full_attention_interval"] = 2
    with _converted(small.save()) as model:
        assert model.arch["layer_types"] == ["LinearAttention", "FullAttention"]


def test_chat_templates(small: SmallFolder) -> None:
    folder = small.save()
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": named, "eos_token": {"content": "<|im_end|>"}})
    )
    (folder / "generation_config.json").unlink()
    with _converted(folder) as model:
        bundle = model.header["tokenizer_config"]
        assert (bundle["chat_template"], bundle["eos_token_ids"]) == ("D", [2])
        assert "generation_config" not in model.header["hf"]
    (folder / "chat_template.jinja").write_text("{{ 'é' }}", encoding="utf-8")
    with _converted(folder) as model:
        assert model.header["tokenizer_config"]["chat_template"] == "{{ 'é' }}"


def test_rounding_of_1d_tensors_is_reported(small: SmallFolder, tmp_path: Path) -> None:
    small.tensors["model.norm.weight"][:] = 1 + 2.0**-12
    report = import_hf(small.save(), tmp_path / "out.cmf", dtype="f16")
    assert 0 < report.rounding[0] < 1e-3
    assert "rounding of a 1-D tensor to f16" in report.lines()[-1]


# ---- folders that cannot work ----


def _refused(folder: Path, error: type[Exception], message: str) -> None:
    output = folder.parent / "out.cmf"
    with pytest.raises(error, match=message) as e:
        import_hf(folder, output)
    assert "\n" not in str(e.value)
    assert os.listdir(folder.parent) == [folder.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            "architecture 'LlamaForCausalLM', expected Qwen3_5ForCausalLM or",
        ),
        ({"architectures": []}, r"architecture \[\]"),
        ({"architectures": None}, "architecture None"),
        ({"text_config": 3}, "text_config is int"),
        ({"hidden_size": None}, "hidden_size is None, expected a positive whole number"),
        ({"hidden_size": 1.5}, "hidden_size is 1.5"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 4}, "num_attention_heads 2 is not a multiple of num_kv_heads 4"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu' is supported"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn', only 'default'"),
        ({"rope_parameters": {"full_attention": {}}}, "rope parameters by layer type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, "0 rotary dimensions of 8"),
        (
            {"rope_parameters": {"partial_rotary_factor": 2}},
            "partial_rotary_factor is 2.0, expected at most 1",
        ),
        ({"layer_types": ["linear_attention"]}, "layer_types is not a list of num_hidden_layers = 2"),
        ({"layer_types": ["linear_attention", "sliding_attention"]}, "layer_types holds 'sliding_attention'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ({"vocab_size": 4000}, r"tokenizer\.json: token .* has id 4095, vocab_size is 4000"),
    ],
)
def test_configs(small: SmallFolder, change: dict[str, Any], message: str) -> None:
    small.config.update(change)
    _refused(small.save(), FormatError, message)


def test_missing_unexpected_and_misshaped_tensors(small: SmallFolder) -> None:
    values = small.tensors.pop(Q_PROJ)
    _refused(small.save(), FormatError, f"small: tensor {Q_PROJ} is missing")
    small.tensors[Q_PROJ] = values.reshape(16, 32)
    _refused(small.save(), FormatError, rf"{Q_PROJ} has shape \[16, 32\], expected \[32, 16\] by config.json")
    small.tensors[Q_PROJ] = values
    small.tensors["model.layers.1.self_attn.q_proj.bias"] = np.ones(32, np.float32)
    _refused(small.save(), FormatError, r"model\.safetensors: tensor .*q_proj\.bias is not part of this arch")
    del small.tensors["model.layers.1.self_attn.q_proj.bias"]
    small.tensors["model.language_model.norm.weight"] = np.ones(16, np.float32)
    _refused(small.save(), FormatError, r"tensor model\.norm\.weight stands twice")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_cannot_be_stored(small: SmallFolder, value: float) -> None:
    small.tensors[Q_PROJ][0, 0] = value
    _refused(small.save(), InputError, rf"{Q_PROJ} \(.*model\.safetensors\): holds infinite or NaN")


def test_gain_beyond_f16(small: SmallFolder, tmp_path: Path) -> None:
    small.tensors["model.norm.weight"][3] = 1e6
    folder = small.save()
    with pytest.raises(InputError, match=r"model\.norm\.weight .*largest magnitude 1e\+06 exceeds .* f16"):
        import_hf(folder, tmp_path / "out.cmf", dtype="bf16")
    import_hf(folder, tmp_path / "out.cmf", dtype="f32")


def test_missing_shards(small: SmallFolder) -> None:
    folder = small.save(shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    _refused(
        folder, InputError, r"model-00002-of-00003\.safetensors: shard is missing, .*index\.json names it"
    )
    (folder / "model.safetensors.index.json").unlink()
    _refused(folder, InputError, r"model-00002-of-00003\.safetensors: shard is missing")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    _refused(folder, InputError, "small: no model.safetensors")


def test_hostile_index(small: SmallFolder) -> None:
    folder = small.save(shards=2)
    index = folder / "model.safetensors.index.json"
    for value in ("../x.safetensors", "/etc/passwd", 3, "x.bin"):
        index.write_text(json.dumps({"weight_map": {"t": value}}))
        _refused(folder, FormatError, "tensor t is in .*, expected the name of a .safetensors file")
    index.write_text("{}")
    _refused(folder, FormatError, r"index\.json: weight_map is missing or empty")


def test_tensor_in_two_shards(small: SmallFolder) -> None:
    folder = small.save(shards=2, index=False)
    one, two = sorted(folder.glob("*.safetensors"))
    two.write_bytes(one.read_bytes())
    _refused(folder, FormatError, "stands in model-00001-of-00002.safetensors too")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_git_lfs_pointers(small: SmallFolder, name: str) -> None:
    folder = small.save()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    _refused(folder, FormatError, f"{name}: a Git LFS pointer")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_files(small: SmallFolder, name: str) -> None:
    folder = small.save()
    (folder / name).unlink()
    _refused(folder, InputError, f"{name}: no such file")


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: no such folder"):
        import_hf(tmp_path / "gone", tmp_path / "out.cmf")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: not a folder"):
        import_hf(tmp_path / "file", tmp_path / "out.cmf")


def test_unwritable_output(small: SmallFolder, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no/out\.cmf: folder .*no does not exist"):
        import_hf(small.save(), tmp_path / "no" / "out.cmf")


# ---- safetensors files that are not what they claim to be ----


@pytest.mark.parametrize("kept", [0, 7, 100, -1, "half"])
def test_truncated_safetensors(small: SmallFolder, kept: int | str) -> None:
    path = small.save() / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 if kept == "half" else int(kept)])
    _refused(small.path, FormatError, r"model\.safetensors: (truncated|\d bytes, expected at least the 8)")


def _safetensors(header: bytes, data: bytes = bytes(8)) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", 1 << 62), "header of 4611686018427387904 bytes, expected at most"),
        (_safetensors(b"[]"), "safetensors header: found a JSON list"),
        (_safetensors(b'{"a": 1}'), "tensor a: its record has not dtype, shape and data_offsets"),
        (_safetensors(b'{"a": {"dtype": "F3", "shape": [2], "data_offsets": [0, 8]}}'), "unknown dtype 'F3'"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}'), "not a list of whole"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}'), "not a list of whole"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}}'), "not a list of whole"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}'), "8 bytes, expected 12"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}'), "begins at byte"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'), "where its last tensor ends"),
        (
            _safetensors(
                b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
                b' "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
            ),
            "tensor b begins at byte",
        ),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": [4611686018427387904, 8], "data_offsets": [0, 8]}}'), "8 bytes, exp"),
        (_safetensors(b'{"a": 1, "a": 2}'), "key 'a' stands twice"),
    ],
)  # fmt: skip
def test_malformed_safetensors(small: SmallFolder, content: bytes, message: str) -> None:
    (small.save() / "model.safetensors").write_bytes(content)
    _refused(small.path, FormatError, rf"model\.safetensors: .*{message}")


def test_unsupported_float(small: SmallFolder) -> None:
    path = small.save() / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"U32"'))
    _refused(
        small.path,
        FormatError,
        r"model\.safetensors: tensor .* has dtype U32, expected one of F32, F16, BF16",
    )
