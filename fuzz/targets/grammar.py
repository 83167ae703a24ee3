"""Grammars: each compiles or is refused in one line and bounded time, and one that compiles can be followed;
the next one compiles as before.
"""

from __future__ import annotations

import atexit
import functools
import json
from pathlib import Path

import numpy as np

import firelane.models
from firelane.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import check_size
from firelane.errors import RequestError
from firelane.wire.frames import Grammar
from fuzz import grammar_texts
from fuzz.draw import Draw
from fuzz.target import Target

EMBEDDED = Path(firelane.models.__file__).parent / "embedded"
MOST_TOKENS = 12


def run(data: bytes) -> None:
    draw = Draw(data)
    made = grammar_texts.grammar(draw)
    try:
        check_size(made, GrammarLimits())
        follow(compiler().compile(made), draw)
    finally:
        compiler().compile(Grammar("regex", "(yes|no)"))


@functools.cache
def compiler() -> GrammarCompiler:
    """One for all cases of this process."""
    vocab_size = json.loads((EMBEDDED / "config.json").read_text())["vocab_size"]
    made = GrammarCompiler(EMBEDDED, vocab_size, GrammarLimits())
    atexit.register(made.close)
    return made


def follow(compiled: CompiledGrammar, draw: Draw) -> None:
    """A text of some tokens, each one that the mask allows: the matcher takes it, or has run out."""
    matcher, mask = compiled.matcher.deep_copy(), compiled.mask.copy()
    for _ in range(MOST_TOKENS):
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: compiled.end])
        if not allowed.size or matcher.is_stopped():
            return
        taken = matcher.consume_token(int(draw.choice(allowed)))
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            assert "\n" not in matcher.get_error().splitlines()[0]
            return
        assert taken or matcher.is_stopped()


TARGET = Target(run=run, refusals=(RequestError,), most_bytes=256, limit_s=10.0)
