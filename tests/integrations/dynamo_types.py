"""Stand-ins of the types of Dynamo that a worker meets, in the place of its modules: Dynamo itself is not
among the packages that the tests install."""

from __future__ import annotations

import argparse
import enum
import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest


class LLMEngine:
    pass


class Fields:
    """Keeps the fields that it is made with."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class DisaggregationMode(enum.Enum):
    AGGREGATED = "agg"
    PREFILL = "prefill"
    DECODE = "decode"


class InvalidArgument(Exception):  # noqa: N818 (as Dynamo names it)
    pass


class EngineShutdown(Exception):  # noqa: N818
    pass


class Unknown(Exception):  # noqa: N818
    pass


@dataclass
class PushSource:
    on_ready: Any
    dp_rank: int = 0


class Context:
    def __init__(self, request_id: str = "a") -> None:
        self._id = request_id

    def id(self) -> str:
        return self._id


class RuntimeArgGroup:
    """Options that all workers of Dynamo have, two of them."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--endpoint")


class RuntimeConfig(Fields):
    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> RuntimeConfig:
        return cls(namespace=args.namespace, endpoint=args.endpoint)

    def validate(self) -> None:
        pass


class WorkerConfig(Fields):
    @classmethod
    def from_runtime_config(cls, runtime: RuntimeConfig, **fields: Any) -> WorkerConfig:
        return cls(**{**vars(runtime), **fields})


def parse_endpoint(endpoint: str) -> tuple[str, ...]:
    return tuple(endpoint.removeprefix("dyn://").split("."))


def health_check(bos_token_id: int) -> dict[str, Any]:
    return {"token_ids": [bos_token_id]}


MODULES: dict[str, dict[str, Any]] = {
    "dynamo": {},
    "dynamo._core": {"Context": Context},
    "dynamo.llm": {},
    "dynamo.llm.exceptions": {
        "EngineShutdown": EngineShutdown,
        "InvalidArgument": InvalidArgument,
        "Unknown": Unknown,
    },
    "dynamo.common": {},
    "dynamo.common.backend": {},
    "dynamo.common.backend.engine": {
        "LLMEngine": LLMEngine,
        "EngineConfig": Fields,
        "LlmRegistration": Fields,
        "GenerateChunk": dict,
        "GenerateRequest": dict,
    },
    "dynamo.common.backend.health_check": {"build_health_check_payload": health_check},
    "dynamo.common.backend.publisher": {
        "ComponentSnapshot": Fields,
        "KvEventPublisher": object,
        "KvEventSource": PushSource,
        "PushSource": PushSource,
    },
    "dynamo.common.backend.worker": {"WorkerConfig": WorkerConfig},
    "dynamo.common.configuration": {},
    "dynamo.common.configuration.groups": {},
    "dynamo.common.configuration.groups.runtime_args": {
        "DynamoRuntimeArgGroup": RuntimeArgGroup,
        "DynamoRuntimeConfig": RuntimeConfig,
    },
    "dynamo.common.constants": {"DisaggregationMode": DisaggregationMode},
    "dynamo.common.utils": {},
    "dynamo.common.utils.runtime": {"parse_endpoint": parse_endpoint},
}


def install(patch: pytest.MonkeyPatch) -> None:
    """For as long as the patch lasts; so are the modules that import them."""
    for name, contents in MODULES.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        patch.setitem(sys.modules, name, module)
    for name in ("worker", "options"):
        patch.delitem(sys.modules, f"firelane_dynamo.{name}", raising=False)
