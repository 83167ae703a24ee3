"""The small files of a model directory that a gateway needs: chat template, special tokens, generation
defaults.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from firelane.errors import TokenizerError
from firelane.storage import read_regular
from firelane.text.embedding_files import NO_EMBEDDING_FILES, EmbeddingFiles, embedding_files
from firelane.text.rendering import named_templates

log = logging.getLogger(__name__)
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 1e6),
}
"""Lowest and highest value that engines take."""
MOST_NAME = 64
"""Characters of a kind of model."""
TEMPLATES = Path(__file__).parent / "templates"
WITHOUT_TEMPLATE = ("deepseek_v32",)
"""Kinds of models that are published without a chat template, which come with Firelane."""
SPLITTING_UNKNOWN = "splitting_unknown"
"""In the tokenizer_config.json of a converted GGUF file that does not say how texts are cut."""
EMBEDDER_FILES = ("modules.json", "1_Pooling/config.json")
"""A model with one of them was made for vectors."""
INFILL_NAMES = "infill_names"
"""In the tokenizer_config.json of a converted GGUF file that names the marks of texts with a gap."""
DECISION_HEADS = ("joint_head_config.json", "decision_config.json")
"""Files that say that a checkpoint has a head which answers typed questions."""
_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, kw_only=True)
class ModelTextFiles:
    """eos_ids: tokens that end a sequence, beside the tokenizer's own `eos_token`. defaults: sampling values
    that the model's author advises, used where a request is silent. specials: names of special tokens for
    the chat template. template: its source, or None. vocab_size: of config.json, None where it has none.
    model_type: of config.json, "" where it has none. embedding: of vectors and scores. infill_names: names of
    marks of texts with a gap, as `find_marks` takes them. decision_head: the file of a head that answers
    typed questions in place of the model's own, "" where there is none.
    """

    template: str | None = None
    template_path: str = ""
    specials: dict[str, str] = field(default_factory=dict[str, str])
    eos_ids: tuple[int, ...] = ()
    defaults: dict[str, float] = field(default_factory=dict[str, float])
    vocab_size: int | None = None
    model_type: str = ""
    embedding: EmbeddingFiles = NO_EMBEDDING_FILES
    infill_names: dict[str, str] = field(default_factory=dict[str, str])
    decision_head: str = ""


def read_model_files(model_dir: Path, chat_template: Path | None = None) -> ModelTextFiles:
    """chat_template: a file to be used in place of the model's own template. Raises TokenizerError when one
    of the files is damaged; a missing one of the model's is as an empty one.
    """
    tokenizer_config = _read_json(model_dir / "tokenizer_config.json")
    generation = _read_json(model_dir / "generation_config.json")
    config = _read_config(model_dir / "config.json")
    vocab_size = config.get("vocab_size")
    model_type = str(config.get("model_type") or "")[:MOST_NAME]
    if chat_template is not None:
        template, where = _given_template(chat_template), str(chat_template)
    else:
        template, where = _find_template(model_dir, tokenizer_config)
        if template is None and model_type in WITHOUT_TEMPLATE:
            template, where = _shipped_template(model_type)
    if tokenizer_config.get(SPLITTING_UNKNOWN):
        log.warning(
            "tokenizer_splitting_unknown model=%s: the file does not say how texts are cut before they "
            "become tokens (tokenizer.ggml.pre): answers may be worse than they should; convert it again",
            model_dir.name,
        )
    path = model_dir / "generation_config.json"
    eos_ids = _eos_ids(path, generation) or _eos_ids(model_dir / "config.json", config)
    return ModelTextFiles(
        template=template,
        template_path=where,
        specials=_specials(tokenizer_config),
        eos_ids=_known_ids(model_dir, eos_ids, vocab_size),
        defaults=_defaults(path, generation),
        vocab_size=vocab_size if type(vocab_size) is int else None,  # the engine refuses what is no number
        model_type=model_type,
        embedding=embedding_files(
            config,
            _read_json(model_dir / "1_Pooling" / "config.json"),
            _read_json(model_dir / "config_sentence_transformers.json"),
            _read_list(model_dir / "modules.json"),
            is_embedder=any((model_dir / name).is_file() for name in EMBEDDER_FILES),
        ),
        infill_names=_infill_names(tokenizer_config),
        decision_head=next((name for name in DECISION_HEADS if (model_dir / name).is_file()), ""),
    )


def _read_text(path: Path) -> str | None:
    """None where there is no such file."""
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): make it a readable file") from error
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


def _read_list(path: Path) -> list[Any]:
    """A JSON list; [] where there is no such file."""
    text = _read_text(path)
    try:
        value: Any = [] if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not valid JSON ({error}): fetch it again") from error
    if not isinstance(value, list):
        raise TokenizerError(f"{path} does not hold a JSON list: fetch it again")
    return cast(list[Any], value)


def _read_config(path: Path) -> dict[str, Any]:
    """With what a multimodal model says of its language model in a section of its own."""
    config = _read_json(path)
    section = config.get("text_config")
    return cast(dict[str, Any], section) | config if isinstance(section, dict) else config


def _eos_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
        raise TokenizerError(
            f"{path}: eos_token_id = {str(value)[:60]}: token ids are needed; fetch it again"
        )
    return tuple(ids)


def _find_template(model_dir: Path, tokenizer_config: dict[str, Any]) -> tuple[str | None, str]:
    """In the order of Hugging Face: files of their own, an older JSON file, the tokenizer's config."""
    path = model_dir / "chat_template.jinja"
    beside = model_dir / named_templates.FOLDER / f"{named_templates.TOOL_USE}.jinja"
    texts = {named_templates.DEFAULT: _read_text(path), named_templates.TOOL_USE: _read_text(beside)}
    named = {name: text for name, text in texts.items() if text is not None}
    if named:
        return named_templates.joined(named), str(path if named_templates.DEFAULT in named else beside)
    path = model_dir / "chat_template.json"
    value = _read_json(path).get("chat_template")
    if value is None:
        path = model_dir / "tokenizer_config.json"
        value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        value = named_templates.joined(_by_name(cast(list[Any], value)))
    if value is not None and not isinstance(value, str):
        raise TokenizerError(f"chat_template in {path} is not a text: fetch it again")
    return value, str(path)


def _by_name(listed: list[Any]) -> dict[str, str]:
    """The texts of several named templates."""
    entries = [cast(dict[str, Any], entry) for entry in listed if isinstance(entry, dict)]
    return {
        str(entry.get("name")): text for entry in entries if isinstance(text := entry.get("template"), str)
    }


def _given_template(path: Path) -> str:
    text = _read_text(path)
    if text is None:
        raise TokenizerError(f"{path}: no such file; give the file of a Jinja chat template")
    return text


def _shipped_template(model_type: str) -> tuple[str, str]:
    path = TEMPLATES / f"{model_type}.jinja"
    return path.read_text(encoding="utf-8"), str(path)


def _specials(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    specials: dict[str, str] = {}
    for name in _SPECIALS:
        value = tokenizer_config.get(name)
        if isinstance(value, dict):  # an added token written out in full
            value = cast(dict[str, Any], value).get("content")
        if isinstance(value, str):
            specials[name] = value
    return specials


def _infill_names(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    value: Any = tokenizer_config.get(INFILL_NAMES)
    found = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    return {part: name for part, name in found.items() if isinstance(name, str)}


def _defaults(path: Path, generation: dict[str, Any]) -> dict[str, float]:
    """Without values that no request could be served with: they would fail each one that is silent."""
    found: dict[str, float] = {}
    for name, (lowest, highest) in _RANGES.items():
        value = generation.get(name)
        if value is None:
            continue
        if type(value) in (int, float) and lowest <= value <= highest:
            found[name] = value
        else:
            shown = str(value)[:60] if isinstance(value, int | float | str) else type(value).__name__
            log.warning(
                "generation_default_ignored path=%s %s=%s allowed=%g..%g", path, name, shown, lowest, highest
            )
    return found


def _known_ids(path: Path, ids: tuple[int, ...], vocab_size: object) -> tuple[int, ...]:
    """Without ids that the vocabulary does not have: the model cannot write them, and engines refuse them."""
    known = tuple(token for token in ids if type(vocab_size) is not int or token < vocab_size)
    if known != ids:
        log.warning(
            "eos_token_ids_ignored path=%s count=%d vocab_size=%s", path, len(ids) - len(known), vocab_size
        )
    return known
