"""Tokenizers that are refused before, or by, the library that reads them."""

from __future__ import annotations

import numpy as np
import pytest

from nvgpu.errors import FormatError
from nvgpu.formats import tokenizer
from nvgpu.formats.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("data", "deepest"),
    [
        (b"", 0),
        (b'{"a": [1, {"b": []}]}', 4),
        (b'"[[[["', 0),
        (b'["\\"[[", []]', 2),
        (b'["\\\\", [[]]]', 3),
        (b"]]][", -2),
    ],
)
def test_nesting(data: bytes, deepest: int) -> None:
    assert tokenizer._nesting(np.frombuffer(data, np.uint8)) == max(deepest, 0)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(FormatError, match="^t: nested 100000 deep, expected at most 64"):
        Tokenizer.from_json_bytes(opening * 100_000, "t")


def test_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_MOST_BYTES", 10)
    with pytest.raises(FormatError, match="t: 11 bytes, expected at most 10"):
        Tokenizer.from_json_bytes(b" " * 11, "t")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"model": null}', b'{"version": "2.0"}', b"null"]
)
def test_what_is_no_tokenizer(data: bytes) -> None:
    with pytest.raises(FormatError, match="^t: "):
        Tokenizer.from_json_bytes(data, "t")
