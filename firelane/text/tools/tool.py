"""The tools of a request, whichever API named them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from firelane.text.tools.argument_schema import argument_schema
from firelane.text.tools.parameters import refused

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments, None where it has
    none.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    def definition(self) -> dict[str, Any]:
        """The definition that chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = NO_PARAMETERS if self.parameters is None else self.parameters
        return {"type": "function", "function": function}

    def schema(self) -> dict[str, Any]:
        """The schema that the arguments of a call hold to, which are an object. Raises RequestError where
        `parameters` allow none.
        """
        schema = NO_PARAMETERS if self.parameters is None else argument_schema(self.parameters)
        if schema is None:
            raise refused(
                f"the parameters of '{self.name[:64]}' allow no object, which the arguments of a call are: "
                'give a schema of `"type": "object"`'
            )
        return schema


@dataclass(frozen=True, slots=True)
class ToolUse:
    """mode: "required" means that the answer is one call or more; `name`, that it is one of this tool."""

    tools: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True

    @property
    def active(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.tools) and self.mode != "none"

    @property
    def forced(self) -> list[Tool]:
        """The tools of which one must be called; none where the model is free."""
        if self.mode != "required":
            return []
        return [tool for tool in self.tools if self.name in (None, tool.name)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


NO_TOOLS = ToolUse()
"""A request without tools."""
