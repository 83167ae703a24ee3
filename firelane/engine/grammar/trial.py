"""python -m firelane.engine.grammar.trial FD: try out grammars for the process at the other end of the socket
FD. The first frame is a Trial, each later one a Grammar, both as JSON; the answer is what is wrong with the
grammar, or empty.

A text that takes too long or too much memory ends this process, as one does that overruns the stack.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firelane.child_process import limit_memory
from firelane.child_process.own import as_grandchild
from firelane.child_process.worker import framed, receive
from firelane.engine.grammar.limits import STACK_BYTES, GrammarLimits
from firelane.engine.grammar.source import check, new_matcher
from firelane.engine.grammar.vocabulary import slices, special_tokens
from firelane.errors import RequestError
from firelane.wire.frames import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

PROBE_BYTES = 8
Pick = Callable[[list[int], int], int]
PATHS: tuple[Pick, ...] = (
    lambda allowed, _: allowed[len(allowed) // 2],
    lambda allowed, _: allowed[0],
    lambda allowed, _: allowed[-1],
    lambda allowed, turn: allowed[7 * turn % len(allowed)],
)
"""Texts that are begun, by the byte that each takes of those that are allowed: what never ends in one of them
shall do so here."""


class Trial(msgspec.Struct, array_like=True):
    """The model whose grammars are tried out."""

    limits: GrammarLimits
    model_dir: str
    vocab_size: int


class _Bytes:
    """A vocabulary of bytes, the end, and special tokens."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, specials: Sequence[str], vocab_size: int) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [token.encode() for token in ("<end>", *specials)]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.tokens += [b""] * (vocab_size - len(self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def byte_tokenizer(specials: Sequence[str], vocab_size: int) -> LLTokenizer:
    """Quick to make; with the model's special tokens and ids, since a grammar may name them, and with its
    slices, whose share in the cost of compiling no vocabulary changes."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes(specials, vocab_size)), slices=slices())


def try_out(grammar: Grammar, tokenizer: LLTokenizer, limits: GrammarLimits) -> str:
    """The fault of a grammar; "" = none. Compiles with the stack that the compiler has, and takes some bytes
    with the stack that the step loop has."""
    made: list[LLMatcher | str] = []

    def make() -> None:
        try:
            made.append(new_matcher(grammar, tokenizer, limits))
        except RequestError as error:
            made.append(str(error))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        return "the grammar cannot be compiled: it makes the compiler fail"
    matcher = made[0]
    if isinstance(matcher, str):
        return matcher
    try:
        for pick in PATHS:
            begun = matcher.deep_copy()
            _begin_text(begun, pick)
            check(begun, grammar)
    except RequestError as error:
        return str(error)
    return ""


def _begin_text(matcher: LLMatcher, pick: Pick) -> None:
    for turn in range(PROBE_BYTES):
        allowed = [i for i, bit in enumerate(matcher.compute_logit_bias()[:256]) if bit]
        if matcher.is_stopped() or not allowed:
            return
        matcher.consume_token(pick(allowed, turn))


def allow_seconds(cpu_s: float) -> None:
    """Allow so much processor time from now on; then SIGPROF ends the process. RLIMIT_CPU knows only whole
    seconds."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def main(arguments: list[str]) -> int:
    sock = as_grandchild(arguments[0])
    trial = msgspec.json.decode(receive(sock), type=Trial)
    limits, specials = trial.limits, list[str]()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # may be ignored there
    limit_memory(limits.trial_bytes)
    threading.stack_size(STACK_BYTES)
    with contextlib.suppress(OSError, ValueError):  # the compiler says what is wrong with the file
        specials = special_tokens(Path(trial.model_dir))
    tokenizer = byte_tokenizer(specials, trial.vocab_size)
    sock.sendall(framed(b""))
    while text := receive(sock):
        allow_seconds(limits.trial_cpu_s)
        wrong = try_out(msgspec.json.decode(text, type=Grammar), tokenizer, limits)
        sock.sendall(framed(wrong.encode("utf-8", "replace")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
