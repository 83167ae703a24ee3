"""GgufVocabulary: what a GGUF file's metadata says of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from firelane.errors import TokenizerError

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
END_NAMES = frozenset(
    [
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
        "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>", "<|end_of_text|>", "<turn|>", "[e~[",
    ]
)  # fmt: skip
"""Special tokens that end a turn, of models whose file names only one of theirs."""
INFILL_ROLES = {
    "prefix": "prefix", "suffix": "suffix", "middle": "middle",
    "fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle",
    "fim_pad": "pad", "fim_rep": "repo", "fim_sep": "file",
}  # fmt: skip
"""Marks of texts with a gap, by their roles in a file: newer names come last."""


@dataclass(frozen=True)
class GgufVocabulary:
    """tokens, types and scores: by id; without types all are normal. ids: of special tokens by their roles:
    bos, eos, eot, eom, unknown, padding, and those of INFILL_ROLES."""

    kind: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    ids: Mapping[str, int]
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> GgufVocabulary:
        """Raises TokenizerError naming the entry that is missing, or of another kind than it has to be."""
        tokens = _list(metadata, "tokens", str)
        if not tokens:
            raise TokenizerError(f"metadata {PREFIX}tokens is missing: the file has no tokenizer")
        types = _list(metadata, "token_type", int) or [NORMAL] * len(tokens)
        scores = _list(metadata, "scores", float) or [0.0] * len(tokens)
        if not len(tokens) == len(types) == len(scores):
            raise TokenizerError(f"metadata {PREFIX}token_type or scores: not one for each of the tokens")
        return cls(
            kind=str(metadata.get(f"{PREFIX}model", "")),
            pre=str(metadata.get(f"{PREFIX}pre", "")),
            tokens=tokens,
            types=types,
            scores=scores,
            merges=_list(metadata, "merges", str),
            ids=_ids(metadata, len(tokens)),
            settings={key[len(PREFIX) :]: v for key, v in metadata.items() if isinstance(v, bool)},
        )

    @property
    def has_pieces(self) -> bool:
        """Whether texts are made of more than single characters and special tokens."""
        named = zip(self.tokens, self.types, strict=True)
        return any(kind == NORMAL and len(token) > 1 for token, kind in named)

    def name(self, role: str) -> str | None:
        """The text of a special token, None where there is none of this role."""
        return self.tokens[self.ids[role]] if role in self.ids else None

    @property
    def infill_names(self) -> dict[str, str]:
        """Names of marks of texts with a gap, by what they are for."""
        return {part: self.tokens[self.ids[role]] for role, part in INFILL_ROLES.items() if role in self.ids}

    def setting(self, key: str, *, default: bool) -> bool:
        return bool(self.settings.get(key, default))

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end a sequence."""
        named = {self.ids[role] for role in ("eos", "eot", "eom") if role in self.ids}
        controls = (i for i, kind in enumerate(self.types) if kind == CONTROL)
        return sorted(named | {i for i in controls if self.tokens[i] in END_NAMES})

    def added_tokens(self, *, normalized: bool) -> list[dict[str, Any]]:
        """Tokens that are found in a text before it is cut, as tokenizer.json lists them. normalized: whether
        those that are not special are found in the text as it is after the normaliser."""
        return [
            {
                "id": i,
                "content": self.tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": normalized and kind == USER_DEFINED,
                "special": kind != USER_DEFINED,
            }
            for i, kind in enumerate(self.types)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN) and self.tokens[i]
        ]

    def entries(self) -> dict[str, int]:
        """Ids by token, without those that were only added to fill the table."""
        return {token: i for i, token in enumerate(self.tokens) if self.types[i] != UNUSED}


def _list(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    found = metadata.get(PREFIX + key, [])
    if not isinstance(found, list) or not all(type(entry) is kind for entry in cast(list[Any], found)):
        raise TokenizerError(f"metadata {PREFIX}{key} is no list of {kind.__name__}")
    return cast(list[Any], found)


def _ids(metadata: Mapping[str, Any], count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for role in ("bos", "eos", "eot", "eom", "unknown", "padding", *INFILL_ROLES):
        key = f"{PREFIX}{role}_token_id"
        value = metadata.get(key)
        if value is None or value == 0xFFFFFFFF:
            continue
        if not isinstance(value, int) or not 0 <= value < count:
            raise TokenizerError(f"metadata {key} = {str(value)[:40]}: there are {count} tokens")
        found[role] = value
    return found
