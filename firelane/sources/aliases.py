"""Names that the user has given to models: one JSON object in the directory of settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from firelane import env
from firelane.errors import UsageError
from firelane.storage import write_whole

FILE = "aliases.json"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(:[\w.-]+)?")


def aliases(directory: Path | None = None) -> dict[str, str]:
    """Sources by alias. directory: of settings, None: the user's own. Raises UsageError where the file is
    damaged."""
    path = (directory or env.config_dir()) / FILE
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}): mend it, or remove it") from error
    pairs = cast(Mapping[Any, Any], found) if isinstance(found, dict) else {"": 0}
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in pairs.items()):
        raise UsageError(f"{path}: is no object of names and sources: mend it, or remove it")
    return dict(cast(Mapping[str, str], pairs))


def set_alias(name: str, source: str, directory: Path | None = None) -> None:
    """Raises UsageError for a name that cannot be one, and for a source that is an alias itself."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name: use letters, digits, `.`, `_` and `-`, and a tag behind a colon"
        )
    known = aliases(directory)
    if source in known or source == name:
        raise UsageError(f"{source} is an alias itself: name the model that it means")
    _write({**known, name: source}, directory)


def remove_alias(name: str, directory: Path | None = None) -> None:
    """Raises UsageError where there is none."""
    known = aliases(directory)
    if name not in known:
        raise UsageError(f"{name} is no alias: `firelane alias` lists them")
    _write({one: source for one, source in known.items() if one != name}, directory)


def _write(pairs: Mapping[str, str], directory: Path | None) -> None:
    path = (directory or env.config_dir()) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(pairs, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n")
