"""Random rows of logits with random requests, for every sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from firelane.contract import MAX_LOGPROBS
from tests.backends.sampling_harness import VOCABS, Request, mask_of


def logits_of(vocab: int, seed: int, *, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def sometimes(off: float, strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(off), strategy)


@st.composite
def cases(draw: st.DrawFn, vocabs: tuple[int, ...] = VOCABS) -> tuple[np.ndarray, Request]:
    vocab = draw(st.sampled_from(vocabs))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]))
    logits = logits_of(vocab, draw(st.integers(0, 2**32 - 1)), scale=scale)
    if draw(st.booleans()):
        logits = np.round(logits * 2) / 2  # many ties
    for value in draw(st.lists(st.sampled_from([np.nan, -np.inf, 0.0, -0.0, 20.0]), max_size=3)):
        logits[draw(st.integers(0, vocab - 1)) :: draw(st.integers(1, vocab))] = value
    ids = st.integers(0, vocab - 1)
    history = draw(st.lists(ids, min_size=1, max_size=20))
    bias = draw(st.dictionaries(ids, st.floats(-5, 5, width=32), max_size=4))
    masked = draw(st.sampled_from(["not", "few", "most"]))
    few = draw(st.sets(ids, min_size=1, max_size=8))
    mask = mask_of(
        few if masked == "few" else set(range(vocab)) - few, vocab, draw(st.integers(0, 2**32 - 1))
    )
    return logits, Request(
        temperature=draw(sometimes(0.0, st.floats(0.0625, 4, width=32))),
        top_p=draw(sometimes(1.0, st.floats(0, 1, width=32))),
        min_p=draw(sometimes(0.0, st.floats(0, 1, width=32))),
        top_k=draw(sometimes(0, st.integers(-1, vocab + 1))),
        repetition_penalty=draw(sometimes(1.0, st.floats(0.5, 2, width=32))),
        presence_penalty=draw(sometimes(0.0, st.floats(-2, 2, width=32))),
        frequency_penalty=draw(sometimes(0.0, st.floats(-2, 2, width=32))),
        logprobs=draw(st.integers(-1, MAX_LOGPROBS)),
        seed=draw(st.integers(0, 2**64 - 1)),
        tokens=tuple(history),
        position=len(history) - 1,
        prompt_len=draw(st.integers(0, len(history))),
        stop_ids=tuple(draw(st.lists(ids, max_size=3))),
        stop_from=draw(st.integers(0, 30)),
        bias_ids=tuple(bias),
        bias_values=tuple(bias.values()),
        mask=b"" if masked == "not" else mask,
    )
