"""Bounds of what one grammar may cost."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.request_limits import MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES

# llguidance descends into a grammar by recursion: a chain of all the rules that a text can hold has to fit.
# Pages that are not touched cost nothing.
STACK_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """schema_bytes, text_bytes: of a JSON schema, and of any other grammar's text. forced_bytes: the longest
    text that a grammar may leave no choice about at its start (each token looks at all of it again).
    compile_s: how long a request waits for its grammar's turn, and then for what compiles it, in seconds of a
    processor. trial_cpu_s, trial_bytes: processor time and address space (256 MB of it stack) to compile it
    in a process apart; trial_wall_s: how long to wait for that.
    stuck_s: of a processor, after which a compilation is taken to be one that never ends; longer than a
    process apart may take to start, and to compile.
    cached: compiled grammars that are kept. waiting: grammars that may wait to be compiled. token_cpu_s: what
    a token of a sequence may cost on average, beyond the first slack_cpu_s.

    The others bound llguidance's work: lexer_fuel and grammar_symbols on compiling (50,000 units of fuel take
    about 1 ms), step_fuel (about 14,000 units a ms), step_items and row_items (20,000 a ms) on each token,
    lexer_states (1 to 2 kB each) its memory. No fuel is spent on the complements of lexemes (`& ~`), each of
    which may double the time: there trial_cpu_s alone bounds it, and what is tried out in it is compiled in
    about the same.
    """

    schema_bytes: int = MAX_SCHEMA_BYTES
    text_bytes: int = MAX_GRAMMAR_BYTES
    forced_bytes: int = 8 << 10
    compile_s: float = 15.0
    trial_cpu_s: float = 1.0
    trial_wall_s: float = 5.0
    trial_bytes: int = 1 << 30
    stuck_s: float = 90.0
    cached: int = 64
    waiting: int = 256
    token_cpu_s: float = 0.005
    slack_cpu_s: float = 0.5
    lexer_fuel: int = 1_000_000
    grammar_symbols: int = 200_000
    step_fuel: int = 100_000
    step_items: int = 20_000
    row_items: int = 2_000
    lexer_states: int = 50_000
