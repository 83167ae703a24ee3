"""The model's tokens as llguidance knows them, from tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from firelane.errors import TokenizerError
from firelane.request_limits import MAX_TOKENIZER_BYTES
from firelane.storage import read_regular

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Parts of the vocabulary that a mask takes or leaves as one where the grammar allows all such text. This one
# is not in llguidance's own list: words in regular expressions take a third of the time.
SLICES = ("[a-z]+",)
END = "<|firelane: the grammar is satisfied|>"


@dataclass(frozen=True)
class GrammarVocabulary:
    """end: the bit of a mask that says that the text may end here. It belongs to a token that we add, so that
    it means the same whatever ends a sequence of this model, if anything does."""

    tokenizer: LLTokenizer
    end: int


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = []


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Tokens(msgspec.Struct):
    added_tokens: list[_Added] = []


def load_vocabulary(model_dir: Path, vocab_size: int) -> GrammarVocabulary:
    """Masks have vocab_size // 32 + 1 words; ids that the tokenizer does not have are never allowed. Takes
    about 0.8 s for 128,000 tokens, and holds the interpreter. Raises TokenizerError."""
    from llguidance import LLTokenizer

    path = model_dir / "tokenizer.json"
    try:
        text, end = _with_end(read_regular(path, MAX_TOKENIZER_BYTES))
        if end > vocab_size:
            raise TokenizerError(f"{path} has {end} ids but the model's vocabulary has {vocab_size}")
        tokenizer = LLTokenizer(text, n_vocab=vocab_size + 1, eos_token=end, slices=slices())
    except (OSError, ValueError, RuntimeError) as error:
        raise TokenizerError(f"{path} cannot be used for structured output: {error}") from error
    if tokenizer.vocab_size != vocab_size + 1 or tokenizer.tokenize_str(END, parse_special=True) != [end]:
        raise TokenizerError(f"{path} cannot be used for structured output: its ids have gaps")
    return GrammarVocabulary(tokenizer, end)


def slices() -> list[str]:
    from llguidance import LLTokenizer

    return [*LLTokenizer.general_slices(), *SLICES]


def special_tokens(model_dir: Path) -> list[str]:
    """Special tokens that a grammar may name. Raises OSError or ValueError."""
    added = msgspec.json.decode(
        read_regular(model_dir / "tokenizer.json", MAX_TOKENIZER_BYTES), type=_Tokens
    ).added_tokens
    return [token.content for token in added if token.special]


def _with_end(data: bytes) -> tuple[str, int]:
    """tokenizer.json with one more special token, and its id: the next one, as the tokenizers library
    numbers them. Raises msgspec.DecodeError (a ValueError)."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    vocab = msgspec.json.decode(fields["model"], type=_TokenizerModel).vocab if "model" in fields else []
    own = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    added = fields.get("added_tokens", msgspec.Raw(b"[]"))
    entries = msgspec.json.decode(added, type=list[msgspec.Raw])
    end = 1 + max([*own, *(entry.id for entry in msgspec.json.decode(added, type=list[_Added]))], default=-1)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    entry = {"id": end, "content": END, **flags, "special": True}
    fields["added_tokens"] = msgspec.Raw(msgspec.json.encode([*entries, entry]))
    return msgspec.json.encode(fields).decode(), end
