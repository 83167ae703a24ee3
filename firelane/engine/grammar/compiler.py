"""From a grammar's text to a matcher, under limits. Slow (milliseconds to a second): never call it from the
step loop."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.vocabulary import Vocabulary, load_vocabulary
from firelane.errors import RequestError
from firelane.wire.frames import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

NAMES = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "lark": "the grammar",
    "gbnf": "the grammar",
}
# A space, or a new line with its indentation: a model cannot lose itself in white space.
WHITESPACE = r" ?|\r?\n[ \t]{0,40}"
PROBE_TOKENS = 4
MAX_DETAIL = 300


@dataclass(frozen=True)
class CompiledGrammar:
    """matcher: at the beginning of the text, to be copied by each sequence. mask: uint32
    [vocab_size // 32 + 1], what the first token may be; bit `end`: the text may be empty."""

    matcher: LLMatcher
    mask: NDArray[np.uint32]
    end: int


class GrammarCompiler:
    """Compiles for one model. Loads llguidance and the tokenizer when it compiles the first grammar."""

    def __init__(self, model_dir: Path, vocab_size: int, limits: GrammarLimits) -> None:
        self._model_dir = model_dir
        self._vocab_size = vocab_size
        self._limits = limits
        self._vocabulary: Vocabulary | None = None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises RequestError where the grammar is wrong or too large, TokenizerError where tokenizer.json
        is."""
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self._model_dir, self._vocab_size)
        from llguidance import LLMatcher

        name, limits = NAMES[grammar.kind], self._limits
        source = _source(grammar)
        matcher = LLMatcher(self._vocabulary.tokenizer, source, log_level=0, limits=self._parser_limits())
        _check(matcher, name)
        if warnings := matcher.get_grammar_warnings():
            raise RequestError(f"{name} cannot be honoured in full: {_one_line(warnings[0])}; leave that out")
        forced = len(matcher.compute_ff_bytes())
        if forced > limits.forced_bytes:
            raise RequestError(
                f"{name} fixes {forced} bytes of the text: at most {limits.forced_bytes} are taken at once"
            )
        mask = self._mask(matcher)
        _check(matcher, name)
        if not _tokens(mask, self._vocabulary.end).any():
            raise RequestError(f"{name} allows no text of this model's tokens but the empty one: change it")
        self._probe(matcher, self._vocabulary.end, name)
        return CompiledGrammar(matcher, mask, self._vocabulary.end)

    def _parser_limits(self) -> LLParserLimits:
        from llguidance import LLParserLimits

        limits = self._limits
        return LLParserLimits(
            initial_lexer_fuel=limits.lexer_fuel,
            max_grammar_size=limits.grammar_symbols,
            step_lexer_fuel=limits.step_fuel,
            step_max_items=limits.step_items,
            max_lexer_states=limits.lexer_states,
            verbose_errors=False,
        )

    def _mask(self, matcher: LLMatcher) -> NDArray[np.uint32]:
        mask = np.zeros(self._vocab_size // 32 + 1, np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask

    def _probe(self, matcher: LLMatcher, end: int, name: str) -> None:
        """A few tokens of some text: what blows up later than at once is found before a step does."""
        probe = matcher.deep_copy()
        for _ in range(PROBE_TOKENS):
            allowed = _tokens(self._mask(probe), end)
            if probe.is_stopped() or not allowed.any():
                break
            probe.consume_token(int(allowed.argmax()))
        _check(probe, name)


def _tokens(mask: NDArray[np.uint32], end: int) -> NDArray[np.uint8]:
    """uint8 [end]: 1 for each token that a mask allows."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:end]


def check_size(grammar: Grammar, limits: GrammarLimits) -> None:
    """Cheap enough for the step loop. Raises RequestError."""
    most = limits.schema_bytes if grammar.kind == "json_schema" else limits.text_bytes
    size = len(grammar.text.encode())
    if size > most:
        raise RequestError(f"{NAMES[grammar.kind]} has {size} bytes: at most {most} are taken")


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's own form."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = grammar.text
    try:
        if grammar.kind == "json_schema":
            options = {"whitespace_pattern": WHITESPACE, "lenient": False}
            return LLMatcher.grammar_from_json_schema(text, overrides=options)  # pyright: ignore
        if grammar.kind == "regex":
            return LLMatcher.grammar_from_regex(text)
        return LLMatcher.grammar_from_lark(gbnf_to_lark(text) if grammar.kind == "gbnf" else text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{NAMES[grammar.kind]} is not valid: {_one_line(str(error))}") from error


def _check(matcher: LLMatcher, name: str) -> None:
    if matcher.is_error():
        raise RequestError(f"{name} cannot be used: {_one_line(matcher.get_error())}")


def _one_line(message: str) -> str:
    """What llguidance says, without its picture of the place; of a regular expression's fault the cause."""
    cause = re.search(r"^error: (.+)", message, re.MULTILINE)
    place = re.match(r"at \d+\(\d+\): ", message)
    text = cause[1] if cause else message.removeprefix(place[0] if place else "").split("\n")[0]
    return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "…"
