"""The shape in which a template takes earlier turns, found once, when a model is loaded: small conversations
are rendered, each text of which is a mark of its own, until every mark is in the prompt.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from firelane.text.history import AS_SENT, THOUGHT, HistoryShape, Message, Messages
from firelane.text.rendering.template_probe import DEFINITION, KEY, THOUGHT_FIELDS, TOOL

Write = Callable[[Messages, list[Message], HistoryShape], str]
"""The prompt of messages and tools in a shape; "" where the template refuses them."""
_Talk = tuple[Messages, list[Message]]
"""Messages, and the tools that go with them."""
SHORT_IDS = ("abcdefghi", "abcdefghj")
FEW_CHARS = ("c1", "c2")
LONG_IDS = ("call_0123456789abcdef", "call_fedcba9876543210")
_MARK = re.compile(r"mark[a-z]+")
_CALL_OPTIONS = ("named", "results_end", "one_call", "content_apart", "filled")


_CHANGES = {
    "leads": "a system message is shown as a user's text",
    "late": "system messages after the first turn are shown as a user's text in their place",
    "asked_last": "a system message is a user's text where no user speaks last",
    "alternates": "neighbours of one role are one message",
    "one_call": "several calls of one message are several messages",
    "content_apart": "text beside calls is a message of its own",
    "filled": "an empty message of the user stands between the two",
    "results_end": "what a user says after results stands behind the last one",
    "named": "results name their function",
    "short_ids": "ids of calls are nine letters or digits",
    "named_ids": "ids of calls name their function",
    "thought": "reasoning has a field of another name",
}


def changes(shape: HistoryShape) -> list[str]:
    """Sentences that say how a history differs from what a client sends."""
    return [
        f"history: {said}"
        for name, said in _CHANGES.items()
        if getattr(shape, name) != getattr(AS_SENT, name)
    ]


def find_shape(write: Write) -> HistoryShape:
    """The shape nearest to a conversation as it is that loses nothing."""
    shapes = [
        replace(AS_SENT, leads=leads, alternates=alternates)
        for leads in (True, False)
        for alternates in (False, True)
    ]
    shape = _best(write, shapes, _talks([_system("marklead"), _user("markasked")], *_neighbours()))
    late = [
        shape,
        replace(shape, late=False),
        replace(shape, late=False, alternates=True),
    ]
    systems = _late_systems(leads=shape.leads)
    shape = _best(write, late, [*_talks(*systems), *((talk, [DEFINITION]) for talk in systems)])
    talk = _called(SHORT_IDS)
    talks = _talks(talk, [*talk, _assistant("marklast"), _user("markend")])
    shape = _best(write, _for_calls(shape), talks)
    if shape.leads:
        ended = _talks([_system("marklead"), *talk[:-1]], [_system("marklead"), *talk])
        shape = _best(write, [shape, replace(shape, asked_last=True)], ended)
    ids = _talks(_called(LONG_IDS), _called(FEW_CHARS))
    shape = _best(write, [shape, replace(shape, short_ids=True)], ids)
    named = _talks(_called(LONG_IDS, name="markname"))
    shape = _best(write, [shape, replace(shape, named_ids=True)], named)
    thought = [talk[0], _called(SHORT_IDS)[1] | {THOUGHT: "markthought"}, *talk[2:-1]]
    return _best(write, [replace(shape, thought=field) for field in THOUGHT_FIELDS], _talks(thought))


def _for_calls(shape: HistoryShape) -> Iterable[HistoryShape]:
    """The fewest changes first."""
    chosen = itertools.product((False, True), repeat=len(_CALL_OPTIONS))
    for values in sorted(chosen, key=sum):
        made = replace(shape, **dict(zip(_CALL_OPTIONS, values, strict=True)))
        if made.content_apart or not made.filled:
            yield made


def _best(write: Write, shapes: Iterable[HistoryShape], talks: list[_Talk]) -> HistoryShape:
    """The first shape in which all marks are shown, else the first of those that show most."""
    marks = [set(_MARK.findall(json.dumps(talk))) for talk, _ in talks]
    wanted = sum(map(len, marks))
    found: list[tuple[int, HistoryShape]] = []
    for shape in shapes:
        shown = sum(
            len(some.intersection(_MARK.findall(write(talk, tools, shape))))
            for (talk, tools), some in zip(talks, marks, strict=True)
        )
        if shown == wanted:
            return shape
        found.append((shown, shape))
    return max(found, key=lambda one: one[0])[1]


def _talks(*talks: Messages) -> list[_Talk]:
    """With a tool where one is called."""
    return [
        (talk, [DEFINITION] if any(message.get("tool_calls") for message in talk) else []) for talk in talks
    ]


def _neighbours() -> list[Messages]:
    return [
        [_user("markasked"), _user("marknext")],
        [_user("markasked"), _assistant("marksaid"), _assistant("markmore"), _user("marknext")],
    ]


def _late_systems(*, leads: bool) -> list[Messages]:
    talk = [_user("markasked"), _assistant("marksaid"), _system("marklate"), _user("marknext")]
    ends = [_user("markasked"), _assistant("marksaid"), _user("marknext"), _system("marklate")]
    return [talk, ends, *([[_system("marklead"), *talk]] if leads else [])]


def _called(ids: tuple[str, str], name: str = TOOL) -> Messages:
    """A message of two calls with a text, their results, and what the user says then."""
    calls: list[Message] = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": {KEY: mark}}}
        for one, mark in zip(ids, ("markone", "marktwo"), strict=True)
    ]
    results: Messages = [
        {"role": "tool", "content": mark, "tool_call_id": one}
        for one, mark in zip(ids, ("markfirst", "marksecond"), strict=True)
    ]
    called = _assistant("marksaid") | {"tool_calls": calls}
    return [_user("markasked"), called, *results, _user("marknext")]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
