"""Text sources: specs, plain text and .jsonl, incremental tokenising, shares of a budget, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError
from nvgpu.formats import text
from nvgpu.formats.text import TextSource, read_all, split_budget, tokens
from nvgpu.formats.tokenizer import Tokenizer

PROSE = "Café déjà vu 漢字.\n\n  Indented:\n\tx = [1, 2]\r\nNext line's end\n\n\nlast 🙂 line\n"


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_json_bytes((tiny / "tokenizer.json").read_bytes(), "t")


def _source(tmp_path: Path, content: str | bytes, name: str = "a.txt") -> TextSource:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return TextSource(path)


# ---- specs ----


def test_specs(tmp_path: Path) -> None:
    assert TextSource.parse("a/b.txt") == TextSource(Path("a/b.txt"), 1.0)
    assert TextSource.parse("a/b.txt=0.25") == TextSource(Path("a/b.txt"), 0.25)
    assert TextSource.parse("a=b.txt=2") == TextSource(Path("a=b.txt"), 2.0)
    odd = tmp_path / "odd=3"
    odd.write_text("x")
    assert TextSource.parse(str(odd)) == TextSource(odd, 1.0)
    assert TextSource.parse(f"{odd}=2") == TextSource(odd, 2.0)


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "x", ""])
def test_bad_weights(weight: str) -> None:
    with pytest.raises(InputError, match=f"text source 'a.txt={weight}': weight '{weight}'"):
        TextSource.parse(f"a.txt={weight}")


# ---- plain text ----


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 1 << 18])
def test_chunks_change_no_token(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(text, "_CHUNK_BYTES", block)
    source = _source(tmp_path, PROSE * 20)
    whole = tokenizer.encode(PROSE * 20)
    assert np.array_equal(tokens(source, tokenizer, 1 << 30).ids, whole)
    assert np.array_equal(read_all(source.path, tokenizer).ids, whole)
    for limit in (0, 1, 50, len(whole) - 1):
        assert np.array_equal(tokens(source, tokenizer, limit).ids, whole[:limit])


def test_only_what_is_needed_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_CHUNK_BYTES", 64)
    source = _source(tmp_path, (PROSE * 20).encode() + b"\xff")  # the bad byte is never met
    assert len(tokens(source, tokenizer, 100)) == 100


def test_a_byte_order_mark_is_dropped(tmp_path: Path, tokenizer: Tokenizer) -> None:
    marked = _source(tmp_path, b"\xef\xbb\xbfhello")
    assert np.array_equal(read_all(marked.path, tokenizer).ids, tokenizer.encode("hello"))
    lines = _source(tmp_path, b'\xef\xbb\xbf{"text": "hello"}', "a.jsonl")
    assert np.array_equal(read_all(lines.path, tokenizer).ids, tokenizer.encode("hello"))


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
@pytest.mark.parametrize(
    ("content", "at"), [(b"ab\xffcd", 2), (b"\xe6\xbc", 0), (b"abc\xc3", 3), (b"x\xc3(", 1)]
)
def test_invalid_utf8_has_its_offset(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, block: int, content: bytes, at: int
) -> None:
    monkeypatch.setattr(text, "_CHUNK_BYTES", block)
    source = _source(tmp_path, content)
    with pytest.raises(FormatError, match=rf"a\.txt: invalid UTF-8 at byte {at}"):
        read_all(source.path, tokenizer)


def test_missing_and_odd_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: no such file"):
        tokens(TextSource(tmp_path / "gone.txt"), tokenizer, 5)
    with pytest.raises(FormatError, match="a folder"):
        tokens(TextSource(tmp_path), tokenizer, 5)
    assert len(read_all(_source(tmp_path, "").path, tokenizer)) == 0


# ---- .jsonl ----


def test_jsonl(tmp_path: Path, tokenizer: Tokenizer) -> None:
    talk = [{"role": "user", "content": "hi"}]
    lines = [{"text": "first\n"}, {"messages": talk}, {"text": "both", "messages": talk}, {"text": "é"}]
    content = "\n\n  \r\n".join(json.dumps(line, ensure_ascii=i % 2 == 0) for i, line in enumerate(lines))
    source = _source(tmp_path, content, "a.JSONL")
    expected = ["first\n", "<|im_start|>user\nhi<|im_end|>\n", "both", "é"]
    assert np.array_equal(read_all(source.path, tokenizer).ids, tokenizer.encode_all(expected))
    assert tokens(source, tokenizer, 3).ids.tolist() == tokenizer.encode_all(expected)[:3].tolist()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON: .* at column 2"),
        (b"[1]", "a JSON list, expected an object"),
        (b'{"content": "x"}', "an object without text, messages or conversations"),
        (b'{"text": 3}', "text is int, expected a string"),
        (b'{"text": "\\ud800"}', "holds half of a surrogate pair"),
        (b'{"text": "\xff"}', "invalid UTF-8 at byte 10 of the line"),
        (b'{"messages": []}', "messages is not a list with at least one message"),
        (b'{"messages": {"role": "user"}}', "messages is not a list"),
        (b'{"messages": [{"content": "x"}]}', "message 0 is not an object with a role"),
        (b'{"messages": [{"role": "user"}]}', "message content is NoneType"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_lines_have_their_place(tmp_path: Path, tokenizer: Tokenizer, line: bytes, message: str) -> None:
    source = _source(tmp_path, b'{"text": "fine"}\n\n' + line + b"\n", "a.jsonl")
    with pytest.raises(InputError, match=rf"a\.jsonl:3: {message}"):
        read_all(source.path, tokenizer)


# ---- budgets ----


def _words(tmp_path: Path, count: int, name: str) -> TextSource:
    return _source(tmp_path, "<|im_end|>" * count, name)  # one token each


@pytest.mark.parametrize(
    ("sizes", "weights", "budget", "expected"),
    [
        ([100], [1], 40, [40]),
        ([100], [1], 400, [100]),
        ([100, 100], [1, 1], 50, [25, 25]),
        ([100, 100], [1, 1], 51, [25, 26]),
        ([100, 100], [3, 1], 40, [30, 10]),
        ([10, 100], [1, 1], 60, [10, 50]),
        ([10, 100, 100], [2, 1, 3], 90, [10, 20, 60]),
        ([10, 30, 100], [1, 1, 1], 120, [10, 30, 80]),
        ([10, 20, 30], [1, 1, 1], 1000, [10, 20, 30]),
        ([0, 100], [5, 1], 50, [0, 50]),
        ([100, 100, 100], [0.1, 0.1, 0.1], 100, [33, 33, 34]),
    ],
)
def test_shares(
    tmp_path: Path,
    tokenizer: Tokenizer,
    sizes: list[int],
    weights: list[float],
    budget: int,
    expected: list[int],
) -> None:
    sources = [
        TextSource(_words(tmp_path, n, f"{i}.txt").path, w)
        for i, (n, w) in enumerate(zip(sizes, weights, strict=True))
    ]
    assert [len(part) for part in split_budget(sources, tokenizer, budget)] == expected


def test_shares_come_from_the_start(tmp_path: Path, tokenizer: Tokenizer) -> None:
    sources: list[Any] = [_source(tmp_path, PROSE * 9, "a.txt"), _source(tmp_path, PROSE * 9, "b.txt")]
    whole = tokenizer.encode(PROSE * 9)
    for part in split_budget(sources, tokenizer, 60):
        assert np.array_equal(part.ids, whole[:30])
