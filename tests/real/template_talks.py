"""Conversations whose every text is a mark, in the words of each API, and as transformers takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from firelane.api.chat import ChatRequest
from firelane.api.stored.responses import ResponsesRequest
from firelane.gateway.apis.messages import chat as messages_chat
from firelane.gateway.apis.messages.types import MessagesRequest
from firelane.gateway.apis.ollama import chat as ollama_chat
from firelane.gateway.apis.ollama.types import OllamaChatRequest
from firelane.gateway.apis.responses import chat as responses_chat
from firelane.gateway.conversations.turn import ConversationStores, begin_turn
from firelane.gateway.tenants.tenant import ANONYMOUS_ADMIN

Body = dict[str, Any]
SCHEMA: Body = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "A file."}, "lines": {"type": "integer"}},
    "required": ["path"],
}
FUNCTION: Body = {"name": "read_file", "description": "Read a file.", "parameters": SCHEMA}
TOOLS: list[Body] = [{"type": "function", "function": FUNCTION}]
CUT = '{"path": "%s", "li'
"""Arguments that a limit has cut."""


@dataclass(frozen=True)
class Turn:
    """calls: arguments, as JSON text, and result of each. image: before the text."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    image: bool = False


def called(text: str, *marks: str, form: str = '{"path": "%s"}') -> Turn:
    return Turn("assistant", text, tuple((form % f"{mark}args", f"{mark}result") for mark in marks))


SHAPES: dict[str, list[Turn]] = {
    "systems": [
        Turn("system", "markone"),
        Turn("system", "marktwo"),
        Turn("user", "markthree"),
        Turn("assistant", "markfour"),
        Turn("system", "markfive"),
        Turn("user", "marksix"),
    ],
    "an agent's turn": [
        Turn("system", "markone"),
        Turn("user", "marktwo"),
        called("markthree", "markfour", "markfive"),
        Turn("user", "marksix"),
        called("", "markseven"),
        Turn("assistant", "markeight"),
        Turn("user", "marknine"),
        called("", "markten", "markeleven"),
    ],
    "neighbours": [
        Turn("user", "markone"),
        Turn("user", "marktwo"),
        Turn("assistant", "markthree"),
        Turn("assistant", "markfour"),
        Turn("user", "markfive"),
        called("", "marksix"),
        Turn("system", "markseven"),
    ],
    "another server's": [
        Turn("user", "markone", image=True),
        called("marktwo", "markthree", form=CUT),
        called("", "markfour", form="no JSON but %s"),
        Turn("user", "markfive"),
    ],
}


def as_chat(turns: list[Turn]) -> ChatRequest:
    messages: list[Body] = []
    for i, turn in enumerate(turns):
        role = "developer" if turn.role == "system" and i else turn.role
        image: list[Body] = [{"type": "image_url", "image_url": {"url": "data:,"}}] if turn.image else []
        message: Body = {"role": role, "content": [*image, {"type": "text", "text": turn.text}]}
        calls = [(f"call_{i}_{j}_of_another", *call) for j, call in enumerate(turn.calls)]
        if calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": "read_file", "arguments": said}}
                for one, said, _ in calls
            ]
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": one, "content": result} for one, _, result in calls]
    request = msgspec.convert({"messages": messages, "tools": TOOLS}, ChatRequest)
    request.check()
    return request


def as_responses(turns: list[Turn]) -> ChatRequest:
    items: list[Body] = []
    instructions = turns[0].text if turns[0].role == "system" else None
    for i, turn in enumerate(turns[1:] if instructions else turns):
        kind = "output_text" if turn.role == "assistant" else "input_text"
        image: list[Body] = [{"type": "input_image", "image_url": "data:,"}] if turn.image else []
        content = [*image, {"type": kind, "text": turn.text}]
        if turn.text:
            role = "developer" if turn.role == "system" else turn.role
            items.append({"type": "message", "role": role, "content": content})
        calls = [(f"call_{i}_{j}_of_another", *call) for j, call in enumerate(turn.calls)]
        items += [
            {"type": "function_call", "call_id": one, "name": "read_file", "arguments": said}
            for one, said, _ in calls
        ]
        items += [
            {"type": "function_call_output", "call_id": one, "output": result} for one, _, result in calls
        ]
    tools = [{"type": "function", **FUNCTION}]
    body = {"input": items, "instructions": instructions, "tools": tools}
    request = msgspec.convert(body, ResponsesRequest)
    request.check()
    turn_of = begin_turn(request, ConversationStores.of(0), ANONYMOUS_ADMIN)
    return responses_chat.as_chat(request, turn_of.earlier, turn_of.own)


def as_messages(turns: list[Turn]) -> ChatRequest:
    """Results and what the user says then are one message, as this API has it."""
    messages: list[Body] = []
    results: list[Body] = []
    system = turns[0].text if turns[0].role == "system" else None
    for i, turn in enumerate(turns[1:] if system else turns):
        image: list[Body] = [{"type": "image", "source": {}}] if turn.image else []
        blocks: list[Body] = [*image, {"type": "text", "text": turn.text}] if turn.text else []
        if turn.role == "user":
            blocks, results = results + blocks, []
        elif results:
            messages.append({"role": "user", "content": results})
            results = []
        for j, (said, result) in enumerate(turn.calls):
            one = f"toolu_{i}_{j}_of_another"
            given: Any = json.loads(said) if said.endswith("}") else said
            blocks.append({"type": "tool_use", "id": one, "name": "read_file", "input": given})
            results.append({"type": "tool_result", "tool_use_id": one, "content": result})
        messages.append({"role": turn.role, "content": blocks})
    if results:
        messages.append({"role": "user", "content": results})
    tool = {"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA}
    body = {"messages": messages, "system": system, "tools": [tool], "max_tokens": 9}
    request = msgspec.convert(body, MessagesRequest)
    request.check()
    return messages_chat.as_chat(request)


def as_ollama(turns: list[Turn]) -> ChatRequest:
    messages: list[Body] = []
    for turn in turns:
        calls = [{"function": {"name": "read_file", "arguments": said}} for said, _ in turn.calls]
        message: Body = {"role": turn.role, "content": turn.text}
        messages.append(message | ({"tool_calls": calls} if calls else {}))
        if turn.image:
            messages[-1]["images"] = ["aGk="]
        messages += [
            {"role": "tool", "tool_name": "read_file", "content": result} for _, result in turn.calls
        ]
    body = {"model": "m", "messages": messages, "tools": TOOLS}
    request = msgspec.convert(body, OllamaChatRequest)
    request.check()
    return ollama_chat.as_chat(request)


APIS: dict[str, Callable[[list[Turn]], ChatRequest]] = {
    "chat": as_chat,
    "responses": as_responses,
    "messages": as_messages,
    "ollama": as_ollama,
}


def _call(*marks: str, text: str = "", **more: Any) -> Body:
    calls = [
        {
            "id": f"abcdefgh{i}",
            "type": "function",
            "function": {"name": "read_file", "arguments": {"path": mark, "lines": 3}},
        }
        for i, mark in enumerate(marks)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls, **more}


def _result(mark: str, index: int = 0) -> Body:
    return {"role": "tool", "tool_call_id": f"abcdefgh{index}", "content": mark}


SYSTEM: Body = {"role": "system", "content": "marksystem"}
LATE: Body = {"role": "system", "content": "marklate"}
ASK: Body = {"role": "user", "content": "markask"}
SAID: Body = {"role": "assistant", "content": "marksaid"}
NEXT: Body = {"role": "user", "content": "marknext"}
DONE = [ASK, _call("markpath"), _result("markresult")]
THOUGHT = {"reasoning_content": "a thought"}

TALKS: dict[str, tuple[list[Body], bool]] = {
    "a question": ([ASK], False),
    "a system's message": ([SYSTEM, ASK], False),
    "turns": ([ASK, SAID, NEXT], False),
    "turns of all": ([SYSTEM, ASK, SAID, NEXT], False),
    "an answer with reasoning": ([ASK, SAID | THOUGHT, NEXT], False),
    "tools": ([ASK], True),
    "tools and a system": ([SYSTEM, ASK], True),
    "turns with tools": ([SYSTEM, ASK, SAID, NEXT], True),
    "a call": (DONE, True),
    "a call and an answer": ([SYSTEM, *DONE, SAID, NEXT], True),
    "a call with text": ([ASK, _call("markpath", text="marktext"), _result("markresult")], True),
    "a call with reasoning": ([ASK, _call("markpath", **THOUGHT), _result("markresult")], True),
    "two calls": (
        [ASK, _call("markpath", "markother"), _result("markfirst"), _result("marksecond", 1)],
        True,
    ),
    "a user after a result": ([*DONE, NEXT], True),
    "two systems": ([SYSTEM, LATE, ASK], False),
    "a late system": ([SYSTEM, ASK, SAID, LATE, NEXT], False),
    "two users": ([ASK, NEXT], False),
}
"""Messages, and whether there are tools."""
NEEDS: dict[str, tuple[list[Body], bool]] = {
    "two assistants": ([ASK, SAID, {"role": "assistant", "content": "markmore"}, NEXT], False),
    "a late system beside tools": ([SYSTEM, ASK, SAID, LATE, NEXT], True),
}
"""Conversations that show what templates cannot take, beside those of TALKS."""
