"""Byte-pair encodings that are published as ranks alone, in the form of the tokenizers library.

Such a vocabulary says of each token its bytes and its rank: of all neighbours whose bytes together are a
token, those of the lowest rank merge first, and a piece of text that is a token is one. The library wants the
pairs instead: every way in which a token can be made of two is one, in the order of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firelane.text.tokens.detokenize import byte_level_table


@dataclass(frozen=True, kw_only=True)
class RankedVocabulary:
    """tokens: bytes by rank. pattern: what cuts a text into pieces. specials: names and ids of special
    tokens. first_id: of the token of rank 0. begin: the special token that a text begins with, "" for none.
    """

    tokens: Sequence[bytes]
    pattern: str
    specials: Mapping[str, int]
    first_id: int = 0
    begin: str = ""

    def check(self) -> None:
        """Raises ValueError saying what is wrong."""
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError("a token is there twice")
        missing = 256 - len({token for token in self.tokens if len(token) == 1})
        if missing:
            raise ValueError(f"{missing} of the 256 bytes are no tokens: not every text could be written")
        if len(set(self.specials.values())) != len(self.specials):
            raise ValueError("an id of a special token is there twice")
        own = range(self.first_id, self.first_id + len(self.tokens))
        clash = next((name for name, token in self.specials.items() if token in own), None)
        if clash is not None:
            raise ValueError(f"special token {clash[:40]!r} has the id of a token of text")

    def to_json(self) -> bytes:
        """A tokenizer.json. Raises ValueError."""
        self.check()
        names = _Names()
        vocab = {names.of(token): self.first_id + rank for rank, token in enumerate(self.tokens)}
        clash = next((name for name in self.specials if name in vocab), None)
        if clash is not None:
            raise ValueError(f"special token {clash[:40]!r} is a token of text, too")
        model = {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": vocab | dict(self.specials),
            "merges": [f"{names.of(left)} {names.of(right)}" for left, right in self.merges()],
        }
        return json.dumps(self._around(model), ensure_ascii=False).encode()

    def merges(self) -> Iterator[tuple[bytes, bytes]]:
        """All pairs of tokens that make a token, by its rank; of one token by theirs."""
        ranks = {token: rank for rank, token in enumerate(self.tokens)}
        for token in self.tokens:
            halves = ((token[:at], token[at:]) for at in range(1, len(token)))
            pairs = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
            yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))

    def _around(self, model: dict[str, Any]) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = sorted(self.specials.items(), key=lambda item: item[1])
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        cut = {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
        return {
            "version": "1.0",
            "added_tokens": [{"id": i, "content": name, **flags, "special": True} for name, i in added],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, byte_level]},
            "post_processor": self._post_processor(),
            "decoder": byte_level,
            "model": model,
        }

    def _post_processor(self) -> dict[str, Any] | None:
        if not self.begin:
            return None
        token = {"SpecialToken": {"id": self.begin, "type_id": 0}}
        text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        ids = {"id": self.begin, "ids": [self.specials[self.begin]], "tokens": [self.begin]}
        return {
            "type": "TemplateProcessing",
            "single": [token, text[0]],
            "pair": [token, *text],
            "special_tokens": {self.begin: ids},
        }


class _Names:
    """Tokens as byte-level vocabularies write them: a printable character for each byte."""

    def __init__(self) -> None:
        self._characters = {byte: character for character, byte in byte_level_table().items()}

    def of(self, token: bytes) -> str:
        return "".join([self._characters[byte] for byte in token])
