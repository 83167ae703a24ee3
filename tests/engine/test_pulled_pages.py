"""Prompts whose pages another engine has: they come by their names, and the tokens are those of an engine
that has computed all of it."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from firelane.contract import Window
from firelane.engine.pages import page_waits, pulls
from firelane.kv import SnapshotRule
from firelane.kv.transfer.reader import StreamedCopy
from tests.engine.handed_over import connected
from tests.engine.resume import resumed
from tests.engine.test_resume import VARIETIES, outcome


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Enough on however slow a machine."""
    monkeypatch.setattr(page_waits, "UNKNOWN_S", 60.0)
    monkeypatch.setattr(page_waits, "LEAST_S", 60.0)
    monkeypatch.setattr(page_waits, "MOST_S", 60.0)


@contextmanager
def pair(driver, **sizes):
    """Two engines; the second has pages from the first."""
    source, reader_ = driver(**sizes), driver(**sizes)
    with connected(source, reader_) as transfers:
        yield source, reader_, transfers


def num_cached(kv, tokens):
    """Leading blocks."""
    return kv.search.lookup(kv.chain(b""), np.arange(tokens, dtype=np.int32), tokens).num_blocks


def handed_over(request, tokens, request_id, transfer):
    return msgspec.structs.replace(resumed(request, tokens, request_id), pages_at=transfer.engine_id)


@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_same_tokens_behind_pulled_pages(driver, request_of, fields):
    request = request_of(1, range(9), **{"seed": 3, "max_tokens": 16, **fields})
    whole = driver()
    whole.submit(request)
    whole.run()
    tokens, reason, entries = outcome(whole, 1)
    with pair(driver) as (source, reader_, transfers):
        first = msgspec.structs.replace(
            request, sampling=msgspec.structs.replace(request.sampling, max_tokens=1)
        )
        source.submit(first)
        source.run()
        begun, first_reason, first_entries = outcome(source, 1)
        assert (begun, first_reason) == (tokens[:1], "length")
        reader_.submit(handed_over(request, begun, 1, transfers[0]))
        reader_.run()
        assert reader_.cached[1] == 8
        assert outcome(reader_, 1) == (tokens[1:], reason, entries[len(first_entries) :])
        assert first_entries == entries[: len(first_entries)]
        stats = reader_.frames[-1].stats
        assert (stats.pulls_ok, stats.prompt_tokens) == (1, 0)
        assert stats.pulled_bytes == 2 * source.executor.kv[0].nbytes


def test_a_window_comes_with_the_pages_that_it_needs(driver, request_of):
    spans = (Window(6), Window(6))
    sizes = {"spans": spans, "num_blocks": 64}
    request = request_of(1, range(20), seed=3, max_tokens=12)
    whole = driver(**sizes)
    whole.submit(request)
    whole.run()
    with pair(driver, **sizes) as (source, reader_, transfers):
        source.submit(request_of(1, range(20), seed=3, max_tokens=1))
        source.run()
        reader_.submit(handed_over(request, whole.tokens[1][:1], 1, transfers[0]))
        reader_.run()
        assert reader_.cached[1] == 20
        assert whole.tokens[1] == source.tokens[1] + reader_.tokens[1]


def test_a_recurrent_state_comes_with_the_pages(driver, request_of, alone):
    """The snapshot at the prompt's last block boundary; then requests share one pull, and none asks again."""
    sizes = {"state_bytes": 8, "num_snapshots": 6, "snapshots": SnapshotRule(interval=64, at_least=1)}
    request = request_of(1, range(22), seed=3, max_tokens=12)
    with pair(driver, **sizes) as (source, reader_, transfers):
        source.submit(request_of(1, range(22), seed=3, max_tokens=1))
        source.run()
        reader_.submit(*(handed_over(request, source.tokens[1], i, transfers[0]) for i in (1, 2, 3)))
        reader_.run()
        assert set(reader_.cached.values()) == {20}
        tokens = alone(request, 64, has_state=True)[0]
        assert all(source.tokens[1] + reader_.tokens[i] == tokens for i in (1, 2, 3))
        stats = reader_.frames[-1].stats
        assert (stats.pulls_ok, stats.pulls_stale) == (1, 0)
        assert stats.pulled_bytes == 5 * source.executor.kv[0].nbytes + 8


def test_without_room_for_a_state_all_is_computed(driver, request_of, alone):
    sizes = {"state_bytes": 8, "snapshots": SnapshotRule(interval=64, at_least=1)}
    request = request_of(1, range(22), seed=3, max_tokens=12)
    source, reader_ = driver(num_snapshots=6, **sizes), driver(num_snapshots=0, **sizes)
    with connected(source, reader_) as transfers:
        source.submit(request_of(1, range(22), seed=3, max_tokens=1))
        source.run()
        reader_.submit(handed_over(request, source.tokens[1], 1, transfers[0]))
        reader_.run()
        assert reader_.cached[1] == 0
        assert source.tokens[1] + reader_.tokens[1] == alone(request, 64, has_state=True)[0]
        assert reader_.frames[-1].stats.pulled_bytes == 0


def test_requests_with_one_prompt_share_one_pull(driver, request_of):
    with pair(driver) as (source, reader_, transfers):
        source.submit(request_of(1, range(17)))
        source.run()
        for i in range(3):
            request = msgspec.structs.replace(
                request_of(i, range(17), seed=i), pages_at=transfers[0].engine_id
            )
            reader_.submit(request)
        reader_.run()
        assert set(reader_.cached.values()) == {16}
        assert reader_.frames[-1].stats.pulls_ok == 1


def test_pages_of_an_unknown_engine_are_computed(driver, request_of, alone):
    request = request_of(1, range(17))
    with pair(driver) as (_, reader_, _):
        reader_.submit(msgspec.structs.replace(request, pages_at="nobody"))
        reader_.run()
        assert reader_.cached[1] == 0
        assert (reader_.tokens[1], reader_.reasons[1]) == alone(request, 64)
        assert reader_.frames[-1].stats.pulls_lost == 1


def test_a_late_pull_keeps_nobody_waiting(driver, request_of, alone, monkeypatch):
    """Its pages stay reserved until nobody writes to them any more."""
    begun, go_on, take = threading.Event(), threading.Event(), StreamedCopy.take

    def held_up(*arguments):
        begun.set()
        assert go_on.wait(60)
        return take(*arguments)

    monkeypatch.setattr(StreamedCopy, "take", held_up)
    monkeypatch.setattr(page_waits, "UNKNOWN_S", 0.2)
    request = request_of(1, range(17))
    with pair(driver) as (source, reader_, transfers):
        source.submit(request_of(1, range(17)))
        source.run()
        reader_.submit(msgspec.structs.replace(request, pages_at=transfers[0].engine_id))
        while 1 not in reader_.reasons:
            reader_.step()
        assert reader_.cached[1] == 0
        assert (reader_.tokens[1], reader_.reasons[1]) == alone(request, 64)
        assert reader_.core.kv.incoming.num_pages == 4
        assert not reader_.core.is_idle
        go_on.set()
        while not reader_.core.is_idle:
            reader_.step()
        assert reader_.core.kv.num_used_pages == 0


def test_an_abort_while_pages_come(driver, request_of, monkeypatch):
    go_on, take = threading.Event(), StreamedCopy.take
    monkeypatch.setattr(StreamedCopy, "take", lambda *given: go_on.wait(60) and take(*given))
    with pair(driver) as (source, reader_, transfers):
        source.submit(request_of(1, range(17)))
        source.run()
        reader_.submit(msgspec.structs.replace(request_of(2, range(17)), pages_at=transfers[0].engine_id))
        reader_.step()
        reader_.abort(2)
        reader_.step()
        assert reader_.reasons[2] == "abort"
        go_on.set()
        reader_.run()
        assert reader_.core.kv.num_used_pages == 0


def test_no_more_pages_are_pulled_than_there_is_room_for(driver, request_of, alone):
    """A running sequence keeps its pages; the rest of the prompt is computed."""
    request = request_of(2, range(29, 46), max_tokens=4)
    with pair(driver, num_blocks=10) as (source, reader_, transfers):
        source.submit(request)
        source.run()
        reader_.submit(request_of(1, range(26), max_tokens=8))
        reader_.step()
        reader_.submit(msgspec.structs.replace(request, pages_at=transfers[0].engine_id))
        reader_.run()
        assert (reader_.tokens[2], reader_.reasons[2]) == alone(request, 64)
        assert (reader_.tokens[1], reader_.reasons[1]) == alone(request_of(1, range(26), max_tokens=8), 64)


def test_pages_come_while_the_prompt_is_computed(driver, request_of, monkeypatch):
    """When the request goes on, only pages of the last chunk are left to pull."""
    monkeypatch.setattr(pulls, "AHEAD_POLL_S", 0.0)
    request = request_of(1, range(40), max_tokens=6)
    whole = driver()
    whole.submit(request)
    whole.run()
    with pair(driver) as (source, reader_, transfers):
        expected = msgspec.structs.replace(request, pages_at=transfers[0].engine_id, prefetch=True)
        reader_.submit(expected)
        reader_.step()
        source.submit(request_of(1, range(40), max_tokens=1))
        for chunks in (1, 2):  # of 16 tokens
            while source.executor.steps < chunks:
                source.step()
            while num_cached(reader_.core.kv, 40) < 4 * chunks - 1:  # the last one may not be published yet
                reader_.step()
        source.run()
        reader_.submit(handed_over(request, source.tokens[1], 1, transfers[0]))
        reader_.run()
        assert reader_.cached[1] == 40
        assert source.tokens[1] + reader_.tokens[1] == whole.tokens[1]
        assert reader_.frames[-1].stats.pulls_stale == 0


def test_an_engine_of_another_host_is_sought_ahead_of_the_request(driver, request_of, alone):
    """Once for both; nobody answers, so the prompt is computed."""
    sought = []
    request = request_of(1, range(40))
    there = msgspec.structs.replace(request, pages_at="there", pages_address="10.0.0.7:5600")
    with pair(driver) as (_, reader_, transfers):
        transfers[1]._on_sought = lambda *asked: sought.append(asked)
        reader_.submit(msgspec.structs.replace(there, prefetch=True))
        reader_.step()
        assert sought == [("there", "10.0.0.7:5600")]
        reader_.submit(there)
        reader_.step()
        transfers[1].give_up("there")
        reader_.run()
        assert sought == [("there", "10.0.0.7:5600")]
        assert (reader_.tokens[1], reader_.reasons[1]) == alone(request, 64)
        assert reader_.frames[-1].stats.pulls_lost == 2


def test_an_engine_that_is_to_sleep_expects_nothing(driver, request_of):
    """It would wait for as long as a prompt may be computed elsewhere."""
    with pair(driver) as (_, reader_, transfers):
        reader_.submit(
            msgspec.structs.replace(request_of(1, range(40)), pages_at=transfers[0].engine_id, prefetch=True)
        )
        reader_.core.step()
        assert not reader_.core.is_idle
        reader_.core.expect_nothing()
        reader_.run()
        assert reader_.core.is_idle


def test_an_expected_prompt_that_nobody_computes_is_given_up(driver, request_of, monkeypatch):
    monkeypatch.setattr(pulls, "QUIET_S", 0.02)
    with pair(driver) as (_, reader_, transfers):
        reader_.submit(
            msgspec.structs.replace(request_of(1, range(40)), pages_at=transfers[0].engine_id, prefetch=True)
        )
        reader_.run()
        assert reader_.tokens == {}
