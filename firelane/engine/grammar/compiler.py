"""From a grammar's text to a matcher, under limits. Slow (milliseconds to a second): never call it from the
step loop."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.child_process import Replacements
from firelane.child_process.worker import StartWorker
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.sandbox import Sandbox
from firelane.engine.grammar.source import NAMES, check, new_matcher
from firelane.engine.grammar.trial_process import start_trial
from firelane.engine.grammar.vocabulary import GrammarVocabulary, load_vocabulary
from firelane.errors import RequestError
from firelane.wire.frames import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

PROBE_TOKENS = 4


@dataclass(eq=False)
class CompiledGrammar:
    """matcher: at the beginning of the text, to be copied by each sequence. mask: uint32
    [vocab_size // 32 + 1], what the first token may be; bit `end`: the text may be empty.
    is_spent: a copy of the matcher has run out of what all copies share: it has to be compiled again."""

    matcher: LLMatcher
    mask: NDArray[np.uint32]
    end: int
    is_spent: bool = False


class GrammarCompiler:
    """Compiles for one model. Loads llguidance and the tokenizer when it compiles the first grammar. Each
    text is first tried out in a process of its own, which may run out of time or memory, or crash."""

    def __init__(
        self,
        model_dir: Path,
        vocab_size: int,
        limits: GrammarLimits,
        start: StartWorker = start_trial,
        replaced: Replacements | None = None,
    ) -> None:
        self._start, self._replaced = start, replaced or Replacements()
        self._model_dir = model_dir
        self._vocab_size = vocab_size
        self._limits = limits
        self._idle: list[Sandbox] = []
        self._loading = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises RequestError where the grammar is wrong or too large, TokenizerError where tokenizer.json
        is, and as Sandbox.try_out. May be called by several threads."""
        self._try_out(grammar)
        vocabulary = self._loaded()
        name, end = NAMES[grammar.kind], vocabulary.end
        matcher = new_matcher(grammar, vocabulary.tokenizer, self._limits)
        mask = self._mask(matcher)
        check(matcher, grammar)
        if not _tokens(mask, end).any():
            raise RequestError(f"{name} allows no text of this model's tokens but the empty one: change it")
        self._probe(matcher, end)
        check(matcher, grammar)
        return CompiledGrammar(matcher, mask, end)

    def close(self) -> None:
        """When no thread compiles."""
        for sandbox in self._idle:
            sandbox.close()

    def _try_out(self, grammar: Grammar) -> None:
        try:
            sandbox = self._idle.pop()
        except IndexError:
            sandbox = self._new_sandbox()
        try:
            sandbox.try_out(grammar)
        finally:
            self._idle.append(sandbox)

    def _new_sandbox(self) -> Sandbox:
        return Sandbox(self._model_dir, self._vocab_size, self._limits, self._start, self._replaced)

    def _loaded(self) -> GrammarVocabulary:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = load_vocabulary(self._model_dir, self._vocab_size)
            return self._vocabulary

    def _mask(self, matcher: LLMatcher) -> NDArray[np.uint32]:
        mask = np.zeros(self._vocab_size // 32 + 1, np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask

    def _probe(self, matcher: LLMatcher, end: int) -> None:
        """A few tokens of some text: what blows up later than at once is found before a step does."""
        probe = matcher.deep_copy()
        for _ in range(PROBE_TOKENS):
            allowed = _tokens(self._mask(probe), end)
            if probe.is_stopped() or not allowed.any():
                break
            probe.consume_token(int(allowed.argmax()))
        if probe.is_error():
            raise RequestError(f"the grammar cannot be used: {probe.get_error().splitlines()[0]}")


def _tokens(mask: NDArray[np.uint32], end: int) -> NDArray[np.uint8]:
    """uint8 [end]: 1 for each token that a mask allows."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:end]
