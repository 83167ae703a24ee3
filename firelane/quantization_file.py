"""hf_quant_config.json: where some quantisers say how a checkpoint is quantised, in place of config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from firelane.errors import CheckpointError
from firelane.storage import read_regular

NAME, KEY, SECTION = "hf_quant_config.json", "quantization_config", "text_config"
METHOD = "modelopt"
MAX_BYTES = 64 << 20
WEIGHTS: Mapping[str, Mapping[str, Any]] = {
    "FP8": {"num_bits": 8, "type": "float"},
    "NVFP4": {"num_bits": 4, "type": "float", "group_size": 16},
    "W4A16_NVFP4": {"num_bits": 4, "type": "float", "group_size": 16},
}
"""By the tool's name of a format, the numbers of weights, as config.json has them."""


def with_quantization(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The content of a model's config.json, with a quantization_config that says its method where the config
    or the file beside it says that there is one. Raises CheckpointError for a file that cannot be read."""
    own = config.get(KEY) or _mapping(config.get(SECTION)).get(KEY)
    if own:
        section = _mapping(own)
        if "quant_method" not in section and "quant_algo" in section:
            return {**config, KEY: {**section, "quant_method": METHOD}}
        return dict(config)
    section = _section(_mapping(_read(directory / NAME).get("quantization")))
    return {**config, KEY: section} if section else dict(config)


def _read(path: Path) -> Mapping[str, Any]:
    """{} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return _mapping(json.loads(read_regular(path, MAX_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}): fetch it again") from error


def _section(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section as config.json would say it; {} where no weights are quantised."""
    algorithm = found.get("quant_algo")
    if not algorithm:
        return {}
    targets: dict[str, list[str]] = {}
    for module, how in _mapping(found.get("quantized_layers")).items():
        targets.setdefault(str(_mapping(how).get("quant_algo")), []).append(module)
    targets = targets or {str(algorithm): ["Linear"]}
    groups = [{"targets": of, "weights": WEIGHTS[name]} for name, of in targets.items() if name in WEIGHTS]
    return {
        "quant_method": METHOD,
        "quant_algo": algorithm,
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": found.get("exclude_modules") or [],
    }


def _mapping(found: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], found) if isinstance(found, dict) else {}
