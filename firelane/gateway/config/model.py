"""Configuration of one served model, as the gateway has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from firelane.errors import UsageError
from firelane.gateway.config.groups import ANSWERS, REPLICAS
from firelane.gateway.engines.roles.role_targets import RoleTargets
from firelane.options import Option
from firelane.text.parsers import REASONING_ALIASES, REASONING_PARSERS, TOOL_ALIASES, TOOL_PARSERS

LEAST_TOKENS, PAGE_AWARE = "least-tokens", "page-aware"
ROUTING = (LEAST_TOKENS, "least-requests", "random", "affinity", PAGE_AWARE, "least-time")
"""Policies that choose one of several engines, in the order of POLICIES in engines/routing/routing.py."""


MOST_NAME = 256
"""Characters of a served name."""
TRIALS = "templates"
"""The directory of trial renders, in the cache."""

Routing = Annotated[
    str,
    Option(
        "the engine that a request goes to, where there are several; one of least-tokens, affinity, "
        "page-aware, least-time",
        REPLICAS,
        metavar="POLICY",
        choices=ROUTING,
        see="cluster.md#router",
    ),
]
"""The other policies are for comparisons alone."""
SharesPages = Annotated[
    bool,
    Option(
        "replicas have pages of the KV cache from each other, where one has more of a prompt",
        REPLICAS,
        flag="share-pages",
        see="cluster.md#pages-of-other-replicas",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One served model. model_dir: where tokenizer.json and the chat template lie; None: nowhere yet. names:
    all are accepted, the first is reported. aliases: further names that requests may give, each with the name
    that it means. tokenizer_dir: where tokenizer.json lies instead. tenants: those that may use it; None:
    all. role_targets: None: roles change by hand alone. trials_dir: where trial renders
    of its template are kept. adapters: names of those of its engines, which requests give as a model's name.
    """

    model_dir: Path | None
    names: tuple[str, ...]
    tokenizer_dir: Path | None = None
    aliases: tuple[tuple[str, str], ...] = ()
    adapters: tuple[str, ...] = ()
    version: str = ""
    """The name of its weights, where these were updated."""
    chat_template: Annotated[
        Path | None,
        Option(
            "a file with a Jinja chat template",
            ANSWERS,
            default="the model's own",
            see="chat-formats.md#templates",
        ),
    ] = None
    tool_parser: Annotated[
        str,
        Option(
            "how the model writes calls of tools",
            ANSWERS,
            metavar="NAME",
            choices=(*TOOL_PARSERS, *TOOL_ALIASES),
            default="auto: what its chat template shows",
            see="chat-formats.md",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Option(
            "how the model marks its reasoning",
            ANSWERS,
            metavar="NAME",
            choices=(*REASONING_PARSERS, *REASONING_ALIASES),
            default="auto: what its chat template shows",
            see="chat-formats.md#reasoning",
        ),
    ] = "auto"
    tenants: tuple[str, ...] | None = None
    routing: Routing = PAGE_AWARE
    role_targets: Annotated[
        RoleTargets | None,
        Option(
            "change the roles of engines while they serve, so that nine of ten requests keep to these "
            "latencies: ttft=500ms,itl=50ms (needs --prefill and --decode, or --engines that have roles)",
            REPLICAS,
            flag="role-controller",
            metavar="TARGETS",
            read=RoleTargets.parse,
            see="cluster.md#a-controller-of-roles",
        ),
    ] = None
    shares_pages: SharesPages = False
    recovery: Annotated[
        bool,
        Option("requests fail when their engine dies, in place of going on with another one", REPLICAS),
    ] = True
    trials_dir: Path | None = None

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names that requests may give."""
        return (*self.names, *(alias for alias, _ in self.aliases), *self.adapters)

    def __post_init__(self) -> None:
        """Raises UsageError for a name that no request could give, or that would break a line of the log."""
        for name in self.all_names:
            if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
                raise UsageError(
                    f"{name[:60]!r} cannot be a served name: give 1 to {MOST_NAME} printable characters with "
                    "--served-model-name"
                )
