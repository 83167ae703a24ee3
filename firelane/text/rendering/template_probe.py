"""Facts about a chat template's tools, calls and reasoning: found once, when a model is loaded, by rendering
small conversations and reading what comes out."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from firelane.errors import RequestError
from firelane.text.rendering.tool_gaps import DESCRIPTION, GAPS, NOTES, PROPERTIES, without

Messages = list[dict[str, Any]]
Render = Callable[[Messages, dict[str, Any]], str]
"""The text of messages and variables. Raises RequestError where the template refuses them."""
QUESTION, RESULT, THOUGHT, ANSWER = "probequestion", "proberesult", "probethought", "probeanswer"
TOOL, KEY, VALUE = "probe_tool", "probe_key", "probevalue"
CUT = f'{{"{KEY}": "cut'
"""Arguments that are no JSON, as a limit leaves them."""
ARGUMENTS: dict[str, Any] = {KEY: VALUE, "probe_number": 7}
DEFINITION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {
                KEY: {"type": "string", "description": "Name of the thing."},
                "probe_number": {"type": "integer", "description": "How many."},
            },
            "required": [KEY, "probe_number"],
        },
    },
}
TOOL_VARIABLES = ("tools", "xml_tools", "functions")
"""Variables by which templates take a list of tools, the usual one first."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates are told whether the model is to reason; all mean the same."""
MODE, OFF = "thinking_mode", "disabled"
"""A variable that names a mode instead, and the mode without reasoning; its default lets the model choose."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message by which templates take earlier reasoning."""
_IDS = (("abcdefghi", "abcdefghj"), (f"functions.{TOOL}:0", f"functions.{TOOL}:1"))
"""Ids of two calls: nine letters suit templates that check them, the others those that show them as names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateFacts:
    """tools_variable: the variable that tools are shown from, "" where there is none. gaps: what a tool may
    not leave out. tools_in_system: tools are a text in the system message instead. told: a question with
    tools, as it is shown. calls: the assistant's message of `num_calls` calls of TOOL with ARGUMENTS, as it
    is shown; "" where calls are not shown. takes_objects: the arguments of calls may be objects; else they
    are JSON text. takes_texts: what is no object may be a text, and is shown as it is. blank: the content
    that a message of calls alone has to have. takes_results: results may be messages of role tool.
    takes_system: there may be a system message. fails: not even a question alone can be shown. takes_none:
    where no tools are given, the variable `tools` is None. parts: contents have to be lists of parts.
    prompts: texts that end where an answer begins. thought: a message with reasoning, as it is shown; ""
    where reasoning is not shown. hides: a closing mark of reasoning up to which the content of an earlier
    answer is not shown, "" where there is none.
    """

    tools_variable: str = ""
    gaps: frozenset[str] = frozenset()
    tools_in_system: bool = False
    told: str = ""
    calls: str = ""
    num_calls: int = 0
    takes_objects: bool = True
    takes_texts: bool = False
    blank: str | None = ""
    takes_results: bool = False
    takes_system: bool = False
    takes_none: bool = False
    fails: bool = False
    parts: bool = False
    prompts: tuple[str, ...] = ()
    thought: str = ""
    hides: str = ""

    @property
    def shows_tools(self) -> bool:
        return bool(self.tools_variable) or self.tools_in_system


NO_FACTS = TemplateFacts()
"""A model without a template."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """text: "" where calls are not shown. The rest: as in TemplateFacts."""

    text: str = ""
    count: int = 0
    objects: bool = True
    blank: str | None = ""


class TemplateProbe:
    """Trial renders of one template. variables: what it asks for."""

    def __init__(self, render: Render, variables: frozenset[str]) -> None:
        self._render = render
        self._switches = [name for name in SWITCHES if name in variables]
        self._parts, self._variables = self._way()

    def _way(self) -> tuple[bool, dict[str, Any]]:
        """The first way in which a question is shown: whether in parts, and the variables beside it."""
        for parts, variables in itertools.product((False, True), ({"tools": None}, {})):
            self._parts, self._variables = parts, variables
            if QUESTION in self.text([_user()]):
                return parts, variables
        return False, {}

    def facts(self, closings: tuple[str, ...]) -> TemplateFacts:
        """closings: marks that end reasoning, which are looked for."""
        variable = self._tools_variable()
        in_system = not variable and TOOL in self.text([_system(tools=TOOL), _user()])
        tools = {variable: [DEFINITION]} if variable else {}
        calls, prompts = self._calls(tools), tuple(self._prompts())
        return TemplateFacts(
            tools_variable=variable,
            gaps=self._gaps(variable) if variable else frozenset(),
            tools_in_system=in_system,
            told=self.text([_user()], **tools) if variable else "",
            calls=calls.text,
            num_calls=min(calls.count, calls.text.count(VALUE)),
            takes_objects=calls.objects,
            takes_texts=bool(calls.text) and CUT in self._called(_IDS[0][:1], CUT, calls.blank, tools),
            blank=calls.blank,
            takes_results=self._takes_results(tools),
            takes_none=bool(self._variables),
            fails=not any(prompts) and self._fails(),
            parts=self._parts,
            takes_system=ANSWER in self.text([_system(content=ANSWER), _user()]),
            prompts=prompts,
            thought=self._thought(tools),
            hides=self._hidden(closings),
        )

    def text(self, messages: Messages, **variables: Any) -> str:
        """ "" where the template refuses the messages or fails on them."""
        try:
            told = in_parts(messages) if self._parts else messages
            return self._render(told, {"add_generation_prompt": True, **self._variables, **variables})
        except RequestError:
            return ""

    def _tools_variable(self) -> str:
        found = (name for name in TOOL_VARIABLES if TOOL in self.text([_user()], **{name: [DEFINITION]}))
        return next(found, "")

    def _gaps(self, variable: str) -> frozenset[str]:
        """Each by itself only where a tool with two of them is not taken: without properties, nothing is
        known of what they may leave out.
        """
        bare = (reduce(without, (gap, DESCRIPTION), DEFINITION) for gap in (NOTES, PROPERTIES))
        if all(self._takes(variable, tool) for tool in bare):
            return frozenset()
        return frozenset(gap for gap in GAPS if not self._takes(variable, without(DEFINITION, gap)))

    def _takes(self, variable: str, tool: dict[str, Any]) -> bool:
        return TOOL in self.text([_user()], **{variable: [tool]})

    def _calls(self, tools: dict[str, Any]) -> _Calls:
        """The first way in which the template shows calls."""
        for blank, objects, count in itertools.product(("", None), (True, False), (2, 1)):
            arguments = ARGUMENTS if objects else json.dumps(ARGUMENTS)
            for ids in _IDS:
                text = self._called(ids[:count], arguments, blank, tools)
                # what Python writes of an object is no JSON: there, text is wanted
                if _names_each(text) and KEY in text and f"{{'{KEY}'" not in text:
                    return _Calls(text, count, objects, blank)
                if ids[0] not in text:
                    break
        return _Calls()

    def _called(self, ids: tuple[str, ...], arguments: Any, blank: str | None, tools: dict[str, Any]) -> str:
        return self._shown(_caller(ids, arguments, blank), [_result(one) for one in ids], tools)

    def _shown(self, message: dict[str, Any], results: Messages, tools: dict[str, Any]) -> str:
        """The text that the template shows between a question and a result."""
        text = self.text([_user(), message, *results], **tools)
        return text.rpartition(QUESTION)[2].partition(RESULT)[0] if QUESTION in text else ""

    def _takes_results(self, tools: dict[str, Any]) -> bool:
        said = {"role": "assistant", "content": ANSWER}
        return RESULT in self.text([_user(), said, _result(_IDS[0][0])], **tools)

    def _fails(self) -> bool:
        for variables in ({"tools": None}, {}):
            with contextlib.suppress(RequestError):
                self._render([_user()], {"add_generation_prompt": True, **variables})
                return False
        return True

    def _prompts(self) -> Iterator[str]:
        yield self.text([_user()])
        for told in (True, False) if self._switches else ():
            yield self.text([_user()], **dict.fromkeys(self._switches, told))

    def _thought(self, tools: dict[str, Any]) -> str:
        """A message of a call with reasoning, in the midst of work: templates show it there if anywhere."""
        switches = dict.fromkeys(self._switches, True)
        for names in (THOUGHT_FIELDS, THOUGHT_FIELDS[:1]):  # templates refuse two of them
            thought = dict.fromkeys(names, THOUGHT)
            call = _caller(_IDS[0][:1], ARGUMENTS) | thought
            for message in (call, {"role": "assistant", "content": ANSWER} | thought):
                results = [_result(_IDS[0][0])] if message is call else []
                text = self._shown(message, results, tools | switches)
                if THOUGHT in text:
                    return text
        return ""

    def _hidden(self, closings: tuple[str, ...]) -> str:
        """Each by itself only where one of them is."""
        if not self._hides("".join(closings)):
            return ""
        return next((mark for mark in closings if self._hides(mark)), "")

    def _hides(self, mark: str) -> bool:
        said = {"role": "assistant", "content": f"{THOUGHT}{mark}{ANSWER}"}
        text = self.text([_user(), said, _user()])
        return ANSWER in text and THOUGHT not in text


def in_parts(messages: Messages) -> Messages:
    """Messages whose contents are lists of one text each."""
    return [message | _parts(message["content"]) for message in messages]


def _parts(content: str | None) -> dict[str, Any]:
    return {} if content is None else {"content": [{"type": "text", "text": content}]}


def _names_each(text: str) -> bool:
    """Whether as many names of tools as calls are shown: results show one, too."""
    return text.count(TOOL) >= text.count(VALUE) > 0


def _user() -> dict[str, Any]:
    return {"role": "user", "content": QUESTION}


def _system(content: str = "", **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": content, **fields}


def _caller(ids: tuple[str, ...], arguments: Any, blank: str | None = "") -> dict[str, Any]:
    function = {"name": TOOL, "arguments": arguments}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    return {"role": "assistant", "content": blank, "tool_calls": calls}


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": RESULT, "tool_call_id": call_id, "name": TOOL}
