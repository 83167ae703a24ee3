"""The files that sentence-transformers keeps beside config.json: how a text's vector is made of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from firelane.errors import CheckpointError, UnsupportedModelError
from firelane.storage import read_regular

MODULES, LENGTHS = "modules.json", "sentence_bert_config.json"
USUAL_POOLING = "1_Pooling"
MAX_BYTES = 1 << 20
KEY = "sentence_transformers"
"""The key of a config under which these files' content stands."""


def read_sentence_files(directory: Path) -> dict[str, Any]:
    """The content of modules.json, of the file of its pooling and of that with the longest text: `pooling`,
    `max_seq_length` and the kinds of other `modules`; of a model without modules.json the usual
    file of its pooling, {} where that is missing, too. Raises
    CheckpointError where a file is damaged."""
    modules = _read(directory / MODULES)
    if modules is None:
        pooling = _read_object(directory / USUAL_POOLING / "config.json")
        return {"modules": [], "pooling": pooling} if pooling else {}
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{directory / MODULES}: not a list of objects: fetch it again")
    found: dict[str, Any] = {"modules": []}
    for module in cast(list[dict[str, Any]], modules):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            found["pooling"] = _read_object(_beside(directory, module) / "config.json")
        elif kind not in ("Transformer", "Normalize"):
            found["modules"].append(kind)
    length = _read_object(directory / LENGTHS).get("max_seq_length")
    return found | ({"max_seq_length": length} if length is not None else {})


def _beside(directory: Path, module: dict[str, Any]) -> Path:
    path = str(module.get("path", ""))
    if path.startswith("/") or ".." in Path(path).parts:
        raise UnsupportedModelError(f"{MODULES}: path {path!r} is outside of the model's directory")
    return directory / path


def _read_object(path: Path) -> dict[str, Any]:
    value = _read(path)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object: fetch it again")
    return cast(dict[str, Any], value or {})


def _read(path: Path) -> Any:
    """None where there is no such file."""
    try:
        return json.loads(read_regular(path, MAX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}): make it readable") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}): fetch it again") from error
