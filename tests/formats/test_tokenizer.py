"""The tokenizer behind its library, vocabulary comparison, and chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.tokenizer import Tokenizer, same_tokenizer

TALK = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Yes."}]


@pytest.fixture(scope="module")
def source(tiny: Path) -> bytes:
    return (tiny / "tokenizer.json").read_bytes()


@pytest.fixture(scope="module")
def tokenizer(source: bytes) -> Tokenizer:
    return Tokenizer.from_json_bytes(source, "tokenizer.json")


@pytest.mark.parametrize(
    "text", ["", "def f(x):\n    return x\n", "naïve 漢字 🙂", "a<|im_end|>\n<|im_start|>b"]
)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint32
    assert tokenizer.decode(ids) == text


def test_added_tokens_are_recognised_and_nothing_is_prepended(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|><|im_end|><|endoftext|>").tolist() == [1, 2, 0]
    assert tokenizer.encode_all(["<|im_start|>", "", "<|im_end|>"]).tolist() == [1, 2]


def test_truncation_and_padding_in_the_file_are_ignored(source: bytes) -> None:
    data = json.loads(source)
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    tokenizer = Tokenizer.from_json_bytes(json.dumps(data).encode(), "t")
    assert tokenizer.encode("<|im_end|>" * 5).tolist() == [2] * 5


def test_vocabulary(tokenizer: Tokenizer) -> None:
    vocab = tokenizer.vocab_map()
    assert len(vocab) == 4096 and vocab["<|im_end|>"] == 2


def test_same_and_different_vocabularies(source: bytes, tokenizer: Tokenizer) -> None:
    assert same_tokenizer(tokenizer, Tokenizer.from_json_bytes(source, "again")) is None
    data = json.loads(source)
    data["added_tokens"][2]["content"] = "<|end|>"
    other = Tokenizer.from_json_bytes(json.dumps(data).encode(), "other")
    difference = same_tokenizer(tokenizer, other)
    assert difference is not None and "<|end|>" in difference and "missing in the first" in difference


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"version": "1.0", "model": {"type": "X"}}', b"[" * 9999]
)
def test_malformed_files(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"m\.cmf: tokenizer: ") as e:
        Tokenizer.from_json_bytes(data, "m.cmf: tokenizer")
    assert "\n" not in str(e.value)


def test_from_a_model_file(tiny_f32: Path, tokenizer: Tokenizer, write_cmf: Callable[..., Path]) -> None:
    with CmfFile.open(tiny_f32) as model:
        assert same_tokenizer(Tokenizer.of(model), tokenizer) is None
    with (
        CmfFile.open(write_cmf({"t": np.ones(1)})) as model,
        pytest.raises(FormatError, match=r"m\.cmf: holds no tokenizer"),
    ):
        Tokenizer.of(model)


def _chat(source: bytes, template: str, **bundle: Any) -> Tokenizer:
    return Tokenizer.from_json_bytes(source, "m", {"chat_template": template, **bundle})


def test_chatml_without_a_template(source: bytes) -> None:
    tokenizer = Tokenizer.from_json_bytes(source, "m")
    assert not tokenizer.chat_fallback_used
    text = tokenizer.render_chat(TALK, "c.jsonl:1")
    assert text == "<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
    assert tokenizer.chat_fallback_used
    with pytest.raises(InputError, match=r"c\.jsonl:1: message content is list"):
        tokenizer.render_chat([{"role": "user", "content": []}], "c.jsonl:1")


def test_template_semantics(source: bytes) -> None:
    template = """
{%- for m in messages %}
    {%- if loop.index0 == 1 %}{% continue %}{% endif %}
    {% if true %}
[{{ m.role | upper }}] {{ m.content.strip() }} {{ m | tojson }}
    {% endif %}
{%- endfor %}{{ eos_token }}{{ 'prompt' if add_generation_prompt }}"""
    tokenizer = _chat(source, template, eos_token_ids=[2])
    text = tokenizer.render_chat(TALK, "c")
    assert text == '[USER] Hi <b> {"role": "user", "content": "Hi <b>"}\n<|im_end|>'
    assert not tokenizer.chat_fallback_used


def test_template_may_refuse(source: bytes) -> None:
    tokenizer = _chat(source, "{{ raise_exception('no system message') }}")
    with pytest.raises(InputError, match=r"c\.jsonl:7: the chat template refuses .* no system message"):
        tokenizer.render_chat(TALK, "c.jsonl:7")


def test_template_is_sandboxed(source: bytes) -> None:
    for attack in (
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) | list }}",
    ):
        with pytest.raises(InputError, match="the chat template refuses"):
            _chat(source, attack).render_chat(TALK, "c")


def test_template_may_print_the_date(source: bytes) -> None:
    assert _chat(source, "{{ strftime_now('%%') }}").render_chat(TALK, "c") == "%"


@pytest.mark.parametrize("template", ["{% if %}", "{{ x", "{% nonsense %}"])
def test_malformed_templates(source: bytes, template: str) -> None:
    with pytest.raises(FormatError, match="m: chat template, line 1"):
        _chat(source, template)
    with pytest.raises(FormatError, match="m: chat_template is int"):
        Tokenizer.from_json_bytes(source, "m", {"chat_template": 3})
