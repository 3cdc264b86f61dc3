"""A model's tokenizer: text to ids and back, its vocabulary, and its chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numba
import numpy as np
import tokenizers

from nvgpu.errors import FormatError
from nvgpu.formats.chat import ChatTemplate, Conversation, Message, Span
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.files import one_line

Ids = np.ndarray[Any, np.dtype[np.uint32]]
Marks = np.ndarray[Any, np.dtype[np.bool_]]
T = TypeVar("T")

_MOST_BYTES = 256 << 20
_MOST_NESTED = 64  # real ones stay below 10


class Tokenizer:
    """`tokenizer.json` behind the `tokenizers` library. Nothing is prepended, truncated or padded.

    `chat_fallback_used` becomes true when a conversation was rendered without a template of the model.
    """

    def __init__(self, inner: tokenizers.Tokenizer, where: str, template: ChatTemplate) -> None:
        self.where = where
        self.chat_fallback_used = False
        self._inner = inner
        self._template = template

    @classmethod
    def from_json_bytes(cls, data: bytes, where: str, bundle: Mapping[str, Any] | None = None) -> Self:
        """Read a `tokenizer.json`; `bundle` is the header's tokenizer_config, which may hold a chat_template.

        Raises:
            FormatError: not a tokenizer, or a chat template that is not valid; names `where`.
        """
        _check_size(data, where)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as e:
            raise FormatError(f"{where}: not UTF-8 at byte {e.start}") from e
        inner = _guarded(lambda: tokenizers.Tokenizer.from_str(text), where, "not a tokenizer")
        inner.no_truncation()
        inner.no_padding()
        bundle = bundle or {}
        source = bundle.get("chat_template")
        if source is not None and not isinstance(source, str):
            raise FormatError(f"{where}: chat_template is {type(source).__name__}, expected a string")
        added = [token.content for token in inner.get_added_tokens_decoder().values()]
        return cls(inner, where, ChatTemplate(source, where, _special_tokens(inner, bundle), added))

    @classmethod
    def of(cls, model: CmfFile) -> Self:
        """The tokenizer inside a model file; raises FormatError where it has none."""
        data = model.tokenizer_json
        if data is None:
            raise FormatError(f"{model.path}: holds no tokenizer")
        bundle = model.header.get("tokenizer_config")
        return cls.from_json_bytes(
            data, f"{model.path}: tokenizer", bundle if isinstance(bundle, dict) else None
        )

    def encode(self, text: str) -> Ids:
        """Ids, u32; added tokens in the text are recognised."""
        return self.encode_all([text])

    def encode_all(self, texts: Sequence[str]) -> Ids:
        """The ids of every text in turn, concatenated."""
        encodings = _guarded(
            lambda: self._inner.encode_batch_fast(list(texts), add_special_tokens=False),
            self.where,
            "cannot tokenise",
        )
        return np.concatenate([np.zeros(0, np.uint32), *(np.array(e.ids, np.uint32) for e in encodings)])

    def encode_marked(self, text: str, spans: Sequence[Span]) -> tuple[Ids, Marks]:
        """Ids of a text, and which of them begin inside one of the ascending `spans` of its characters."""
        encoding = _guarded(
            lambda: self._inner.encode(text, add_special_tokens=False), self.where, "cannot tokenise"
        )
        starts = np.array([first for first, _ in encoding.offsets], np.int64)
        edges = np.array(spans, np.int64).reshape(-1)
        return np.array(encoding.ids, np.uint32), np.searchsorted(edges, starts, side="right") % 2 == 1

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Text of the ids, added tokens included."""
        plain = [int(i) for i in ids]
        text: str = _guarded(
            lambda: self._inner.decode(plain, skip_special_tokens=False), self.where, "cannot decode"
        )
        return text

    def vocab_map(self) -> dict[str, int]:
        """Token to id, added tokens included."""
        return dict(self._inner.get_vocab(with_added_tokens=True))

    def render_chat(self, messages: Sequence[Message], where: str) -> str:
        """A conversation as text, by the model's template or ChatML. Raises InputError naming `where`."""
        self.chat_fallback_used |= self._template.fallback
        return self._template.render(messages, where)

    def render_answers(self, messages: Sequence[Message], where: str) -> Conversation:
        """`render_chat`, and where the assistant's turns are in the text. Raises InputError also where that cannot be told."""
        self.chat_fallback_used |= self._template.fallback
        return self._template.answers(messages, where)


def same_tokenizer(a: Tokenizer, b: Tokenizer) -> str | None:
    """None if both map the same tokens to the same ids, else the first difference in id order, as text."""
    ours, theirs = a.vocab_map(), b.vocab_map()
    if ours == theirs:
        return None
    differing = {t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)}
    big = len(ours) + len(theirs)
    token = min(differing, key=lambda t: (min(ours.get(t, big), theirs.get(t, big)), t))
    pair = [f"id {vocab[token]}" if token in vocab else "missing" for vocab in (ours, theirs)]
    return f"token {token!r} is {pair[0]} in the first and {pair[1]} in the second"


def _check_size(data: bytes, where: str) -> None:
    """Refuse what would take the library's parser out of its depth, before it sees it."""
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{where}: {len(data)} bytes, expected at most {_MOST_BYTES} of a tokenizer")
    depth = int(_nesting(np.frombuffer(data, np.uint8)))
    if depth > _MOST_NESTED:
        raise FormatError(f"{where}: nested {depth} deep, expected at most {_MOST_NESTED}")


@numba.njit(cache=True)
def _nesting(data: np.ndarray[Any, Any]) -> int:
    """The deepest nesting of brackets and braces outside of strings."""
    depth = deepest = 0
    quoted = escaped = False
    for byte in data:
        if quoted:
            quoted = escaped or byte != 34
            escaped = not escaped and byte == 92
        elif byte == 34:
            quoted = True
        elif byte in (91, 123):
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (93, 125):
            depth -= 1
    return deepest


def _special_tokens(inner: tokenizers.Tokenizer, bundle: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and pad_token as text, from the bundle's ids."""
    eos = bundle.get("eos_token_ids")
    ids = {
        "bos_token": bundle.get("bos_token_id"),
        "eos_token": eos[0] if isinstance(eos, list) and eos else None,
        "pad_token": bundle.get("pad_token_id"),
    }
    named = {name: inner.id_to_token(i) for name, i in ids.items() if isinstance(i, int) and 0 <= i < 1 << 32}
    return {name: token for name, token in named.items() if token is not None}


def _guarded(call: Callable[[], T], where: str, what: str) -> T:
    """Call into the library; its exceptions, and the panics of the Rust below it, become FormatError."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as e:  # a Rust panic is no Exception
        raise FormatError(f"{where}: {what}: {one_line(e)}") from e
