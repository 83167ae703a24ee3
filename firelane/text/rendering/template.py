"""Chat templates: Jinja source that comes with a model and is not trusted.

The sandbox forbids attributes that lead out of the template. What a template may take of time and memory is
bounded by the process that renders it (template_worker.py). The environment offers what Hugging Face
templates expect: trimmed blocks, `break` and `continue`, `tojson` without HTML escapes, `raise_exception`,
`strftime_now` and the `generation` block.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from firelane.errors import RequestError, TokenizerError
from firelane.text.template_limits import MAX_CHARS, TOO_MUCH_WORK


class _TooMuchError(Exception):
    """The template writes too long a text."""


class _RaisedError(Exception):
    """The template called raise_exception: the messages do not suit it."""


class _Generation(Extension):
    """The block that delimiters the assistant's text for training: its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 the base class's name and type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _RaisedError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    env.filters["tojson"] = _tojson
    del env.globals["lipsum"]
    functions: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    env.globals.update(functions)
    return env


class ChatTemplate:
    """A compiled template and the constants that it may use (`bos_token`, `eos_token` ...). variables: what
    it asks for beyond what it sets itself.
    """

    def __init__(self, source: str, constants: dict[str, str], where: str = "chat template") -> None:
        """Raises TokenizerError when `source` is not a template."""
        env = _environment()
        self.source = source
        try:
            tree = env.parse(source)
            self.variables = frozenset(find_undeclared_variables(tree))
            self._template = env.from_string(tree)
        except MemoryError:
            raise
        except Exception as error:  # the compiler of templates raises more than its own errors
            text = " ".join(str(error)[:2000].split())[:300] or type(error).__name__
            raise TokenizerError(f"{where} is not a valid template: {text}; fetch it again") from error
        self._constants = constants

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt text. Raises RequestError when the template refuses the messages or fails on them."""
        try:
            return "".join(self._pieces({**self._constants, **variables, "messages": messages}))
        except _RaisedError as error:
            raise RequestError(
                f"the chat template refuses the messages: {str(error)[:300]}", param="messages"
            ) from None
        except (_TooMuchError, RecursionError, OverflowError):
            raise RequestError(TOO_MUCH_WORK) from None
        except MemoryError:
            raise
        except Exception as error:  # a template is a program: anything may go wrong in it
            text = " ".join(str(error)[:2000].split())[:200]
            raise RequestError(f"the chat template fails on these messages: {text}") from None

    def _pieces(self, variables: dict[str, Any]) -> Iterator[str]:
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > MAX_CHARS:
                raise _TooMuchError
            yield piece
