"""Outputs of models as llama.cpp's tests publish them: a reader of the C++ of tests/test-chat.cpp.

A case is a chain of calls: `tst.test(TEXT).tools({...}).expect(MESSAGE).run()`. Names that the file defines
(tools, messages, functions that make messages) are looked up where a case uses them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*)
    | R"(?P<delim>[^(\s]*)\((?P<raw>.*?)\)(?P=delim)"
    | "(?P<string>(?:[^"\\\n]|\\.)*)"
    | '(?:[^'\\]|\\.)+'
    | (?P<name>[A-Za-z_][\w:]*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
PAIRS = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True)
class Text:
    value: str


Token = Text | str
"""A string, or the text of anything else."""


@dataclass(frozen=True)
class Message:
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Name, arguments and id, which is "" where it may be any."""


@dataclass(frozen=True)
class Output:
    """One published case. options: what the chain's other methods were given, by their names."""

    template: str
    number: int
    text: str
    tools: list[dict[str, Any]]
    expected: Message
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        return f"{self.template}-{self.number}"


def published_outputs(file: Path) -> list[Output]:
    """The cases of which the template is said beside them, and those of functions that are given one."""
    return _Reader(_tokens(file.read_text(encoding="utf-8"))).outputs()


def _tokens(source: str) -> list[Token]:
    found: list[Token] = []
    for match in TOKEN.finditer(source):
        if match["raw"] is not None:
            found.append(Text(match["raw"]))
        elif match["string"] is not None:
            found.append(Text(_unescaped(match["string"])))
        elif match["skip"] is None:
            found.append(match[0])
    return found


def _unescaped(text: str) -> str:
    made = ast.literal_eval("b'''" + re.sub(r"[^\x00-\x7f]|'", _as_bytes, text) + "'''")
    return made.decode("utf-8")


def _as_bytes(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode())


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._defined = dict(self._definitions(tokens))

    def outputs(self) -> list[Output]:
        found: list[Output] = []
        counts: dict[str, int] = {}
        for templates, at in self._cases():
            text, at = self._expression(at)
            chain = dict(self._chain(at))
            for template in templates:
                number = counts.get(template, 0)
                counts[template] = number + 1
                found.append(_output(template, number, text, dict(chain)))
        return found

    def _definitions(self, tokens: list[Token]) -> Iterator[tuple[str, int]]:
        """Names and the places behind them, of tools and of messages."""
        for at, token in enumerate(tokens[:-2]):
            if token in ("common_chat_tool", "common_chat_msg", "auto", "std::string", "char"):
                name, after = tokens[at + 1], tokens[at + 2]
                if token == "char" and name == "*":
                    name, after = tokens[at + 2], tokens[at + 3]
                if isinstance(name, str) and after in ("=", "{"):
                    yield name, tokens.index(after, at) + (1 if after == "=" else 0)

    def _cases(self) -> Iterator[tuple[list[str], int]]:
        """The templates of each case, and the place of its text."""
        templates: list[str] = []
        listed: list[str] = []
        pending: dict[str, list[int]] = {}
        function = ""
        for at, token in enumerate(self._tokens):
            after = self._tokens[at + 1 : at + 3]
            if token == "for":
                listed = self._strings_until_body(at)
            elif token == "void" and after[1:] == ["("]:
                function = str(after[0])
            elif token == "peg_tester" and after[:1] == ["("]:
                said = after[1]
                templates = [_stem(said.value)] if isinstance(said, Text) else list(map(_stem, listed))
                if said == "template_path":
                    templates = []
            elif token == "test" and self._tokens[at - 1] == "." and after[:1] == ["("]:
                if templates:
                    yield templates, at + 2
                else:
                    pending.setdefault(function, []).append(at + 2)
            elif isinstance(token, str) and token in pending and after[:1] == ["("]:
                for place in pending[token]:
                    yield list(map(_stem, listed)), place

    def _strings_until_body(self, at: int) -> list[str]:
        found: list[str] = []
        end = self._closing(at + 1)
        found += [token.value for token in self._tokens[at:end] if isinstance(token, Text)]
        return found

    def _closing(self, at: int) -> int:
        depth = 0
        while True:
            token = self._tokens[at]
            depth += token in PAIRS
            depth -= token in PAIRS.values()
            if depth == 0:
                return at
            at += 1

    def _chain(self, at: int) -> Iterator[tuple[str, Any]]:
        """The methods behind a case's text, and what each was given."""
        assert self._tokens[at] == ")"
        while self._tokens[at + 1] == ".":
            name = str(self._tokens[at + 2])
            values, at = self._list(at + 3, ")")
            yield name, values[0] if len(values) == 1 else values

    def _list(self, at: int, close: str) -> tuple[list[Any], int]:
        """The values between brackets, and the place of the closing one."""
        values: list[Any] = []
        at += 1
        while self._tokens[at] != close:
            value, at = self._expression(at)
            values.append(value)
            at += self._tokens[at] == ","
        return values, at

    def _expression(self, at: int) -> tuple[Any, int]:
        value, at = self._term(at)
        while self._tokens[at] == "+":
            more, at = self._term(at + 1)
            value += more
        return value, at

    def _term(self, at: int) -> tuple[Any, int]:
        token = self._tokens[at]
        if isinstance(token, Text):
            text = ""
            while isinstance(part := self._tokens[at], Text):
                text, at = text + part.value, at + 1
            return text, at
        if token == "{":
            values, end = self._list(at, "}")
            return values, end + 1
        if token == "std::string" or token == "(":
            values, end = self._list(at + (token != "("), ")")
            return values[0], end + 1
        if self._tokens[at + 1] == "(":
            values, end = self._list(at + 1, ")")
            return _called(token, values), end + 1
        return self._named(token), at + 1

    def _named(self, name: str) -> Any:
        words: Mapping[str, Any] = {"true": True, "false": False}
        if name in words or name not in self._defined:
            return words.get(name, name)
        return self._expression(self._defined[name])[0]


def _stem(path: str) -> str:
    return Path(path).name.removesuffix(".jinja")


def _called(name: str, values: list[Any]) -> Any:
    """Evaluate a call of one of the file's functions that make messages."""
    padded = [*values, "", "", "", "", ""]
    if name == "simple_assist_msg":
        content, reasoning, tool, arguments, call_id = padded[:5]
        return Message(content, reasoning, ((tool, arguments, call_id),) if tool or call_id else ())
    if name == "message_with_tool_calls":
        return Message(calls=((padded[0], padded[1], ""),))
    if name == "message_with_content_and_tool_call":
        return Message(padded[0], "", ((padded[1], padded[2], ""),))
    if name == "message_with_reasoning_and_tool_call":
        return Message("", padded[0], ((padded[1], padded[2], ""),))
    if name == "message_with_tool_calls_and_reasoning":
        return Message("", padded[2], ((padded[0], padded[1], ""),))
    if name == "message_with_reasoning_content_and_multiple_tool_calls":
        return Message(padded[1], padded[0], tuple((call[0], call[1], "") for call in padded[2]))
    return (name, *values)


def _output(template: str, number: int, text: str, chain: dict[str, Any]) -> Output:
    tools = [
        {"name": tool[0], "description": tool[1], "parameters": tool[2]} for tool in chain.pop("tools", ())
    ]
    said = chain.pop("expect", Message())
    calls = [tuple(str(part or "") for part in call) for call in chain.pop("expect_tool_calls", said.calls)]
    expected = Message(
        chain.pop("expect_content", said.content),
        chain.pop("expect_reasoning", said.reasoning),
        tuple((name, arguments, call_id) for name, arguments, call_id in calls),
    )
    return Output(template, number, text, tools, expected, chain)
