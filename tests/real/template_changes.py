"""Tells apart how a conversation's messages were changed for a template: each change has a reason, and
whatever no reason takes back has to be as it was.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from firelane.text.chat.chat_format import ModelChatFormat
from firelane.text.deltas import CallArguments, CallStart, Content
from firelane.text.tools.stream_buffer import OutputParser, StreamBuffer
from firelane.text.tools.tool import Tool
from tests.real.template_talks import FUNCTION, TOOLS

Atom = tuple[str, str]
"""A role and one text. The role is "system", "user", "assistant", "thought", "call" or "result"."""
ONE_SYSTEM = "leading system messages are one"
SYSTEM_ASKS = "a system's text is a user's"
JOINED = "neighbours of one role are one message"
ONE_CALL = "several calls are several messages"
APART = "text beside calls is a message of its own"
FILLED = "an empty message of the user stands between two of the assistant"
BEHIND = "what a user says after a result stands behind it"
IDS = "ids of calls are others"
WORDS = "calls are written as text"
ASKED_RESULT = "results are a user's text"
INSTRUCTED = "tools are told in a message"
OTHER_TOOLS = "tools are told in another variable or field"
GAPS = "what a tool leaves out is filled"
THOUGHT = "reasoning has another field"
FORGOTTEN = "reasoning before the last whole answer is left out"
AS_TEXT = "arguments are text"
BLANK = "content beside calls is null"
PARTS = "contents are lists of parts"
NAMED = "results name their function"
ON_THE_ROLE = "a call's function is named beside the role, its arguments are the text"
OBSERVED = "results have a role of their own"
_RESPONSE = re.compile(r"<tool_response>\n(.*)\n</tool_response>", re.DOTALL)
_KNOWN = {FUNCTION["name"]: Tool(FUNCTION["name"], None, FUNCTION["parameters"])}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


@dataclass
class Talk:
    """The atoms of messages, in their order; calls and results have orders of their own, too. ids: of calls,
    and of the results beside them. reasons: what was taken back on the way."""

    atoms: list[Atom] = field(default_factory=list[Atom])
    ids: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    shapes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    reasons: set[str] = field(default_factory=set[str])


def reasons_of(
    form: ModelChatFormat, messages: list[Any], tools: list[Any], told: list[Any], variables: dict[str, Any]
) -> set[str]:
    """Why messages and tools were told so. Fails where a change is none of these."""
    before, after = _talk(messages, None), _talk(told, form)
    reasons = after.reasons
    if INSTRUCTED in reasons:
        assert tools
    if before.shapes != after.shapes:
        reasons |= _regrouped(before, after)
    if [a for a in before.atoms if a[0] in ("call", "result")] != [
        a for a in after.atoms if a[0] in ("call", "result")
    ]:
        reasons.add(ONE_CALL)
    for kind in ("call", "result"):
        assert _only(before, kind) == _only(after, kind)
    if _only(before, "thought") != _only(after, "thought"):
        assert not _only(after, "thought")
        reasons.add(FORGOTTEN)
    reasons |= _moved(_spoken(before), _spoken(after))
    if not reasons & {WORDS, ON_THE_ROLE} and before.ids != after.ids:  # these bind a result by its place
        assert _same_bonds(before.ids, after.ids)
        reasons.add(IDS)
    return reasons | _told_tools(tools, variables, told, reasons)


def _only(talk: Talk, kind: str) -> list[str]:
    return [text for who, text in talk.atoms if who == kind]


def _spoken(talk: Talk) -> list[Atom]:
    return [atom for atom in talk.atoms if atom[0] in ("system", "user", "assistant")]


def _moved(before: list[Atom], after: list[Atom]) -> set[str]:
    """The texts are the same in the same order; a system's may have become a user's, and no other's."""
    assert [text for _, text in before] == [text for _, text in after]
    changed = {(old, new) for (old, _), (new, _) in zip(before, after, strict=True) if old != new}
    assert changed <= {("system", "user")}
    return {SYSTEM_ASKS} if changed else set()


def _regrouped(before: Talk, after: Talk) -> set[str]:
    """Messages were joined or parted: which roles have fewer or more of them."""
    reasons: set[str] = set()
    counts = [{role: [n for r, n in t.shapes if r == role] for role in _ROLES} for t in (before, after)]
    old, new = counts
    if (
        len(new["system"]) < len(old["system"])
        and SYSTEM_ASKS not in reasons
        and max(new["system"], default=0) > 1
    ):
        reasons.add(ONE_SYSTEM)
    if any(max(new[role], default=0) > max(1, *old[role], 1) for role in ("user", "assistant")):
        reasons.add(JOINED)
    if len(new["assistant"]) > len(old["assistant"]):
        reasons.add(APART)
    return reasons


_ROLES = ("system", "user", "assistant", "tool")


def _same_bonds(before: list[tuple[Any, Any]], after: list[tuple[Any, Any]]) -> bool:
    """Results belong to the calls to which they belonged."""
    old = {one: {text for i, text in before if i == one} for one, _ in before}
    new = {one: {text for i, text in after if i == one} for one, _ in after}
    return sorted(map(sorted, old.values())) == sorted(map(sorted, new.values()))


def _told_tools(tools: list[Any], variables: dict[str, Any], told: list[Any], reasons: set[str]) -> set[str]:
    given = {name: value for name, value in variables.items() if value is not None}
    if not tools:
        assert not given
        return set()
    if INSTRUCTED in reasons:
        assert not given
        return set()
    if not given:
        assert json.loads(next(m["tools"] for m in told if m["role"] == "system")) == [FUNCTION]
        return {OTHER_TOOLS}
    ((name, value),) = given.items()
    if value != TOOLS:
        assert _without_blanks(value) == TOOLS
    return ({OTHER_TOOLS} if name != "tools" else set()) | ({GAPS} if value != TOOLS else set())


def _without_blanks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_blanks(v) for k, v in value.items() if v not in ("", {}) or k != "description"}
    return [_without_blanks(one) for one in value] if isinstance(value, list) else value


def _talk(messages: list[Any], form: ModelChatFormat | None) -> Talk:
    """form: takes changes back; None for what a client has sent."""
    talk = Talk()
    for message in messages:
        _add(talk, message, form)
    return talk


def _add(talk: Talk, message: dict[str, Any], form: ModelChatFormat | None) -> None:
    role, content = message["role"], message["content"]
    if form is not None and role == "observation":
        talk.reasons.add(OBSERVED)
        role = "tool"
    if isinstance(content, list):
        (part,) = content
        content = part["text"]
        talk.reasons.add(PARTS)
    thought = next((name for name in _THOUGHTS if name in message), None)
    if thought is not None:
        talk.atoms.append(("thought", message[thought]))
        talk.reasons |= {THOUGHT} if thought != _THOUGHTS[0] else set()
    if content is None:
        talk.reasons.add(BLANK)
    calls: list[tuple[Any, str, Any]] = [
        (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]
    if form is not None and "metadata" in message:
        talk.reasons.add(ON_THE_ROLE)
        calls, content = [(None, message["metadata"], content)], ""
    texts = (content or "").split("\n\n") if content or role == "user" else []
    if form is not None and role == "assistant" and not calls:
        content, calls = _read(form, content or "")
        talk.reasons |= {WORDS} if calls else set()
        texts = content.strip().split("\n\n") if content.strip() else []
    count = 0
    for place, text in enumerate(texts):
        count += _add_text(talk, role, text, place, form, message)
    for call_id, name, arguments in calls:
        if isinstance(arguments, str):
            talk.reasons |= set() if call_id is None else {AS_TEXT}
            arguments = json.loads(arguments)
        talk.atoms.append(("call", json.dumps([name, arguments])))
        talk.ids.append((call_id, json.dumps(arguments)))
    talk.shapes.append((role, count))


def _add_text(
    talk: Talk, role: str, text: str, place: int, form: ModelChatFormat | None, message: dict[str, Any]
) -> int:
    """Add a text to the talk; return how many texts of the client's it is: one or none."""
    if form is not None and text.startswith("You may call these functions"):
        assert json.dumps(FUNCTION) in text
        talk.reasons.add(INSTRUCTED)
        return 0
    if form is not None and role == "user" and (found := _RESPONSE.fullmatch(text)):
        talk.atoms.append(("result", found[1]))
        talk.reasons.add(ASKED_RESULT)
        return 1
    if form is not None and role == "user" and not text:
        talk.reasons.add(FILLED)
        return 0
    if role == "tool" and place == 0:
        talk.atoms.append(("result", text))
        talk.ids.append((message.get("tool_call_id"), text))
        talk.reasons |= {NAMED} if "name" in message else set()
        return 1
    if role == "tool":
        talk.reasons.add(BEHIND)
        role = "user"
    talk.atoms.append((role, text))
    return 1


def _read(form: ModelChatFormat, text: str) -> tuple[str, list[tuple[None, str, str]]]:
    """Content and calls of a text, as the model's own parser reads it; as JSON where it has none."""
    if form.family is None:
        lines = [line for line in text.split("\n") if line.startswith('{"name"')]
        made = [json.loads(line) for line in lines]
        rest = "\n".join(line for line in text.split("\n") if line not in lines)
        return rest, [(None, one["name"], json.dumps(one["arguments"])) for one in made]
    splitter = OutputParser(StreamBuffer(tools=_KNOWN), form.family.parse)
    content, calls = "", list[tuple[None, str, str]]()
    for delta in (*splitter.push(text), *splitter.flush()):
        if isinstance(delta, Content):
            content += delta.text
        elif isinstance(delta, CallStart):
            calls.append((None, delta.name, ""))
        elif isinstance(delta, CallArguments):
            calls[-1] = (None, calls[-1][1], calls[-1][2] + delta.text)
    return content, calls
