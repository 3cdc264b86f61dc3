"""Text corpora: plain text and .jsonl files to ids, no more of a file than is needed.

A plain file is one document. A line of a .jsonl file is one: an object with `text`, or else a conversation, rendered by the
model's chat template: `messages` (each with role and content), or ShareGPT's `conversations` (each with from and value).
The ids of documents follow each other without a separator.

Every id has a row, which predicts the id behind it. With `loss_on` "all" every row counts; with "answer" those that predict
an id of an assistant's turn, the token that ends the turn included, and nothing of plain text.

Where only the first ids are wanted, a plain file is tokenised in chunks. A chunk ends after a line break that
stands between two characters that are no white space. Tokenizers that split at white space before they merge
(the Qwen and GPT families) then give the ids of the whole text; others may differ at a chunk's edge.
`read_all` tokenises a plain file as a whole.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.chat import Conversation
from nvgpu.formats.files import reason, require_regular
from nvgpu.formats.tokenizer import Ids, Marks, Tokenizer

LOSS_ON = ("all", "answer")
Weights = np.ndarray[Any, np.dtype[np.float32]]

_CHUNK_BYTES = 1 << 18
_BOM = b"\xef\xbb\xbf"
_CUT = re.compile(r"(?<=\S)\n(?=\S)")
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


@dataclass(frozen=True)
class Tokens:
    """u32 ids `[n]`, and f32 weights `[n]` of their rows: 1 where a row counts in the loss, 0 where it does not."""

    ids: Ids
    weights: Weights

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class TextSource:
    """A file and its share: of several sources each gives tokens in proportion to its weight."""

    path: Path
    weight: float = 1.0

    @classmethod
    def parse(cls, spec: str) -> Self:
        """From `PATH` or `PATH=WEIGHT`; a spec that names a file as it stands is a plain path.

        Raises:
            InputError: a weight that is not a positive number.
        """
        path, equals, weight = spec.rpartition("=")
        if not equals or not path or os.path.isfile(spec):
            return cls(Path(spec))
        try:
            value = float(weight)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"text source {spec!r}: weight {weight!r}, expected a positive number")
        return cls(Path(path), value)


def tokens(source: TextSource, tokenizer: Tokenizer, limit: int, loss_on: str = "all") -> Tokens:
    """The first `limit` ids of a source, fewer where it has fewer.

    Raises:
        InputError: an unreadable file, or with `loss_on` "answer" a conversation whose answers cannot be told.
        FormatError: invalid UTF-8 or a malformed line, with its place.
    """
    stream = _Stream(source, tokenizer, loss_on)
    stream.fill(limit)
    return stream.take(limit)


def read_all(path: Path, tokenizer: Tokenizer, loss_on: str = "all") -> Tokens:
    """Every id of a file; a plain file is tokenised as a whole. Raises as `tokens`."""
    if _is_jsonl(path):
        stream = _Stream(TextSource(path), tokenizer, loss_on)
        stream.fill(None)
        return stream.take(None)
    ids = tokenizer.encode("".join(_text_blocks(path)))
    return Tokens(ids, np.full(len(ids), loss_on == "all", np.float32))


def split_budget(
    sources: Sequence[TextSource], tokenizer: Tokenizer, budget: int, loss_on: str = "all"
) -> list[Tokens]:
    """The tokens of every source, `budget` in all, shared in proportion to the weights.

    What a source is too small to give goes to the others, again by weight; with too little text in all
    of them everything is returned. Shares are rounded so that they add up. Raises as `tokens`.
    """
    streams = [_Stream(source, tokenizer, loss_on) for source in sources]
    shares = [0] * len(streams)
    while True:
        left = budget - sum(s.count for s in streams if s.exhausted)
        open_ = [i for i, s in enumerate(streams) if not s.exhausted]
        for i, share in zip(open_, _shares([sources[i].weight for i in open_], left), strict=True):
            shares[i] = share
            streams[i].fill(share)
        short = [i for i in open_ if streams[i].count < shares[i]]
        if not short:
            return [s.take(n) for s, n in zip(streams, shares, strict=True)]
        for i in short:
            shares[i] = streams[i].count


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """Whole shares that add up to `total`: differences of the rounded-down running sums."""
    _, exponent = math.frexp(max(weights, default=1.0))
    weights = [math.ldexp(weight, -exponent) for weight in weights]  # exact; their sum cannot overflow
    whole = sum(weights)
    edges = [0]
    running = 0.0
    for weight in weights:
        running += weight
        edges.append(int(total * (running / whole)))
    if weights:
        edges[-1] = total
    return [b - a for a, b in pairwise(edges)]


class _Stream:
    """Tokens of a source, tokenised as far as asked for; `exhausted` once the file has no more."""

    def __init__(self, source: TextSource, tokenizer: Tokenizer, loss_on: str) -> None:
        self._tokenizer = tokenizer
        self._answers = loss_on == "answer"
        self._batches = _batches(source.path, tokenizer, self._answers)
        self._parts: list[Ids] = []
        self._said: list[Marks] = []  # of answers only: which ids are part of one
        self.count = 0
        self.exhausted = False

    def fill(self, count: int | None) -> None:
        """Tokenise until there are `count` ids, or everything."""
        while not self.exhausted and (count is None or self.count < count):
            batch = next(self._batches, None)
            if batch is None:
                self.exhausted = True
            else:
                self._add(batch)

    def _add(self, batch: list[Conversation]) -> None:
        if self._answers:
            for document in batch:
                ids, said = self._tokenizer.encode_marked(document.text, document.answers)
                self._parts.append(ids)
                self._said.append(said)
                self.count += len(ids)
        else:
            self._parts.append(self._tokenizer.encode_all([document.text for document in batch]))
            self.count += len(self._parts[-1])

    def take(self, count: int | None) -> Tokens:
        ids = np.concatenate([np.zeros(0, np.uint32), *self._parts])
        if not self._answers:
            return Tokens(ids[:count], np.ones(len(ids[:count]), np.float32))
        said = np.concatenate([np.zeros(0, bool), *self._said, [False]])
        return Tokens(ids[:count], said[1 : len(ids) + 1][:count].astype(np.float32))


def _is_jsonl(path: Path) -> bool:
    return path.suffix.lower() == ".jsonl"


def _batches(path: Path, tokenizer: Tokenizer, answers: bool) -> Iterator[list[Conversation]]:
    """Documents, or chunks of one, in groups worth a call; with `answers` conversations have theirs."""
    if not _is_jsonl(path):
        yield from ([Conversation(chunk, ())] for chunk in _chunks(_text_blocks(path)))
        return
    batch, size = [], 0
    for document in _documents(path, tokenizer, answers):
        batch.append(document)
        size += len(document.text)
        if size >= _CHUNK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _chunks(blocks: Iterator[str]) -> Iterator[str]:
    """Cut at the last place of each block where a cut changes no token; see the head of this file."""
    held: list[str] = []
    for block in blocks:
        edge = held[-1][-2:] if held else ""  # so that a cut at the border of two blocks is seen
        cuts = [match.end() for match in _CUT.finditer(edge + block)]
        if cuts:
            at = cuts[-1] - len(edge)
            yield "".join(held) + block[:at]
            held = [block[at:]]
        else:
            held.append(block)
    if held:
        yield "".join(held)


def _text_blocks(path: Path) -> Iterator[str]:
    """The file as text, in blocks; a byte order mark is dropped, line ends stay as they are."""
    offset, rest = 0, b""
    for block in _blocks(path):
        data = rest + block
        try:
            text, rest = data.decode("utf-8"), b""
        except UnicodeDecodeError as e:
            if e.reason != "unexpected end of data":
                raise FormatError(f"{path}: invalid UTF-8 at byte {offset + e.start}") from e
            text, rest = data[: e.start].decode("utf-8"), data[e.start :]
        yield text.removeprefix("\ufeff") if offset == 0 else text
        offset += len(data) - len(rest)
    if rest:
        raise FormatError(f"{path}: invalid UTF-8 at byte {offset}: the file ends within a character")


def _blocks(path: Path) -> Iterator[bytes]:
    require_regular(path)
    try:
        with path.open("rb") as f:
            while block := f.read(_CHUNK_BYTES):
                yield block
    except OSError as e:
        raise InputError(f"{path}: {reason(e)}") from e


def _lines(path: Path) -> Iterator[bytes]:
    """Lines without their ends, from blocks: a file of one endless line is not read at once."""
    rest: list[bytes] = []
    for block in chain(_blocks(path), [b"\n"]):
        first, *more = block.split(b"\n")
        rest.append(first)
        for line in more:
            yield b"".join(rest)
            rest = [line]


def _documents(path: Path, tokenizer: Tokenizer, answers: bool) -> Iterator[Conversation]:
    for number, line in enumerate(_lines(path), 1):
        line = line.removeprefix(_BOM) if number == 1 else line
        if line.strip():
            yield _document(line, f"{path}:{number}", tokenizer, answers)


def _document(line: bytes, where: str, tokenizer: Tokenizer, answers: bool) -> Conversation:
    record = _record(line, where)
    if "text" in record:
        text = record["text"]
        if not isinstance(text, str):
            raise FormatError(f"{where}: text is {type(text).__name__}, expected a string")
        document = Conversation(text, ())
    elif "messages" in record or "conversations" in record:
        messages = _messages(record, where)
        if answers:
            document = tokenizer.render_answers(messages, where)
        else:
            document = Conversation(tokenizer.render_chat(messages, where), ())
    else:
        raise FormatError(f"{where}: an object without text, messages or conversations")
    if not document.text.isascii():
        try:
            document.text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise FormatError(f"{where}: holds half of a surrogate pair") from e
    return document


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise FormatError(f"{where}: invalid UTF-8 at byte {e.start} of the line") from e
    except json.JSONDecodeError as e:
        raise FormatError(f"{where}: not JSON: {e.msg} at column {e.colno}") from e
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{where}: not JSON that can be read: {e}") from e
    if not isinstance(record, dict):
        raise FormatError(f"{where}: a JSON {type(record).__name__}, expected an object")
    return record


def _messages(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The messages of a conversation, those of ShareGPT renamed."""
    key = "messages" if "messages" in record else "conversations"
    messages = record[key]
    if not isinstance(messages, list) or not messages:
        raise FormatError(f"{where}: {key} is not a list with at least one message")
    if key == "conversations":
        messages = [_from_sharegpt(message, f"{where}: message {i}") for i, message in enumerate(messages)]
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise FormatError(f"{where}: message {i} is not an object with a role")
    return messages


def _from_sharegpt(message: Any, where: str) -> Any:
    if not isinstance(message, dict) or "from" not in message:
        return message
    speaker = message["from"]
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        raise FormatError(f"{where} is from {speaker!r:.80}, expected one of {', '.join(_SHAREGPT_ROLES)}")
    return {"role": _SHAREGPT_ROLES[speaker], "content": message.get("value")}
