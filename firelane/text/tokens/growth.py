"""Growth of texts: how much longer a tokenizer's normaliser may make a text: one that multiplies texts would
take all memory for a short one."""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

from firelane.errors import TokenizerError

MAX_FACTOR = 32
MAX_ADDED_BYTES = 256
MAX_ADDED_TOKENS = 256


def check_growth(core: tokenizers.Tokenizer) -> None:
    """Raises TokenizerError."""
    state: Any = core.normalizer.__getstate__() if core.normalizer else b"null"  # pyright: ignore
    factor, added = _growth(json.loads(state))
    if factor > MAX_FACTOR or added > MAX_ADDED_BYTES:
        raise TokenizerError(
            f"the normaliser in tokenizer.json makes texts up to {factor:.3g} times as long, and adds "
            f"{added:.3g} bytes: {MAX_FACTOR} times and {MAX_ADDED_BYTES} bytes are taken; fetch it again"
        )
    tokens = len(core.encode_batch_fast([""])[0])
    if tokens > MAX_ADDED_TOKENS:
        raise TokenizerError(
            f"tokenizer.json adds {tokens} special tokens to each text: at most {MAX_ADDED_TOKENS} are taken"
        )


def _growth(step: Any) -> tuple[float, float]:
    """Bytes for each byte, and bytes beside those, of one step and those in it. Unicode's own forms, which
    are bounded, count as 1.
    """
    factor, added = 1.0, 0.0
    for inner in (step or {}).get("normalizers", ()):
        more, beside = _growth(inner)
        factor, added = factor * more, added * more + beside
    if step and step["type"] == "Replace":
        factor = _replaced(step["pattern"], len(step["content"].encode()))
    elif step and step["type"] == "Prepend":
        added = float(len(step["prepend"].encode()))
    return factor, added


def _replaced(pattern: dict[str, str], size: int) -> float:
    """Growth by a replacement of so many bytes."""
    if "String" in pattern:
        replaced = len(pattern["String"].encode())
        return max(1.0, size / replaced) if replaced else size + 1.0
    try:
        may_be_empty = re.search(pattern.get("Regex", ""), "") is not None
    except (re.error, RecursionError):
        may_be_empty = True
    return size + 1.0 if may_be_empty else max(1.0, size)
