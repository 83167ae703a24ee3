"""Tools of /v1/responses as the model is told of them: functions and custom tools, each by one name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from firelane.api.stored.responses import FunctionTool

SEPARATOR = "."
CALLED = ("function", "custom")
"""Types of tools that the model may call."""


@dataclass(frozen=True, slots=True)
class ToolNames:
    """Names by which the model knows functions of namespaces. told: by namespace and name; own: the way back.
    A name that no other function has is told as it is.
    """

    told: dict[tuple[str | None, str], str] = field(default_factory=dict[tuple[str | None, str], str])
    own: dict[str, tuple[str | None, str]] = field(default_factory=dict[str, tuple[str | None, str]])

    def name_for_model(self, namespace: str | None, name: str) -> str:
        """Also of a function that the request has no more."""
        return self.told.get((namespace, name), name)

    def own_name(self, told: str) -> tuple[str | None, str]:
        """Namespace, if any, and name."""
        return self.own.get(told, (None, told))


def functions(tools: list[FunctionTool]) -> list[tuple[str | None, FunctionTool]]:
    """Each with its namespace. What only its maker's servers can run is left out."""
    found: list[tuple[str | None, FunctionTool]] = []
    for tool in tools:
        if tool.type == "namespace":
            found += [(tool.name, inner) for inner in tool.members if inner.type in CALLED]
        elif tool.type in CALLED:
            found.append((None, tool))
    return found


def names_of(tools: list[FunctionTool]) -> ToolNames:
    listed = [(namespace, tool.name or "") for namespace, tool in functions(tools)]
    shared = Counter(name for _, name in listed)
    told = {
        (namespace, name): f"{namespace}{SEPARATOR}{name}" if namespace and shared[name] > 1 else name
        for namespace, name in listed
    }
    return ToolNames(told, {name: own for own, name in told.items()})


def left_out(tools: list[FunctionTool]) -> list[str]:
    """The places of tools that the model is not told of."""
    names: list[str] = []
    for i, tool in enumerate(tools):
        if tool.type == "namespace":
            inner = enumerate(tool.members)
            names += [f"tools[{i}].tools[{j}]" for j, one in inner if one.type not in CALLED]
        elif tool.type not in CALLED:
            names.append(f"tools[{i}]")
    return names
