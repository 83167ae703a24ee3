"""Places of a model's tokenizer.json: its directory, or the cache, into which the tokenizers of models that
publish another form are converted once. tiktoken.model (Kimi) has a token and its rank a line; tekken.json
(Mistral) has them with pattern and special tokens.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from firelane.errors import CacheError, TokenizerError
from firelane.request_limits import MAX_TOKENIZER_BYTES
from firelane.storage import cache_directory, read_regular, write_whole
from firelane.text.tokens.ranked_bpe import RankedVocabulary

NAME = "tokenizer.json"
VERSION = 1
"""The version of the conversions: part of the names in the cache."""
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]", r"\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""Pieces of a text, which the code that comes with the model says, not its file."""
KIMI_SPECIALS = 256
KIMI_CLASS = "TikTokenTokenizer"
TEKKEN_SPECIALS = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
"""Special tokens of files up to version 7 that do not list theirs."""
TEKKEN_UNLISTED = ("v1", "v2", "v3", "v7")
TEKKEN_BEGIN = "<s>"


def tokenizer_directory(model_dir: Path, cache_dir: Path) -> Path:
    """The directory that holds the tokenizer.json of the model in `model_dir`; that one where it has no
    tokenizer at all. Raises TokenizerError, and CacheError where a converted one cannot be kept.
    """
    if (model_dir / NAME).exists():
        return model_dir
    for name, read in FORMATS.items():
        if (model_dir / name).exists():
            return _converted(model_dir, name, read, cache_dir)
    return model_dir


def _converted(
    model_dir: Path, name: str, read: Callable[[bytes, bytes], RankedVocabulary], cache_dir: Path
) -> Path:
    path, config = model_dir / name, model_dir / "tokenizer_config.json"
    try:
        data = read_regular(path, MAX_TOKENIZER_BYTES)
        more = read_regular(config) if config.exists() else b"{}"
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): make it readable") from error
    key = hashlib.sha256(b"%d\0%s\0%d\0%s%s" % (VERSION, name.encode(), len(data), data, more)).hexdigest()
    directory = cache_dir / "tokenizers" / key[:32]
    if not _is_whole(directory):
        try:
            _keep(directory, read(data, more).to_json())
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
            what = f"{type(error).__name__}: " if not isinstance(error, ValueError) else ""
            raise TokenizerError(f"{path} cannot be converted: {what}{error}; fetch it again") from error
    return directory


def _is_whole(directory: Path) -> bool:
    """Whether the file is the one that was written."""
    try:
        data, digest = read_regular(directory / NAME, MAX_TOKENIZER_BYTES), read_regular(directory / "sha256")
    except OSError:
        return False
    return hashlib.sha256(data).hexdigest().encode() == digest


def _keep(directory: Path, data: bytes) -> None:
    try:
        cache_directory(directory.parent)
        cache_directory(directory)
        write_whole(directory / NAME, data)
        write_whole(directory / "sha256", hashlib.sha256(data).hexdigest().encode())
    except OSError as error:
        raise CacheError(
            f"{directory}: the converted tokenizer cannot be written: {error.strerror}; make room, or set "
            "FIRELANE_CACHE_DIR to another directory"
        ) from error


def read_kimi(data: bytes, config: bytes) -> RankedVocabulary:
    """tiktoken.model, with the special tokens of tokenizer_config.json. Raises ValueError."""
    settings = _object(json.loads(config))
    name = settings.get("tokenizer_class")
    if name != KIMI_CLASS:
        raise ValueError(
            f"tokenizer_class in tokenizer_config.json is {str(name)[:40]!r}, and only {KIMI_CLASS!r} is "
            "known: add a tokenizer.json"
        )
    lines = [line.split() for line in data.splitlines() if line.strip()]
    if not all(len(line) == 2 and line[1].isdigit() for line in lines):
        raise ValueError("a line is not a token and its rank")
    tokens = _by_rank({int(rank): _decoded(token) for token, rank in lines}, len(lines))
    listed = _object(settings.get("added_tokens_decoder") or {})
    names = {int(i): str(_object(entry)["content"]) for i, entry in listed.items()}
    first = len(tokens)
    specials = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(first, first + KIMI_SPECIALS)}
    return RankedVocabulary(tokens=tokens, pattern=KIMI_PATTERN, specials=specials)


def read_tekken(data: bytes, _: bytes) -> RankedVocabulary:
    """tekken.json. Raises ValueError, KeyError or TypeError."""
    content = _object(json.loads(data))
    config = _object(content["config"])
    count = int(config["default_num_special_tokens"])
    size = int(config["default_vocab_size"]) - count
    entries = [_object(entry) for entry in content["vocab"][:size]]
    tokens = _by_rank({int(e["rank"]): _decoded(e["token_bytes"].encode()) for e in entries}, size)
    specials = _tekken_specials(content, str(config.get("version")), count)
    begin = TEKKEN_BEGIN if TEKKEN_BEGIN in specials else ""
    pattern = str(config["pattern"])
    return RankedVocabulary(tokens=tokens, pattern=pattern, specials=specials, first_id=count, begin=begin)


def _tekken_specials(content: dict[str, Any], version: str, count: int) -> dict[str, int]:
    """With names for ids that have none."""
    listed = content.get("special_tokens")
    if listed is None and version not in TEKKEN_UNLISTED:
        raise ValueError(f"version {version[:20]!r} lists its special tokens, and this file does not")
    found = dict(enumerate(TEKKEN_SPECIALS))
    if listed is not None:
        found = {int(_object(entry)["rank"]): str(_object(entry)["token_str"]) for entry in listed}
    if found and max(found) >= count:
        raise ValueError(f"special token {max(found)} is none of the {count} that there are")
    return {found.get(i, f"<SPECIAL_{i}>"): i for i in range(count)}


def _by_rank(tokens: dict[int, bytes], count: int) -> list[bytes]:
    """Raises ValueError where a rank is missing or there twice."""
    if sorted(tokens) != [*range(count)]:
        raise ValueError(f"ranks are not 0 to {count - 1}, each once")
    return [tokens[rank] for rank in range(count)]


def _decoded(token: bytes) -> bytes:
    try:
        return base64.b64decode(token, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a token is not base64 ({error})") from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    return cast(dict[str, Any], value)


FORMATS: dict[str, Callable[[bytes, bytes], RankedVocabulary]] = {
    "tiktoken.model": read_kimi,
    "tekken.json": read_tekken,
}
