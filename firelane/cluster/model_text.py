"""The part of a model that a gateway and an engine have to have in common: its config and its tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from firelane.request_limits import MAX_TOKENIZER_BYTES
from firelane.storage import read_regular


def text_identity(model_dir: Path, tokenizer_dir: Path) -> str:
    """A hash of config.json and tokenizer.json. Whoever makes texts of tokens needs no weights, so it does
    not cover these. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    for path in (model_dir / "config.json", tokenizer_dir / "tokenizer.json"):
        content = read_regular(path, MAX_TOKENIZER_BYTES) if path.exists() else b""
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
