"""The small files of a model directory that a gateway needs: chat template, special tokens, generation
defaults.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from firelane.errors import TokenizerError
from firelane.wire.frames import Pooling

_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """eos_ids: tokens that end a sequence, beside the tokenizer's own `eos_token`. defaults: sampling values
    that the model's author advises, used where a request is silent. specials: names of special tokens for
    the chat template. template: its source, or None. vocab_size: of config.json, None where it has none.
    pooling: of the sentence-transformers form, "last" where there is none of its files; None: of a kind that
    Firelane does not have.
    """

    template: str | None = None
    template_path: str = ""
    specials: dict[str, str] = field(default_factory=dict[str, str])
    eos_ids: tuple[int, ...] = ()
    defaults: dict[str, float] = field(default_factory=dict[str, float])
    vocab_size: int | None = None
    pooling: Pooling | None = "last"


def read_model_files(model_dir: Path) -> ModelFiles:
    """Raises TokenizerError when one of the files is damaged; a missing file is as an empty one."""
    tokenizer_config = _read_json(model_dir / "tokenizer_config.json")
    generation = _read_json(model_dir / "generation_config.json")
    config = _read_json(model_dir / "config.json")
    vocab_size = config.get("vocab_size")
    template, where = _find_template(model_dir, tokenizer_config)
    return ModelFiles(
        template=template,
        template_path=where,
        specials=_specials(tokenizer_config),
        eos_ids=_eos_ids(model_dir / "generation_config.json", generation)
        or _eos_ids(model_dir / "config.json", config),
        defaults=_defaults(generation),
        vocab_size=vocab_size if type(vocab_size) is int else None,  # the engine refuses what is no number
        pooling=_pooling(_read_json(model_dir / "1_Pooling" / "config.json")),
    )


def _read_text(path: Path) -> str | None:
    """None where there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): make it readable") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8 text ({error.reason}): fetch it again") from error


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        value: Any = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not valid JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} does not hold a JSON object: fetch it again")
    return cast(dict[str, Any], value)


def _eos_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
        raise TokenizerError(
            f"{path}: eos_token_id = {str(value)[:60]}: token ids are needed; fetch it again"
        )
    return tuple(ids)


def _find_template(model_dir: Path, tokenizer_config: dict[str, Any]) -> tuple[str | None, str]:
    """In the order of Hugging Face: a file of its own, an older JSON file, the tokenizer's config."""
    path = model_dir / "chat_template.jinja"
    text = _read_text(path)
    if text is not None:
        return text, str(path)
    path = model_dir / "chat_template.json"
    value = _read_json(path).get("chat_template")
    if value is None:
        path = model_dir / "tokenizer_config.json"
        value = tokenizer_config.get("chat_template")
    if isinstance(value, list):  # several named templates
        entries = [entry for entry in cast(list[Any], value) if isinstance(entry, dict)]
        value = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    if value is not None and not isinstance(value, str):
        raise TokenizerError(f"chat_template in {path} is not a text: fetch it again")
    return value, str(path)


def _specials(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    specials: dict[str, str] = {}
    for name in _SPECIALS:
        value = tokenizer_config.get(name)
        if isinstance(value, dict):  # an added token written out in full
            value = cast(dict[str, Any], value).get("content")
        if isinstance(value, str):
            specials[name] = value
    return specials


def _pooling(config: dict[str, Any]) -> Pooling | None:
    """Sentence-transformers writes one name, and wrote one flag a kind before."""
    names: dict[str, Pooling] = {"lasttoken": "last", "mean": "mean"}
    if "pooling_mode" in config:
        return names.get(str(config["pooling_mode"]))
    flags = {"pooling_mode_lasttoken": "lasttoken", "pooling_mode_mean_tokens": "mean"}
    on = [flags.get(name, "") for name, value in config.items() if name.startswith("pooling_mode_") and value]
    return names.get(on[0]) if len(on) == 1 else None if on else "last"


def _defaults(generation: dict[str, Any]) -> dict[str, float]:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    found = {name: generation.get(name) for name in names}
    return {name: v for name, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
