"""Structural tags as a grammar in llguidance's Lark.

Free text is one lexeme. It ends, lazily, with the first trigger or end that is written, so that none can be
in it. Neighbours that are regular (texts and regular expressions) are one lexeme, too: two would not be told
apart where the first can go on with what the second begins with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from firelane.wire.structural_tags import Node, ends, is_unlimited

ANY = "(?s:.)"


def lark_of_tags(text: str) -> str:
    """The Lark grammar of a tree of structural tags. text: its JSON."""
    writer = _Writer()
    start = writer.whole(json.loads(text), [])
    return f"start: {start}\n{writer.text}"


def in_slashes(regex: str) -> str:
    """A regular expression as it stands between the slashes of Lark, on one line."""
    slashed = re.sub(r"\\.|/", lambda found: "\\/" if found[0] == "/" else found[0], regex, flags=re.DOTALL)
    return slashed.replace("\\\n", "\\n").replace("\n", "\\n")


class _Writer:
    """Rules by their number; the same rule is written once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join(f"{name}{body}\n" for body, name in self._names.items())

    def whole(self, node: Node, behind: list[str]) -> str:
        """Symbols of a node's text, and of one of the texts `behind` it, which end free text; none: the
        text of the answer ends, or what follows is told from it."""
        if _is_regular(node):
            return self._regular(node, behind)
        kind, last = node["type"], _either(behind)
        if kind == "any_text":
            return self._free(node["excludes"], behind)
        if kind == "json_schema":
            return f"{self._rule('%json ' + json.dumps(node['json_schema']))} {last}"
        if kind == "grammar":
            return f"{self._rule(_nested(node))} {last}"
        if kind == "sequence":
            return self._sequence(node["elements"], behind)
        if kind == "or":
            return f"({' | '.join(self.whole(part, behind) for part in node['elements'])})"
        if kind == "tag":
            return self._tag(node, node["begin"], behind)
        if kind == "triggered_tags":
            return self._triggered(node, behind)
        if kind == "tags_with_separator":
            return f"{self._separated(node)} {last}"
        return self._repeated(node, behind)

    def _regular(self, node: Node, behind: list[str]) -> str:
        """With what follows in the same lexeme. Where a regular expression is in it, the first text that
        matches ends it, else the longest."""
        if node["type"] == "const_string":
            return f"{json.dumps(node['value'])} {_either(behind)}"
        body = f"{_terminal(node)} {_either(behind)}"
        if not _has_regex(node) or not (behind or _ends_in_text(node)):
            return self._terminal(body)
        if behind and all(len(mark.encode()) > 1 for mark in behind):
            return self._rule(body, "[lazy]")
        whole = self._terminal(body)
        one = self._terminal(f"{whole} & /{ANY}/")  # it may be of one byte: see _until
        longer = self._terminal(f"{whole} & ~({one} /{ANY}*/)")
        return f"({one} | {self._rule(longer, '[lazy]')})"

    def _free(self, excluded: Sequence[str], behind: list[str], rivals: Sequence[str] = ()) -> str:
        if behind:
            return self._until(excluded, behind, [*behind, *rivals])
        return f"{self._terminal(self._without(excluded, f'{ANY}+'))}?"

    def _until(self, excluded: Sequence[str], marks: list[str], rivals: Sequence[str]) -> str:
        """Free text, and the first mark behind it. rivals: all marks that may end it here. One of a single
        byte is a lexeme that is not lazy where no text is before it: a lazy one of one byte, behind a lexeme
        that it ends, is lost in llguidance 1.9.1."""
        alone = [mark for mark in dict.fromkeys(rivals) if len(mark.encode()) == 1]
        if not alone:
            return self._rule(f"{self._without(excluded, f'{ANY}*')} {_either(marks)}", "[lazy]")
        text = self._without(excluded, f"[^{''.join(map(_literally, alone))}]{ANY}*")
        longer, single = [f"({text} {_either(marks)})"], [mark for mark in marks if mark in alone]
        longer += [json.dumps(mark) for mark in marks if mark not in alone]
        lazy = self._rule(self._terminal(" | ".join(longer)), "[lazy]")
        return f"({_either(single)} | {lazy})" if single else lazy

    def _without(self, excluded: Sequence[str], regex: str) -> str:
        """A symbol of the texts of a regular expression that have none of these in them."""
        if not excluded:
            return f"/{regex}/"
        found = "|".join(map(_literally, dict.fromkeys(excluded)))
        return self._terminal(f"/{regex}/ & ~/{ANY}*({found}){ANY}*/")

    def _sequence(self, parts: list[Node], behind: list[str]) -> str:
        made: list[str] = []
        while parts:
            size = next((i for i, part in enumerate(parts) if not _is_regular(part)), len(parts))
            part: Node = parts[0] if size < 2 else {"type": "sequence", "elements": parts[:size]}
            parts = parts[max(size, 1) :]
            if parts and is_unlimited(part):  # a text follows, and ends it
                made.append(self.whole(part, [parts[0]["value"]]))
                parts = parts[1:]
                if not parts:
                    made.append(_either(behind))
            else:
                made.append(self.whole(part, [] if parts else behind))
        return " ".join(made)

    def _tag(self, node: Node, begin: str, behind: list[str]) -> str:
        """With what is left of its beginning."""
        own = ends(node)
        head = json.dumps(begin) if begin else ""
        return f"{head} {self.whole(node['content'], own or behind)} {_either(behind) if own else ''}"

    def _triggered(self, node: Node, behind: list[str]) -> str:
        triggers, excluded = _shortest(node["triggers"]), node["excludes"]
        rest = self._free([*excluded, *([] if behind else triggers)], behind, triggers)
        rivals = [*triggers, *behind]
        opened = self._rule(" | ".join(self._opened(node, one, rivals) for one in triggers))
        if not node["at_least_one"]:
            return (
                f"({opened} {_either(behind)} | {rest})" if node["stop_after_first"] else f"{opened}* {rest}"
            )
        first = self._rule(" | ".join(self._tag(tag, tag["begin"], []) for tag in node["tags"]))
        return f"{first} {_either(behind)}" if node["stop_after_first"] else f"{first} {opened}* {rest}"

    def _opened(self, node: Node, trigger: str, rivals: list[str]) -> str:
        """Free text up to the trigger, and a tag that begins with it."""
        head = self._until(node["excludes"], [trigger], rivals)
        tags = [tag for tag in node["tags"] if tag["begin"].startswith(trigger)]
        return f"{head} ({' | '.join(self._tag(tag, tag['begin'][len(trigger) :], []) for tag in tags)})"

    def _separated(self, node: Node) -> str:
        one = self._rule(" | ".join(self._tag(tag, tag["begin"], []) for tag in node["tags"]))
        separator = json.dumps(node["separator"]) if node["separator"] else ""
        many = one if node["stop_after_first"] else f"{one} ({separator} {one})*"
        return many if node["at_least_one"] else f"({many})?"

    def _repeated(self, node: Node, behind: list[str]) -> str:
        kind, last = node["type"], _either(behind)
        if kind == "optional" and behind:
            return f"({self.whole(node['content'], behind)} | {last})"
        sign = {"optional": "?", "star": "*", "plus": "+"}[kind]
        return f"({self.whole(node['content'], [])}){sign} {last}"

    def _rule(self, body: str, options: str = "") -> str:
        return self._names.setdefault(f"{options}: {body}", f"part{len(self._names)}")

    def _terminal(self, body: str) -> str:
        return self._names.setdefault(f": {body}", f"PART{len(self._names)}")


def _either(texts: list[str]) -> str:
    quoted = [json.dumps(text) for text in texts]
    return quoted[0] if len(quoted) == 1 else f"({' | '.join(quoted)})" if quoted else ""


def _nested(node: Node) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = node["grammar"]
    return f"%lark {{\n{gbnf_to_lark(text) if node['syntax'] == 'gbnf' else text}\n}}"


def _shortest(triggers: list[str]) -> list[str]:
    """Without those that another one begins."""
    kept = dict.fromkeys(triggers)
    return [one for one in kept if not any(one != other and one.startswith(other) for other in kept)]


def _parts(node: Node) -> list[Node]:
    return node["elements"] if "elements" in node else [node["content"]]


def _is_regular(node: Node) -> bool:
    kind = node["type"]
    if kind in ("const_string", "regex"):
        return True
    return kind in ("sequence", "or", "optional", "star", "plus") and all(map(_is_regular, _parts(node)))


def _has_regex(node: Node) -> bool:
    """Whether a regular node has a regular expression in it."""
    return node["type"] == "regex" or (node["type"] != "const_string" and any(map(_has_regex, _parts(node))))


def _ends_in_text(node: Node) -> bool:
    """Whether a regular node ends in a text that is always the same."""
    kind = node["type"]
    return kind == "const_string" or (kind == "sequence" and _ends_in_text(node["elements"][-1]))


def _terminal(node: Node) -> str:
    """A regular node as a part of a lexeme."""
    kind = node["type"]
    if kind == "const_string":
        return json.dumps(node["value"])
    if kind == "regex":
        return f"/{in_slashes(node['pattern'])}/"
    inner = [_terminal(part) for part in _parts(node)]
    if kind == "sequence":
        return f"({' '.join(inner)})"
    if kind == "or":
        return f"({' | '.join(inner)})"
    return f"({inner[0]}){ {'optional': '?', 'star': '*', 'plus': '+'}[kind] }"


def _literally(text: str) -> str:
    """A text in a regular expression."""
    return "".join(f"\\x{{{ord(char):x}}}" for char in text)
