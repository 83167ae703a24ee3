"""Text to token ids and back, on tokenizer.json alone. Vocabulary entries are bytes: a token may end
inside a character.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from firelane.errors import RequestError, TokenizerError
from firelane.request_limits import MAX_TOKENIZER_BYTES
from firelane.storage import read_regular
from firelane.text.tokens.growth import check_growth
from firelane.text.tokens.pattern_trial import check_patterns
from firelane.text.tokens.token_table import TokenBytes, TokenTable, byte_rule


class Tokenizer:
    """One model's tokenizer. Not changed after construction; `encode` may be called from several threads.
    The tables of pieces fill as tokens appear; there is one for each set of special tokens that is shown.
    """

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        """Raises TokenizerError where it would make texts much longer, or take very long."""
        check_growth(core)
        check_patterns(core)
        self._core = core
        added = core.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._added_ids = frozenset(added)
        vocab_size = core.get_vocab_size(with_added_tokens=True)
        self.num_ids = max([vocab_size, *(i + 1 for i in added)])
        rule = byte_rule(json.loads(core.decoder.__getstate__()) if core.decoder else None)
        self._rule = rule
        self._tables: dict[frozenset[int], TokenTable] = {}
        plain = self.token_table(frozenset())
        self.bytes_of: TokenBytes | None = None if plain is None else plain.bytes_of

    def token_table(self, visible: frozenset[int]) -> TokenTable | None:
        """The table by which tokens become text, with the special tokens `visible` shown by their names. None
        where this tokenizer's decoder does not work token by token.
        """
        if self._rule is None:
            return None
        found = self._tables.get(visible)
        if found is None:
            found = self._tables[visible] = TokenTable(
                self._core.id_to_token, self._rule, self.special_ids, visible
            )
        return found

    @property
    def core(self) -> tokenizers.Tokenizer:
        return self._core

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with special tokens, what the tokenizer's post-processor adds (such as BOS). Raises
        RequestError where the tokenizer cannot take the text.
        """
        return self._encode(text, special=add_special_tokens).ids

    def count(self, text: str) -> int:
        """The number of tokens of a text, without special ones."""
        return len(self._encode(text, special=False))

    def _encode(self, text: str, *, special: bool) -> tokenizers.Encoding:
        try:
            # The library's only form that keeps no offsets: a fifth to a third faster.
            (encoding,) = self._core.encode_batch_fast([text], add_special_tokens=special)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's, which is no Exception
                raise
            raise RequestError(f"this model's tokenizer fails on the text: {_one_line(error)}") from None
        return encoding

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return self._core.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_of(self, name: str) -> int | None:
        """The id of the vocabulary entry of this name, None where there is none."""
        return self._core.token_to_id(name)

    def is_added(self, name: str) -> bool:
        """Whether a token of this name was added to the vocabulary, special or not."""
        return self._core.token_to_id(name) in self._added_ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token as reports show it: special tokens by name, unknown ids empty."""
        if token in self.special_ids or self.bytes_of is None:
            return (self._core.id_to_token(token) or "").encode()
        return self.bytes_of[token]

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", "replace")

    def check_vocab(self, vocab_size: int | None) -> None:
        """Raises TokenizerError when the tokenizer knows ids that the model has no embedding for. None: not
        known yet."""
        if vocab_size is not None and self.num_ids > vocab_size:
            raise TokenizerError(
                f"the tokenizer has {self.num_ids} ids but the model's vocabulary has {vocab_size}: "
                "tokenizer.json is not of this model"
            )


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """Raises TokenizerError when tokenizer.json is missing or damaged."""
    path = model_dir / "tokenizer.json"
    if not path.exists():
        raise TokenizerError(
            f"no tokenizer.json in {model_dir}, nor a tiktoken.model or tekken.json: add the one that the "
            "model was trained with"
        )
    try:
        core = tokenizers.Tokenizer.from_buffer(read_regular(path, MAX_TOKENIZER_BYTES))
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): make it readable") from error
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} is not a tokenizer: {_one_line(error)}; fetch it again") from error
    core.no_truncation()
    core.no_padding()
    return Tokenizer(core)


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:200]
