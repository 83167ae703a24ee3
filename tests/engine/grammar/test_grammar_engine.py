"""Requests that wait for their grammar in an engine that serves others meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gated_compiler import regex
from hostile_grammars import conjunction

from firelane.engine.grammar.compiler import GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.queue import GrammarQueue
from firelane.errors import UsageError
from firelane.wire.frames import Grammar

EMBEDDED = Path(__file__).parents[3] / "firelane" / "models" / "embedded"


class Frozen:
    """A matcher that allows what it is given, for ever."""

    def deep_copy(self):
        return self

    def consume_token(self, token):  # noqa: ARG002
        return True

    def is_stopped(self):
        return False

    is_error = is_stopped

    def unsafe_compute_mask_ptr(self, pointer, size):
        pass


class Compiled:
    def __init__(self) -> None:
        self.matcher, self.end = Frozen(), 50
        self.mask = np.array([1 << 7, 0], np.uint32)


@pytest.fixture
def engine(driver, compiler, queue):
    compile_text = compiler.compile
    compiler.compile = lambda grammar: compile_text(grammar) and Compiled()
    return driver(prerequisites=queue)


def test_the_engine_serves_others_meanwhile(engine, compiler, request_of, alone) -> None:
    plain = request_of(1, range(5), max_tokens=6)
    engine.submit(request_of(2, range(4), max_tokens=3, grammar=regex("a")), plain)
    while 1 not in engine.reasons:
        engine.step()
    assert engine.tokens[1] == alone(plain, 64)[0]
    assert 2 not in engine.cached
    assert not engine.core.is_idle
    compiler.gate("a").set()
    engine.run(20_000)
    assert engine.tokens[2] == [7, 7, 7]
    assert engine.reasons[2] == "length"


def test_the_engine_serves_others_while_a_hostile_grammar_is_tried_out(driver, request_of, alone) -> None:
    limits = GrammarLimits(trial_wall_s=600.0, compile_s=600.0)  # the machine may be busy
    queue = GrammarQueue(GrammarCompiler(EMBEDDED, 4096, limits), limits)
    d = driver(prerequisites=queue)
    plain = request_of(1, range(5), max_tokens=6)
    d.submit(request_of(2, range(4), grammar=Grammar("lark", conjunction(24))), plain)
    while 1 not in d.reasons:
        d.step()
    assert 2 not in d.rejected
    d.run(100_000)
    assert d.tokens[1] == alone(plain, 64)[0]
    assert "takes more than 1 s or 1024 MB to compile: simplify it" in d.rejected[2]
    queue.close()
    queue._workers.join()


def test_abort_of_a_request_that_waits_for_its_grammar(engine, compiler, request_of) -> None:
    engine.submit(*(request_of(i, range(4), grammar=regex("a")) for i in (1, 2, 3)))
    engine.step()
    engine.abort(2)
    engine.step()
    assert engine.reasons == {2: "abort"}
    compiler.gate("a").set()
    engine.run(20_000)
    assert engine.reasons == {1: "length", 2: "abort", 3: "length"}


def test_an_id_in_use_by_a_request_that_waits(engine, compiler, request_of) -> None:
    engine.submit(request_of(1, range(4), grammar=regex("a")), request_of(1, range(4)))
    engine.step()
    assert "in use" in engine.rejected[1]
    compiler.gate("a").set()
    engine.run(20_000)
    assert engine.reasons == {1: "length"}


def test_abort_all_reaches_those_that_wait(engine, compiler, request_of) -> None:
    engine.submit(request_of(1, range(4), grammar=regex("a")), request_of(2, range(4), max_tokens=50))
    engine.step()
    engine.core.abort_all()
    compiler.gate("a").set()
    engine.run(20_000)
    assert engine.reasons == {1: "abort", 2: "abort"}


def test_a_wrong_grammar_is_rejected(engine, compiler, request_of) -> None:
    compiler.gate("bad one").set()
    engine.submit(request_of(1, range(4), grammar=regex("bad one")), request_of(2, range(4)))
    engine.run(20_000)
    assert engine.rejected == {1: "bad one is wrong"}
    assert engine.reasons == {2: "length"}
    engine.submit(request_of(3, range(4), grammar=regex("bad one")))
    engine.step()
    assert engine.rejected[3] == "bad one is wrong"


def test_the_channel_is_asked_to_come_back_soon(engine, compiler, request_of) -> None:
    waits: list[float | None] = []
    receive = engine.channel.receive
    engine.channel.receive = lambda wait_s: waits.append(wait_s) or receive(wait_s)
    engine.step()
    engine.submit(request_of(1, range(4), grammar=regex("a")))
    engine.step()
    engine.step()
    compiler.gate("a").set()
    engine.run(20_000)
    assert waits[0] is None
    assert 0 < waits[2] <= 0.005
    assert waits[-1] == 0.0


def test_an_engine_without_grammars_says_so(driver, request_of) -> None:
    d = driver()
    d.submit(request_of(1, range(4), grammar=regex("a")))
    d.step()
    assert "takes no grammars" in d.rejected[1]


def test_a_choice_of_two_grammars_is_refused() -> None:
    from firelane.llm.params import SamplingParams, wire_grammar

    assert wire_grammar(SamplingParams(json_schema={"a": 1})) == Grammar("json_schema", '{"a": 1}')
    assert wire_grammar(SamplingParams()) is None
    with pytest.raises(UsageError, match="json_schema and regex are both given"):
        wire_grammar(SamplingParams(json_schema="{}", regex="a"))
