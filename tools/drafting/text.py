"""Text files as windows of tokens: what a target is asked to continue and a draft learns from."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

HELD_OUT_PERCENT = 4
CHUNK_CHARACTERS = 1 << 20

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of files end to end, and the special tokens that stand before each window."""

    tokens: Tokens
    prefix: tuple[int, ...]

    def windows(self, rng: np.random.Generator, rows: int, length: int) -> Tokens:
        """``rows`` windows from random places, int64 [rows, length], each behind the prefix."""
        body = length - len(self.prefix)
        starts = rng.integers(len(self.tokens) - body + 1, size=rows)
        cut = np.stack([self.tokens[start : start + body] for start in starts])
        before = np.tile(np.array(self.prefix, dtype=np.int64), (rows, 1))
        return np.concatenate((before, cut), axis=1)


def text_files(paths: list[Path]) -> list[Path]:
    """The files that are named, and those below named directories, in the order of their names.

    Raises SystemExit where a path does not exist or no file is found.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise SystemExit(f"{path}: there is no such file or directory")
        below = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        found.extend(below)
    if not found:
        raise SystemExit(f"no files below {', '.join(map(str, paths))}")
    return found


def split_files(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Files to train on, and files held out by a hash of their names: at least one of each.

    Raises SystemExit for fewer than two files.
    """
    if len(files) < 2:
        raise SystemExit("one file cannot be trained on and held out: name more, or use --held-out")
    held_out = [path for path in files if _hash(path) % 100 < HELD_OUT_PERCENT] or [min(files, key=_hash)]
    if len(held_out) == len(files):
        held_out = held_out[:1]
    return [path for path in files if path not in held_out], held_out


def tokenize(files: list[Path], tokenizer: PreTrainedTokenizerBase, at_least: int, work: Path) -> Text:
    """The text of the files, each closed by the end-of-text token where the tokenizer has one.

    The tokens are kept below ``work``. Raises SystemExit where a file is not UTF-8 or all have fewer than
    ``at_least`` tokens.
    """
    kept = work / f"tokens-{_name(files, tokenizer)}.npy"
    tokens = kept_rows(kept, lambda: np.concatenate([_encode(path, tokenizer) for path in files]))
    if len(tokens) < at_least:
        raise SystemExit(f"{len(files)} files have {len(tokens)} tokens; at least {at_least} are needed")
    return Text(tokens=tokens, prefix=tuple(tokenizer.encode("", add_special_tokens=True)))


def kept_rows(path: Path, make: Callable[[], Tokens]) -> Tokens:
    """The file's array; where there is no file, it is made and appears whole."""
    if path.exists():
        return np.load(path)
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
        np.save(file, made)
    Path(file.name).replace(path)
    return made


def _encode(path: Path, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    closing = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    chunks = _chunks(_read(path))
    parts = [tokenizer.encode(chunk, add_special_tokens=False, verbose=False) for chunk in chunks]
    return np.array([token for part in (*parts, closing) for token in part], dtype=np.int64)


def _name(files: list[Path], tokenizer: PreTrainedTokenizerBase) -> str:
    """A name that says which files, as they are now, and which tokenizer the tokens come from."""
    told = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((told, sorted(tokenizer.get_vocab().items()))).encode()).hexdigest()[:16]


def _hash(path: Path) -> int:
    return int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "big")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path} is not UTF-8 text: {error}") from error


def _chunks(text: str) -> list[str]:
    """Pieces that a tokenizer takes at once: a file of some gigabytes would need all memory."""
    return [text[start : start + CHUNK_CHARACTERS] for start in range(0, len(text), CHUNK_CHARACTERS)]
