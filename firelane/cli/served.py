"""Options of plans: whether `firelane serve` of this version takes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.plan.estimate import Estimate


def chosen(estimates: Sequence[Estimate], wanted: str, *, on_gpu: bool) -> tuple[Estimate, str]:
    """The best of those that are served, else of all, and then what `firelane serve` says to it. One has to
    fit."""
    from firelane.plan.estimate import best
    from firelane.plan.table import serve_options

    fitting = [e for e in estimates if not e.problem]
    refused = {id(e): refusal(" ".join(serve_options(e, on_gpu=on_gpu))) for e in fitting}
    found = best([e for e in fitting if not refused[id(e)]] or fitting, wanted)
    return found, refused[id(found)]


@cache
def refusal(options: str) -> str:
    """Refusal of options by serve, before it looks at a model; "" where it takes them."""
    from firelane import backends
    from firelane.cli import build_parser
    from firelane.engine_config import EngineConfig
    from firelane.errors import UsageError
    from firelane.options import fields

    arguments, unknown = build_parser("serve").parse_known_args(["serve", "MODEL", *options.split()])
    if unknown:
        return f"it has no option {unknown[0]}"
    values = vars(arguments)
    try:
        config = EngineConfig(
            model_dir=Path(),
            cache_dir=Path(),
            replicas=values.get("replicas", 1),
            **fields(EngineConfig, values),
        )
        backends.check(config.backend, config)
    except UsageError as error:
        return f"{error}"
    return ""
