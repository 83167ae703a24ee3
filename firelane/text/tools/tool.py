"""A tool of a request, whichever API named it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firelane.text.tools.argument_schema import argument_schema
from firelane.text.tools.parameters import refused

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of a custom tool, whose input is one text."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments, None where it has
    none. custom: calls are told with their `input` alone.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    custom: bool = False

    def definition(self) -> dict[str, Any]:
        """The definition that chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        parameters = INPUT if self.custom else self.parameters
        function["parameters"] = NO_PARAMETERS if parameters is None else parameters
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
