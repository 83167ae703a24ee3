"""Rendering of a Helm chart, as far as ours goes: if, else, range, with, define, include, a few functions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}(\s*)", re.DOTALL)
Node = str | tuple[str, str, list["Node"], list["Node"]]


class Chart:
    """root: a directory with Chart.yaml, values.yaml and templates."""

    def __init__(self, root: Path) -> None:
        about = yaml.safe_load((root / "Chart.yaml").read_text())
        self.values = yaml.safe_load((root / "values.yaml").read_text())
        self.sources = {path.name: path.read_text() for path in sorted((root / "templates").iterdir())}
        self._about = {"Name": about["name"], "AppVersion": about["appVersion"]}
        self._defined: dict[str, list[Node]] = {}
        for source in self.sources.values():
            for node in _parse(source):
                if not isinstance(node, str) and node[0] == "define":
                    self._defined[shlex.split(node[1])[0]] = node[2]

    def render(self, **values: Any) -> dict[str, Any]:
        """Manifests by kind."""
        scope = {
            "Values": {**self.values, **values},
            "Chart": self._about,
            "Release": {"Name": "mine", "Service": "Helm"},
        }
        made = [
            yaml.safe_load(self._text(_parse(source), scope, scope))
            for name, source in self.sources.items()
            if name.endswith(".yaml")
        ]
        return {manifest["kind"]: manifest for manifest in made}

    def _text(self, nodes: list[Node], dot: Any, scope: Any) -> str:
        return "".join(node if isinstance(node, str) else self._block(node, dot, scope) for node in nodes)

    def _block(self, node: Any, dot: Any, scope: Any) -> str:
        kind, expression, body, otherwise = node
        if kind == "define":
            return ""
        value = self._value(expression, dot, scope)
        if kind == "value":
            return str(value)
        if kind == "range":
            return "".join(self._text(body, item, scope) for item in value)
        return self._text(body if value else otherwise, value if kind == "with" and value else dot, scope)

    def _value(self, expression: str, dot: Any, scope: Any) -> Any:
        value: list[Any] = []
        for call in expression.split(" | "):
            words = shlex.split(call, posix=False)
            arguments = [self._term(word, dot, scope) for word in words]
            if len(words) == 1 and not value and words[0] not in FUNCTIONS:
                value = arguments
            elif words[0] == "include":
                value = [self._text(self._defined[arguments[1]], scope, scope).strip("\n")]
            else:
                value = [FUNCTIONS[words[0]](*arguments[1:], *value)]
        return value[0]

    def _term(self, word: str, dot: Any, scope: Any) -> Any:
        if word.startswith('"') or word.isdigit():
            return yaml.safe_load(word)
        if not word.startswith("."):
            return word
        found = dot if word == "." else scope
        for name in filter(None, word.split(".")):
            found = found[name]
        return found


def _dumped(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False).rstrip("\n")


FUNCTIONS: dict[str, Any] = {
    "quote": lambda value: f'"{value}"',
    "default": lambda fallback, value: value or fallback,
    "add": lambda *numbers: sum(numbers),
    "toYaml": _dumped,
    "nindent": lambda count, text: "\n" + "\n".join(" " * count + line for line in text.splitlines()),
}


def _parse(source: str) -> list[Node]:
    return _nodes(_tokens(source))[0]


def _tokens(source: str) -> Iterator[tuple[bool, str]]:
    """Texts, and actions (True), without the blanks that dashes take away."""
    at = 0
    for match in ACTION.finditer(source):
        before, left, action, right, after = match.groups()
        yield False, source[at : match.start()] + ("" if left else before)
        yield True, action
        at = match.end() if right else match.end() - len(after)
    yield False, source[at:]


def _nodes(tokens: Iterator[tuple[bool, str]]) -> tuple[list[Node], str]:
    """Up to `end` or `else`, which is the second value."""
    nodes: list[Node] = []
    for is_action, text in tokens:
        kind, _, expression = text.partition(" ")
        if not is_action:
            nodes.append(text)
        elif text in ("end", "else"):
            return nodes, text
        elif kind in ("if", "range", "with", "define"):
            body, last = _nodes(tokens)
            otherwise = _nodes(tokens)[0] if last == "else" else []
            nodes.append((kind, expression, body, otherwise))
        else:
            nodes.append(("value", text, [], []))
    return nodes, ""
