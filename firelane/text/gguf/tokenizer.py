"""From a GGUF file's vocabulary to tokenizer.json, tokenizer_config.json and generation_config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from firelane.errors import TokenizerError
from firelane.text.gguf.sampling import advised_sampling
from firelane.text.gguf.splitting import UNNAMED, splitting
from firelane.text.gguf.vocabulary import GgufVocabulary
from firelane.text.model_files import INFILL_NAMES, SPLITTING_UNKNOWN
from firelane.text.rendering.named_templates import DEFAULT

Json = dict[str, Any]
SPACE = "\u2581"
TEMPLATE = "tokenizer.chat_template"


def model_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """By name the small files of a model directory. Raises TokenizerError where the metadata have no
    tokenizer, or one of a kind that is not known."""
    vocabulary = GgufVocabulary.read(metadata)
    convert = KINDS.get(vocabulary.kind)
    if convert is None:
        known = ", ".join(sorted(KINDS))
        raise TokenizerError(
            f"metadata tokenizer.ggml.model = {vocabulary.kind[:40]!r} is not supported; supported: {known}"
        )
    files = {
        "tokenizer.json": convert(vocabulary),
        "tokenizer_config.json": _settings(vocabulary, metadata),
        "generation_config.json": {"eos_token_id": vocabulary.end_ids, **advised_sampling(metadata)},
    }
    return {name: json.dumps(content, ensure_ascii=False).encode() for name, content in files.items()}


def _settings(vocabulary: GgufVocabulary, metadata: Mapping[str, Any]) -> Json:
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found: Json = {key: vocabulary.name(role) for key, role in roles.items() if role in vocabulary.ids}
    templates = {key[len(TEMPLATE) + 1 :]: t for key, t in metadata.items() if key.startswith(f"{TEMPLATE}.")}
    default = metadata.get(TEMPLATE)
    if templates:
        listed = {DEFAULT: default, **templates} if default else templates
        found["chat_template"] = [{"name": name, "template": text} for name, text in listed.items()]
    elif default:
        found["chat_template"] = default
    if vocabulary.kind == "gpt2" and vocabulary.pre in UNNAMED:
        found[SPLITTING_UNKNOWN] = True
    if vocabulary.infill_names:
        found[INFILL_NAMES] = vocabulary.infill_names
    return found


def _byte_level(vocabulary: GgufVocabulary) -> Json:
    """GPT-2's kind: bytes have printable stand-ins, and the file has the merges."""
    cut = splitting(vocabulary.pre)
    if cut is None:
        raise TokenizerError(
            f"metadata tokenizer.ggml.pre = {vocabulary.pre[:40]!r} is not known: texts would be cut in "
            "another way than the model was trained with; give the original checkpoint"
        )
    if not vocabulary.merges and vocabulary.has_pieces:
        raise TokenizerError(
            "metadata tokenizer.ggml.merges is missing: texts would be cut into single bytes; convert the "
            "model again, or give the original checkpoint"
        )
    model: Json = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": cut.whole,
        "vocab": vocabulary.entries(),
        "merges": [_pair(merge) for merge in vocabulary.merges],
    }
    level: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return _assembled(
        vocabulary,
        model=model,
        normalizer=cut.normalizer(),
        pre_tokenizer=cut.pre_tokenizer(),
        decoder=level,
        begins=cut.begins,
        normalized=False,
    )


def _pair(merge: str) -> list[str]:
    """Tokens of byte-level vocabularies have no spaces."""
    parts = merge.split(" ")
    if len(parts) != 2:
        raise TokenizerError(f"metadata tokenizer.ggml.merges: {merge[:40]!r} is no pair")
    return parts


def _sentence_piece(vocabulary: GgufVocabulary) -> Json:
    """SentencePiece's byte-pair kind, where the score of a token is the rank of the merge that makes it. Text
    of unknown characters falls back to tokens of single bytes."""
    prefix = vocabulary.setting("add_space_prefix", default=True)
    return _of_pieces(vocabulary, merges_by_score(vocabulary), prefix=prefix)


def _of_pieces(vocabulary: GgufVocabulary, merges: list[list[str]], *, prefix: bool) -> Json:
    replaced: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    restored: Json = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    stripped = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    model: Json = {
        "type": "BPE",
        "dropout": None,
        "unk_token": vocabulary.name("unknown"),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary.entries(),
        "merges": merges,
    }
    return _assembled(
        vocabulary,
        model=model,
        normalizer={"type": "Sequence", "normalizers": [*before, replaced]},
        pre_tokenizer=None,
        decoder={
            "type": "Sequence",
            "decoders": [restored, {"type": "ByteFallback"}, {"type": "Fuse"}, *stripped],
        },
        begins=True,
        normalized=not prefix,  # a prefix would be put before the token, too
    )


def merges_by_score(vocabulary: GgufVocabulary) -> list[list[str]]:
    """Every way in which a token is made of two others, the highest score first; those of one token in the
    order of their parts' ids."""
    ids = vocabulary.entries()
    found: list[tuple[float, int, int, str, str]] = []
    for token in ids:
        score = -vocabulary.scores[ids[token]]
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                found.append((score, left, right, token[:cut], token[cut:]))
    found.sort()
    return [[left, right] for _, _, _, left, right in found]


def _assembled(
    vocabulary: GgufVocabulary,
    *,
    model: Json,
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    decoder: Json,
    begins: bool,
    normalized: bool,
) -> Json:
    begin = vocabulary.setting("add_bos_token", default=begins) and vocabulary.name("bos")
    end = vocabulary.setting("add_eos_token", default=False) and vocabulary.name("eos")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(normalized=normalized),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _template(vocabulary, begin or None, end or None),
        "decoder": decoder,
        "model": model,
    }


def _template(vocabulary: GgufVocabulary, begin: str | None, end: str | None) -> Json | None:
    """The template that puts special tokens around a text; None where there are none."""
    if begin is None and end is None:
        return None
    ids = {vocabulary.tokens[i]: i for i in vocabulary.ids.values()}
    before = [{"SpecialToken": {"id": begin, "type_id": 0}}] if begin else []
    after = [{"SpecialToken": {"id": end, "type_id": 0}}] if end else []
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after]
    second = [{"Sequence": {"id": "B", "type_id": 1}}]
    specials = {
        name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (begin, end) if name is not None
    }
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *second],
        "special_tokens": specials,
    }


def _spaced(vocabulary: GgufVocabulary) -> Json:
    """Gemma 4's kind: SentencePiece's, of which the file has the merges."""
    return _of_pieces(vocabulary, [_pair(merge) for merge in vocabulary.merges], prefix=False)


KINDS: dict[str, Callable[[GgufVocabulary], Json]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "gemma4": _spaced,
}
