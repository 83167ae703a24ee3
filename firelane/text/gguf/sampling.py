"""Sampling that the author of a GGUF file advises: its `general.sampling.*` entries in the names of
generation_config.json."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)
PREFIX = "general.sampling."
NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
OFF: dict[str, tuple[Any, ...]] = {"xtc_probability": (0,), "mirostat": (0,)}
"""Values of entries that are not implemented which ask for nothing."""
DETAILS = ("sequence", "penalty_last_n", "xtc_threshold", "mirostat_tau", "mirostat_eta")
"""Entries that say how others work."""


def advised_sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the file has them; whether they can be used is for the reader of generation_config.json
    to say. A warning names entries that ask for something else."""
    given = {key[len(PREFIX) :]: value for key, value in metadata.items() if key.startswith(PREFIX)}
    if given.get("penalty_last_n") == 0:
        given.pop("penalty_repeat", None)  # it looks at no token
    for name in sorted(given.keys() - NAMES.keys() - set(DETAILS)):
        if given[name] not in OFF.get(name, ()):
            log.warning("gguf_sampling_ignored %s%s=%s", PREFIX, name[:40], str(given[name])[:40])
    return {name: _short(given[key]) for key, name in NAMES.items() if key in given}


def _short(value: Any) -> Any:
    """A float32 in as many digits as it has: 0.6 in place of 0.6000000238418579."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
