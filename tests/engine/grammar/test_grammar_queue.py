"""Requests that wait for their grammar: a compiler that is told when to finish, and no model."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from gated_compiler import PATIENCE_S, Sequence, regex, taken

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.queue import GrammarQueue, ThreadStopwatch
from firelane.errors import FirelaneError, MachineError, RequestError
from firelane.wire.frames import Grammar


def test_nothing_is_started_before_the_first_grammar(queue) -> None:
    assert not queue.is_waiting
    assert queue.take() == []
    assert queue._workers._threads == []


def test_a_grammar_is_compiled_once_for_all_that_ask(compiler, queue) -> None:
    sequences = [Sequence(i) for i in range(3)]
    for sequence in sequences:
        assert not queue.compile(sequence, regex("a"))
    assert queue.is_waiting
    assert queue.get(1) is sequences[1]
    assert queue.take() == []
    compiler.gate("a").set()
    assert taken(queue, 3) == {0: "", 1: "", 2: ""}
    assert not queue.is_waiting
    late = Sequence(9)
    assert queue.compile(late, regex("a"))  # kept
    assert all(s.constraint.compiled == {"text": "a"} for s in (*sequences, late))
    assert len({id(s.constraint) for s in (*sequences, late)}) == 4
    assert compiler.compiled == ["a"]


def test_what_is_wrong_is_remembered(compiler, queue) -> None:
    compiler.gate("bad").set()
    queue.compile(Sequence(1), regex("bad"))
    assert taken(queue, 1) == {1: "bad is wrong"}
    with pytest.raises(RequestError, match="bad is wrong"):
        queue.compile(Sequence(2), regex("bad"))
    assert compiler.compiled == ["bad"]
    assert not queue.is_waiting


def test_what_the_machine_had_no_time_for_is_tried_again(compiler, queue) -> None:
    compiler.gate("busy").set()
    for i in range(2):
        assert not queue.compile(Sequence(i), regex("busy"))
        assert taken(queue, 1) == {i: "try again"}
    assert compiler.compiled == ["busy", "busy"]


def test_a_defect_of_the_compiler_rejects_and_the_thread_goes_on(compiler, queue) -> None:
    for text in ("panic", "a"):
        compiler.gate(text).set()
    queue.compile(Sequence(1), regex("panic"))
    queue.compile(Sequence(2), regex("a"))
    found = taken(queue, 2)
    assert "internal error: SystemExit: a panic" in found[1]
    assert found[2] == ""


def test_a_defect_is_the_engines_fault_and_in_the_log_and_not_remembered(compiler, queue, caplog) -> None:
    compiler.gate("panic").set()
    for i in range(2):
        assert not queue.compile(Sequence(i), regex("panic"))
        (error,) = errors_of(queue)
        assert (type(error), error.status) == (FirelaneError, 500)
    assert [record.message.split()[0] for record in caplog.records] == ["grammar_not_compiled"] * 2


def test_processes_that_are_lost_are_no_fault_of_the_grammar(compiler, queue) -> None:
    compiler.gate("lost").set()
    for i in range(2):
        assert not queue.compile(Sequence(i), regex("lost"))
        (error,) = errors_of(queue)
        assert error.status == 503


def test_an_engine_that_can_try_out_nothing_any_more_ends(compiler, queue) -> None:
    compiler.gate("none left").set()
    queue.compile(Sequence(1), regex("none left"))
    with pytest.raises(MachineError, match="none left"):
        errors_of(queue)


def errors_of(queue: GrammarQueue) -> list[FirelaneError | None]:
    """Wait for the next requests that are done; return their errors."""
    until_s = time.monotonic() + PATIENCE_S
    while not (found := queue.take()):
        assert time.monotonic() < until_s
    return [error for _, error in found]


def test_the_least_recently_used_is_forgotten(compiler, queue) -> None:
    for text in "abc":
        compiler.gate(text).set()
    for i, text in enumerate("abac"):
        if not queue.compile(Sequence(i), regex(text)):
            taken(queue, 1)
    assert queue.compile(Sequence(7), regex("a"))
    assert not queue.compile(Sequence(8), regex("b"))
    assert taken(queue, 1) == {8: ""}
    assert compiler.compiled == ["a", "b", "c", "b"]


def test_kinds_do_not_share(compiler, queue) -> None:
    compiler.gate("a").set()
    queue.compile(Sequence(1), regex("a"))
    taken(queue, 1)
    assert not queue.compile(Sequence(2), Grammar("lark", "a"))
    taken(queue, 1)


def test_a_request_that_left_is_not_answered_and_not_compiled(compiler, queue) -> None:
    first, second = Sequence(1), Sequence(2)
    queue.compile(first, regex("a"))
    queue.compile(second, regex("b"))
    queue.abort(second)
    assert queue.get(2) is None
    compiler.gate("a").set()
    assert taken(queue, 1) == {1: ""}
    third = Sequence(3)
    compiler.gate("b").set()
    assert compiler.compiled == ["a"]
    queue.compile(third, regex("b"))
    assert taken(queue, 1) == {3: ""}
    assert compiler.compiled == ["a", "b"]


def test_a_tenant_does_not_wait_for_the_costly_grammars_of_another(compiler, queue) -> None:
    for i, (text, tenant) in enumerate([("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")]):
        queue.compile(Sequence(i, tenant), regex(text))
    for text, request_id in (("c", 2), ("a", 0), ("b", 1), ("d", 3)):
        compiler.gate("d" if text == "a" else text).set()  # before its turn, which changes nothing
        compiler.gate(text).set()
        assert taken(queue, 1) == {request_id: ""}
    assert compiler.compiled == ["c", "a", "b", "d"]


FLOOD, OTHER = ("10.0.0.1", "1"), ("10.0.0.2", "7")


def test_a_client_without_a_key_does_not_wait_for_those_of_another_address(compiler, queue) -> None:
    asked = [("a", FLOOD), ("b", ("10.0.0.1", "2")), ("c", OTHER)]
    for i, (text, client) in enumerate(asked):
        queue.compile(Sequence(i), regex(text), client)
    for text in "bc":
        compiler.gate(text).set()
    assert taken(queue, 1) == {2: ""}
    assert compiler.compiled == ["c"]  # what comes from one address comes one after the other
    compiler.gate("a").set()
    taken(queue, 2)
    assert compiler.compiled == ["c", "a", "b"]


def test_connections_of_one_address_take_turns_however_much_each_asks(compiler, queue) -> None:
    other = ("10.0.0.1", "2")
    for i, (text, client) in enumerate([("a", FLOOD), ("b", FLOOD), ("c", FLOOD), ("d", other)]):
        queue.compile(Sequence(i), regex(text), client)
    for text in "abcd":
        compiler.gate(text).set()
    taken(queue, 4)
    assert compiler.compiled == ["a", "b", "d", "c"]  # `a` ran already


def test_two_grammars_are_compiled_at_once(compiler, queue) -> None:
    for i, text in enumerate("abc"):
        queue.compile(Sequence(i, f"tenant {i}"), regex(text))
    compiler.gate("c").set()
    compiler.gate("b").set()
    assert taken(queue, 2) == {1: "", 2: ""}
    assert compiler.compiled == ["b", "c"]
    compiler.gate("a").set()
    assert taken(queue, 1) == {0: ""}


def test_who_floods_the_backlog_is_refused_and_others_get_in(compiler, queue) -> None:
    for i, text in enumerate("abde"):
        queue.compile(Sequence(i), regex(text), FLOOD)
    assert not queue.compile(Sequence(8), regex("c"), OTHER)
    assert taken(queue, 1) == {3: "4 grammars wait to be compiled: try again later"}
    with pytest.raises(RequestError, match="4 grammars wait to be compiled: try again later"):
        queue.compile(Sequence(9), regex("f"), FLOOD)
    for text in "abcd":
        compiler.gate(text).set()
    assert taken(queue, 4) == dict.fromkeys((0, 1, 2, 8), "")
    assert sorted(compiler.compiled) == ["a", "b", "c", "d"]


def test_a_refused_request_that_left_meanwhile_is_not_answered(compiler, queue) -> None:
    sequences = [Sequence(i) for i in range(4)]
    for sequence, text in zip(sequences, "abde", strict=True):
        queue.compile(sequence, regex(text), FLOOD)
    queue.compile(Sequence(8), regex("c"), OTHER)
    queue.abort(sequences[3])
    for text in "abcd":
        compiler.gate(text).set()
    assert sorted(taken(queue, 4)) == [0, 1, 2, 8]


def test_a_grammar_that_takes_too_long(compiler) -> None:
    queue = GrammarQueue(compiler, GrammarLimits(compile_s=0.0))
    queue.compile(Sequence(1), regex("a"))
    assert "not compiled within 0 s" in taken(queue, 1)[1]
    assert queue.waiting() == []
    compiler.gate("a").set()
    queue.close()
    queue._workers.join()


@pytest.mark.parametrize(("cpu_s", "wall_s", "used_s"), [(2.0, 3.0, 2.0), (0.5, 1.0, 0.5), (0.0, 40.0, 10.0)])
def test_a_busy_machine_makes_a_grammar_late_slowly(monkeypatch, cpu_s, wall_s, used_s) -> None:
    clocks = [5.0, 100.0]
    fake = SimpleNamespace(
        pthread_getcpuclockid={threading.get_ident(): 0}.__getitem__,
        clock_gettime=clocks.__getitem__,
        monotonic=lambda: clocks[1],
    )
    monkeypatch.setattr("firelane.engine.grammar.queue.time", fake)
    stopwatch = ThreadStopwatch()
    assert stopwatch.used_s == 0
    clocks[:] = [5.0 + cpu_s, 100.0 + wall_s]
    assert stopwatch.used_s == used_s


def test_a_grammar_that_never_ends_ends_the_engine(compiler) -> None:
    queue = GrammarQueue(compiler, GrammarLimits(stuck_s=0.0))
    queue.compile(Sequence(1), regex("a"))
    assert queue.is_waiting
    with pytest.raises(MachineError, match="does not end, and takes memory: the engine has to be started"):
        queue.take()
    compiler.gate("a").set()
    queue.close()
    queue._workers.join()


def test_a_grammar_that_nobody_waits_for_is_watched(compiler, queue) -> None:
    sequence = Sequence(1)
    queue.compile(sequence, regex("a"))
    queue.abort(sequence)
    assert queue.is_waiting
    compiler.gate("a").set()
    until_s = time.monotonic() + PATIENCE_S
    while queue.is_waiting:
        assert queue.take() == []
        assert time.monotonic() < until_s


def test_too_many_wait(compiler, queue) -> None:
    for i, text in enumerate("abcd"):
        queue.compile(Sequence(i), regex(text))
    with pytest.raises(RequestError, match="4 grammars wait to be compiled: try again later"):
        queue.compile(Sequence(8), regex("e"))
    assert not queue.compile(Sequence(9), regex("a"))
    for text in "abcd":
        compiler.gate(text).set()
    taken(queue, 5)


def test_too_large_is_known_at_once(queue) -> None:
    with pytest.raises(RequestError, match="70000 bytes: at most 65536"):
        queue.compile(Sequence(1), regex("a" * 70_000))
    assert queue._workers._threads == []


def test_a_grammar_that_has_run_out_is_compiled_again(compiler, queue) -> None:
    first, second = Sequence(1), Sequence(2)
    compiler.gate("a").set()
    assert not queue.compile(first, regex("a"))
    assert taken(queue, 1) == {1: ""}
    first.constraint.compiled.is_spent = True
    assert not queue.compile(second, regex("a"))
    assert taken(queue, 1) == {2: ""}
    assert second.constraint.compiled is not first.constraint.compiled
    assert compiler.compiled == ["a", "a"]
