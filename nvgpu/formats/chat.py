"""Chat templates: messages to the text a model was trained on, by the rules of Hugging Face templates, and its answers in it.

An answer is what the model says in a turn, the token that ends the turn included. Where a template marks answers with
`{% generation %}`, they are what it marks. Otherwise they begin behind the text that the template puts in front of every
answer and end with the first added token that it puts behind every one; both are read off an example conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.files import one_line

Message = Mapping[str, Any]
Span = tuple[int, int]

_ASSISTANT = "assistant"
_OPEN, _CLOSE = "\udc00", "\udc01"  # around marked answers; no text that can be encoded holds them
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_USERS, _ANSWERS = (
    ("nvgpu-first-question", "nvgpu-second-question"),
    ("nvgpu-first-answer", "nvgpu-second-answer"),
)


@dataclass(frozen=True)
class Conversation:
    """A rendered conversation and where its answers are: characters from and to, in order."""

    text: str
    answers: tuple[Span, ...]


class ChatTemplate:
    """A Jinja template, or ChatML where the model brings none (`fallback`)."""

    def __init__(
        self,
        source: str | None,
        where: str,
        special_tokens: Mapping[str, str],
        added_tokens: Sequence[str] = (),
    ) -> None:
        """`special_tokens` (bos_token, eos_token, ...) are visible to the template; one of `added_tokens` ends a turn.

        Raises:
            FormatError: the template is not valid Jinja.
        """
        self.where = where
        self.fallback = source is None
        self._marked = source is not None and _GENERATION.search(source) is not None
        self._special_tokens = dict(special_tokens)
        self._added_tokens = tuple(added_tokens)
        try:
            self._template = _environment().from_string(source) if source is not None else None
        except jinja2.TemplateSyntaxError as e:
            raise FormatError(f"{where}: chat template, line {e.lineno}: {one_line(e)}") from e
        except (RecursionError, ValueError, OverflowError) as e:
            raise FormatError(f"{where}: chat template cannot be read: {one_line(e)}") from e

    def render(self, messages: Sequence[Message], where: str) -> str:
        """The conversation as text, without a prompt for a further answer.

        Raises:
            InputError: messages that the template does not take; names `where`.
        """
        return self._render(messages, where)

    def answers(self, messages: Sequence[Message], where: str) -> Conversation:
        """The conversation as `render` gives it, with its answers.

        Raises:
            InputError: as `render`, and where the template does not tell answers from the rest; names `where`.
        """
        text = self.render(messages, where)
        if self._marked:
            return self._generated(messages, text, where)
        said = sum(message["role"] == _ASSISTANT for message in messages)
        spans = _between(text, *self._marks) if said else ()
        if len(spans) != said:
            raise InputError(
                f"{where}: {said} assistant messages, but the chat template's text shows {len(spans)} answers; a template with "
                "{% generation %} marks them itself"
            )
        return Conversation(text, spans)

    def _render(self, messages: Sequence[Message], where: str, prompt: bool = False, **more: str) -> str:
        """With `prompt` the template also begins a further answer."""
        if self._template is None:
            begun = f"<|im_start|>{_ASSISTANT}\n" if prompt else ""
            return "".join(_chatml(message, where) for message in messages) + begun
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
                **more,
            )
        except Exception as e:  # a template runs code of its author: anything may come out
            raise InputError(f"{where}: the chat template refuses these messages: {one_line(e)}") from e

    def _generated(self, messages: Sequence[Message], text: str, where: str) -> Conversation:
        """The answers that the template itself marks."""
        marked = self._render(messages, where, nvgpu_open=_OPEN, nvgpu_close=_CLOSE)
        plain, spans, begun = "", [], 0
        for piece in re.split(f"([{_OPEN}{_CLOSE}])", marked):
            if piece == _OPEN:
                begun = len(plain)
            elif piece == _CLOSE:
                spans.append((begun, len(plain)))
            else:
                plain += piece
        if plain != text:
            raise InputError(
                f"{where}: the chat template gives another text where its {{% generation %}} marks are looked at"
            )
        return Conversation(text, tuple(spans))

    @cached_property
    def _marks(self) -> tuple[str, str]:
        """What stands in front of every answer, and what ends it."""
        roles = ("user", _ASSISTANT)
        talk = [
            {"role": role, "content": content}
            for pair in zip(_USERS, _ANSWERS, strict=True)
            for role, content in zip(roles, pair, strict=True)
        ]
        text = self._render(talk, self.where)
        asked = talk[:1]
        bare, prompted = (_tail(self._render(asked, self.where, p), _USERS[0]) for p in (False, True))
        before = [
            _tail(text, user).partition(answer)[0] for user, answer in zip(_USERS, _ANSWERS, strict=True)
        ]
        after = [_tail(text, _ANSWERS[0]).partition(_USERS[1])[0], _tail(text, _ANSWERS[1])]
        # a header that the prompt shares; what ends the question is no part of it, unless nothing else is there
        header = _shared([*before, prompted])
        header = header.removeprefix(bare) or header
        end = _shared(after).lstrip()
        ends = [end.find(token) + len(token) for token in self._added_tokens if token in end]
        end = end[: min(ends)] if ends else end
        if not header.strip() or not end:
            raise InputError(
                f"{self.where}: the chat template does not show where an answer begins and ends; --loss-on answer needs "
                "one that does, or that marks answers with {% generation %}"
            )
        return header, end


def _tail(text: str, part: str) -> str:
    """What follows `part` in `text`; nothing where it is not there."""
    return text.partition(part)[2]


def _shared(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    first, last = min(texts), max(texts)
    count = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:count]


def _between(text: str, header: str, end: str) -> tuple[Span, ...]:
    """The stretches behind each `header` up to and including the next `end`."""
    spans, at = [], text.find(header)
    while at >= 0:
        first = at + len(header)
        stop = text.find(end, first)
        last = stop + len(end) if stop >= 0 else len(text)
        if last > first:
            spans.append((first, last))
        at = text.find(header, last)
    return tuple(spans)


def _chatml(message: Message, where: str) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise InputError(
            f"{where}: message content is {type(content).__name__}, expected a string for ChatML"
        )
    return f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}`: what stands inside is an answer."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.Name(name, "load")]) for name in ("nvgpu_open", "nvgpu_close")]
        return nodes.Scope([marks[0], *body, marks[1]], lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face renders it; Jinja's own filter would escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
