"""Token streams and the training windows cut from them; batch i depends on (seed, i) alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.embedded.corpus import BOS_ID, EOS_ID, Corpus, Document, chats

SHARES = {"library": 0.55, "tests": 0.32, "chats": 0.13}
LONG_WINDOW_SHARE = 0.15
SHORT_WINDOW, LONG_WINDOW = 512, 1024

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stream:
    """Tokens end to end, and where a window may start: at a line, or at a chat."""

    name: str
    tokens: Tokens
    starts: Tokens
    share: float

    def window(self, rng: np.random.Generator, length: int) -> Tokens:
        """``length`` tokens from a random start; the caller puts the first token before them."""
        last = int(np.searchsorted(self.starts, len(self.tokens) - length))
        start = int(self.starts[rng.integers(last)])
        return self.tokens[start : start + length]


def build_streams(corpus: Corpus, tokenizer: Tokenizer, seed: int) -> tuple[Stream, ...]:
    """The three training streams: library code, test code, chats."""
    library = tuple(d for d in corpus.train if not d.is_test)
    tests = tuple(d for d in corpus.train if d.is_test)
    return (
        _file_stream("library", library, tokenizer, SHARES["library"]),
        _file_stream("tests", tests, tokenizer, SHARES["tests"]),
        _chat_stream("chats", chats(corpus.train, seed), tokenizer, SHARES["chats"]),
    )


def validation_streams(corpus: Corpus, tokenizer: Tokenizer, seed: int) -> tuple[Stream, ...]:
    """The same two kinds from held-out files: code and chats."""
    return (
        _file_stream("code", corpus.validation, tokenizer, 1.0),
        _chat_stream("chats", chats(corpus.validation, seed), tokenizer, 1.0),
    )


def training_batch(streams: tuple[Stream, ...], tokens: int, seed: int, step: int) -> torch.Tensor:
    """The batch of this step: rows of one length that hold ``tokens`` tokens together."""
    rng = np.random.default_rng((seed, step))
    length = LONG_WINDOW if rng.random() < LONG_WINDOW_SHARE else SHORT_WINDOW
    chosen = rng.choice(len(streams), size=tokens // length, p=[s.share for s in streams])
    rows = [np.concatenate(([BOS_ID], streams[i].window(rng, length - 1))) for i in chosen]
    return torch.from_numpy(np.stack(rows))


def validation_batches(stream: Stream, rows: int, length: int) -> list[torch.Tensor]:
    """Windows without overlap over the stream, evenly spread, ``rows`` of them at most."""
    count = len(stream.tokens) // (length - 1)
    picked = np.unique(np.linspace(0, count - 1, min(rows, count)).astype(np.int64))
    cut = [stream.tokens[i * (length - 1) : (i + 1) * (length - 1)] for i in picked]
    table = np.stack([np.concatenate(([BOS_ID], row)) for row in cut])
    return list(torch.from_numpy(table).split(8))


def _file_stream(name: str, documents: tuple[Document, ...], tokenizer: Tokenizer, share: float) -> Stream:
    """Files end to end, each closed by the end-of-file token; windows start at a line."""
    encoded = tokenizer.encode_batch([d.text for d in documents], add_special_tokens=False)
    parts = [np.array([BOS_ID, *e.ids, EOS_ID], dtype=np.int64) for e in encoded]
    tokens = np.concatenate(parts)
    ends_line = np.array(["\u010a" in _piece(tokenizer, i) for i in range(_size(tokenizer))])
    starts = np.flatnonzero(ends_line[tokens]) + 1
    return Stream(name=name, tokens=tokens, starts=starts, share=share)


def _chat_stream(name: str, texts: list[str], tokenizer: Tokenizer, share: float) -> Stream:
    """Chats end to end; windows start at a chat."""
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    lengths = np.array([len(e.ids) for e in encoded], dtype=np.int64)
    tokens = np.concatenate([np.array(e.ids, dtype=np.int64) for e in encoded])
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)[:-1]))
    return Stream(name=name, tokens=tokens, starts=starts, share=share)


def _size(tokenizer: Tokenizer) -> int:
    return tokenizer.get_vocab_size(with_added_tokens=True)


def _piece(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.id_to_token(token) or ""
