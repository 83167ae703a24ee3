"""The format in which one model writes: what it is told of tools, how its calls and its reasoning are read
and forced, and how earlier turns are shown to it. Found once, when the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firelane.text.chat.reasoning import ReasoningMarks
from firelane.text.chat.telling import Telling
from firelane.text.history import AS_SENT, HistoryShape, arranged, joined
from firelane.text.rendering.template_probe import Messages, in_parts
from firelane.text.tools.family import Family

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChatFormat:
    """name: of --tool-parser, "none" where calls are not to be read, UNKNOWN where nobody knows how this
    model writes calls. family: writes, reads and forces calls; None where calls are not read. reader: reads
    every answer, those without calls, too. marks: around reasoning, None where it has none, or
    `reader` reads it. telling: how
    tools and earlier calls are shown. shape: where the template takes earlier turns. reasons: how this was
    found, one sentence each.
    """

    name: str
    telling: Telling
    family: Family | None = None
    reader: Family | None = None
    marks: ReasoningMarks | None = None
    shape: HistoryShape = AS_SENT
    reasons: tuple[str, ...] = ()

    @property
    def thinks(self) -> bool:
        """Whether reasoning is told from content."""
        return self.marks is not None or (self.reader is not None and self.reader.reads_reasoning)

    @property
    def stops(self) -> tuple[str, ...]:
        """Special tokens that end an answer."""
        shaper = self.reader or self.family
        return shaper.stops if shaper else ()

    @property
    def abilities(self) -> list[str]:
        """Capabilities beside answering: "tools", "thinking"."""
        tools = self.family is not None and self.telling.facts.shows_tools
        return [*(["tools"] if tools else []), *(["thinking"] if self.thinks else [])]

    def history(self, messages: Messages, tools: list[dict[str, Any]]) -> tuple[Messages, dict[str, Any]]:
        """Messages and variables for the template, tools among them."""
        shaper = self.reader or self.family
        messages = arranged(messages, self.shape)
        told, variables = self.telling.told(shaper.history(messages) if shaper else messages, tools)
        told = joined(told, self.shape)
        return (in_parts(told) if self.telling.facts.parts else told), variables

    @property
    def line(self) -> str:
        """One line that names the format for whoever starts the server."""
        facts = self.telling.facts
        words = [] if self.family is None else ["tools" if facts.shows_tools else "tools told in a message"]
        words += ["reasoning"] if self.thinks else []
        text = f"{self.name} ({', '.join(words)})" if words else self.name
        if self.name != UNKNOWN:
            return text
        return f"{text}: calls of tools will not be read; name their format with --tool-parser"
