"""The draft model that an option names, found and compared before an engine starts."""

from __future__ import annotations

from pathlib import Path

from firelane.engine_config import DRAFT, EAGLE3
from firelane.errors import UsageError
from firelane.sources.resolve import resolve
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import NAME, tokenizer_directory
from firelane.weights.progress import Progress, silent

MOST_MISSING = 0.01
"""Part of the tokens that only one of the two may have: special tokens that were added to a family later."""


def draft_directory(
    speculative: str, tokenizer_dir: Path | None, cache_dir: Path, progress: Progress = silent
) -> Path | None:
    """The directory of what draft=MODEL or eagle3=HEAD names, as resolve() finds it; None of other values.
    tokenizer_dir: of the served model, None where it is not here yet. Raises ModelNotFoundError,
    TokenizerError, and UsageError where the two read text otherwise."""
    kind, separator, name = speculative.partition("=")
    if f"{kind}{separator}" not in (DRAFT, EAGLE3) or not name.strip():
        return None
    directory = resolve(name, progress=progress, cache_dir=cache_dir)
    if f"{kind}{separator}" == EAGLE3:
        return directory
    own = tokenizer_directory(directory, cache_dir)
    if tokenizer_dir is not None and (tokenizer_dir / NAME).exists() and (own / NAME).exists():
        _check_vocabularies(name, tokenizer_dir, own)
    return directory


def _check_vocabularies(name: str, served: Path, draft: Path) -> None:
    """Raises UsageError where an id means another token, or many tokens are those of one alone."""
    if served == draft:
        return
    tokens, others = load_tokenizer(served).vocabulary(), load_tokenizer(draft).vocabulary()
    both = tokens.keys() & others.keys()
    other = next((i for i in sorted(both) if tokens[i] != others[i]), None)
    what = f"--speculative {DRAFT}{name}: its vocabulary is another one"
    todo = "choose a draft model with the tokenizer of the served one"
    if other is not None:
        raise UsageError(f"{what}: token {other} is {others[other]!r}, not {tokens[other]!r}: {todo}")
    most = max(len(tokens), len(others))
    if most - len(both) > MOST_MISSING * most:
        raise UsageError(f"{what}: of {len(tokens)} tokens it has {len(both)}: {todo}")
