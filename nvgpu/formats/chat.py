"""Chat templates: messages to the text a model was trained on, by the rules of Hugging Face templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.files import one_line

Message = Mapping[str, Any]


class ChatTemplate:
    """A Jinja template, or ChatML where the model brings none (`fallback`)."""

    def __init__(self, source: str | None, where: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` (bos_token, eos_token, ...) are visible to the template.

        Raises:
            FormatError: the template is not valid Jinja.
        """
        self.fallback = source is None
        self._special_tokens = dict(special_tokens)
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
        if self._template is None:
            return "".join(_chatml(message, where) for message in messages)
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=False,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except Exception as e:  # a template runs code of its author: anything may come out
            raise InputError(f"{where}: the chat template refuses these messages: {one_line(e)}") from e


def _chatml(message: Message, where: str) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise InputError(
            f"{where}: message content is {type(content).__name__}, expected a string for ChatML"
        )
    return f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension]
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
