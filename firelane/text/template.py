"""Chat templates: Jinja source that comes with a model and is not trusted.

The sandbox forbids attributes that lead out of the template. Here every loop pass and call is also charged
to a budget, and the size of what an operator builds is bounded, so that no template can hold the process or
fill its memory. The environment offers what Hugging Face templates expect: trimmed blocks, `break` and
`continue`, `tojson` without HTML escapes, `raise_exception`, `strftime_now` and the `generation` block.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from firelane.errors import RequestError, TokenizerError

MAX_STEPS = 1_000_000
CALL_STEPS = 5
MAX_SIZE = 16 << 20
MAX_WIDTH = 1 << 20
_WIDE_FORMAT = re.compile(r"[%:{][^a-zA-Z{}%]*(\d{6,}|\*)")
_steps_left: ContextVar[int] = ContextVar("_steps_left", default=MAX_STEPS)


class _TooMuchError(Exception):
    """The template used up its budget."""


class _RaisedError(Exception):
    """The template called raise_exception: the messages do not suit it."""


def _charge(steps: int = 1) -> None:
    left = _steps_left.get() - steps
    if left < 0:
        raise _TooMuchError
    _steps_left.set(left)


def _metered(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _charge()
        yield item


def _sized(value: Any) -> Any:
    if isinstance(value, int):
        too_big = value.bit_length() > 64
    else:
        too_big = isinstance(value, Sized) and len(value) > MAX_SIZE
    if too_big:
        raise _TooMuchError
    return value


def _check_widths(values: Iterable[Any]) -> None:
    """No filter or text method is asked to make a text of enormous width."""
    if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
        raise _TooMuchError


def _check_format(value: Any) -> None:
    if isinstance(value, str) and _WIDE_FORMAT.search(value):
        raise _TooMuchError


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps the delimiters by which Jinja passes its context
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _charge()
        _check_widths([*args[1:], *kwargs.values()])
        return _sized(function(*args, **kwargs))

    return guarded


class _Meter(NodeTransformer):
    """Puts the meters into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_metered", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(node, "_sized", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """The block that delimiters the assistant's text for training: its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 the base class's name and type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _charge(CALL_STEPS)
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            _check_widths(args)
            _check_format(text)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and isinstance(left, Sized) != isinstance(right, Sized):
            items, times = (left, right) if isinstance(left, Sized) else (right, left)
            if isinstance(times, int) and len(items) * times > MAX_SIZE:
                raise _TooMuchError
        elif operator == "**" and (abs(left) > 2**16 or abs(right) > 64):
            raise _TooMuchError
        elif operator == "%":
            _check_format(left)
        return _sized(super().call_binop(context, operator, left, right))


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    _check_format(value)
    return value % (kwargs or args)


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


def _environment() -> _Sandbox:
    env = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    own: dict[str, Any] = {"tojson": _tojson, "_metered": _metered, "_sized": _sized, "format": _format}
    guarded = {name: _guarded(function) for name, function in env.filters.items()}
    env.filters.update({**guarded, **own})
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
            self._template = env.from_string(_Meter().visit(tree))
        except (jinja2.TemplateError, RecursionError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise TokenizerError(f"{where} is not a valid template: {text}; fetch it again") from error
        self._constants = constants

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt text. Raises RequestError when the template refuses the messages or fails on them."""
        token = _steps_left.set(MAX_STEPS)
        try:
            return "".join(self._pieces({**self._constants, **variables, "messages": messages}))
        except _RaisedError as error:
            raise RequestError(f"the chat template refuses the messages: {error}", param="messages") from None
        except (_TooMuchError, MemoryError, RecursionError, OverflowError):
            raise RequestError("the chat template does too much work on these messages") from None
        except Exception as error:  # a template is a program: anything may go wrong in it
            text = " ".join(str(error).split())[:200]
            raise RequestError(f"the chat template fails on these messages: {text}") from None
        finally:
            _steps_left.reset(token)

    def _pieces(self, variables: dict[str, Any]) -> Iterator[str]:
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > MAX_SIZE:
                raise _TooMuchError
            yield piece
