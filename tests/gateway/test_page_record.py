"""The record of engines' pages beside a plain one, which names all pages of a prompt when it is sent."""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from itertools import chain, pairwise

import pytest
from test_policies import Engine, cached_tokens

from firelane.gateway.engines.routing import expected_pages
from firelane.gateway.engines.routing.page_record import LEAST_PAGES, PageRecord
from firelane.wire.page_names import PAGE_TOKENS, PageNames, page_names

PAGE_BYTES = 4 * PAGE_TOKENS


class PlainRecord:
    """Pages of each engine, looked up one by one."""

    def __init__(self) -> None:
        self.told: dict[int, set[int]] = {}
        self.expected: dict[int, OrderedDict[int, None]] = {}

    def pages(self, engine):
        return self.told.setdefault(engine.life, set()), self.expected.setdefault(engine.life, OrderedDict())

    def cached(self, names):
        found = {}
        for life in self.told:
            has = self.told[life] | self.expected[life].keys()
            count = next((i for i, name in enumerate(names) if name not in has), len(names))
            if count:
                found[life] = count * PAGE_TOKENS
        return found

    def expect(self, engine, names):
        told, expected = self.pages(engine)
        for name in reversed(names):
            if name not in told and name not in expected:
                expected[name] = None

    def tell(self, engine, stored, removed):
        told, expected = self.pages(engine)
        for name in removed:
            told.discard(name)
            expected.pop(name, None)
        for name in stored:
            expected.pop(name, None)
            told.add(name)

    def __len__(self):
        return sum(map(len, self.told.values())) + sum(map(len, self.expected.values()))


class Cluster:
    """Engines that compute prompts page by page and give up the last pages of some."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engines = [Engine(str(i)) for i in range(4)]
        self.record, self.plain = PageRecord(), PlainRecord()
        self.trunk = [os.urandom(PAGE_BYTES) for _ in range(12)]
        self.sent: list[tuple[Engine, bytes]] = []
        for engine in self.engines:
            self.record.tell(engine, (), (), is_whole=True)
            self.plain.pages(engine)

    def prompt(self) -> bytes:
        """One that begins as others do, and ends as some do."""
        ends = [bytes([self.random.randrange(3)]) * PAGE_BYTES for _ in range(self.random.randrange(6))]
        own = os.urandom(PAGE_BYTES + 12) * self.random.randrange(2)
        return b"".join(self.trunk[: self.random.randrange(13)] + ends) + own

    def step(self) -> None:
        self.random.choice((self.send, self.send, self.compute, self.compute, self.give_up, self.lose))()

    def send(self) -> None:
        engine, prompt = self.random.choice(self.engines), self.prompt()
        names = PageNames(b"", prompt)
        known = cached_tokens(self.record, names).get(engine.life, 0) // PAGE_TOKENS
        self.record.expect(engine, names, known)
        self.plain.expect(engine, page_names(b"", prompt))
        self.sent.append((engine, prompt))

    def compute(self) -> None:
        """Some of the first pages of a prompt."""
        if self.sent:
            engine, prompt = self.random.choice(self.sent)
            names = page_names(b"", prompt)
            self.tell(engine, names[: self.random.randrange(len(names) + 1)], [])

    def give_up(self) -> None:
        """The last pages of a prompt, unless one stays that follows them."""
        if self.sent:
            engine, prompt = self.random.choice(self.sent)
            names, (told, expected) = page_names(b"", prompt), self.plain.pages(engine)
            gone = told.intersection(names[self.random.randrange(len(names) + 1) :]) - expected.keys()
            left = (told | expected.keys()) - gone
            ours = [page_names(b"", text) for to, text in self.sent if to is engine]
            if all(two not in left or one in left for one, two in chain.from_iterable(map(pairwise, ours))):
                self.tell(engine, [], gone)

    def lose(self) -> None:
        if self.random.random() < 0.1:
            engine = self.random.choice(self.engines)
            self.record.tell(engine, (), (), is_whole=True)
            self.plain.told[engine.life], self.plain.expected[engine.life] = set(), OrderedDict()
            self.sent = [(to, prompt) for to, prompt in self.sent if to is not engine]

    def tell(self, engine, stored, removed) -> None:
        self.record.tell(engine, stored, removed)
        self.plain.tell(engine, stored, removed)


@pytest.mark.parametrize("kept_pages", [0, 20, expected_pages.MOST_KEPT_PAGES])
@pytest.mark.parametrize("seed", range(8))
def test_pages_named_later_are_those_named_at_once(seed, kept_pages, monkeypatch):
    monkeypatch.setattr(expected_pages, "MOST_KEPT_PAGES", kept_pages)
    cluster = Cluster(seed)
    for _ in range(150):
        cluster.step()
        prompt = cluster.prompt()
        if cluster.random.random() < 0.5:  # else pages stay without a name for longer
            assert cached_tokens(cluster.record, PageNames(b"", prompt)) == cluster.plain.cached(
                page_names(b"", prompt)
            )
        assert len(cluster.record) == len(cluster.plain)
    for engine in cluster.engines:
        cluster.record.forget(engine.name)
    assert (len(cluster.record), vars(cluster.record)["_masks"], vars(cluster.record)["_tails"]) == (
        0,
        {},
        {},
    )


def told_engine(record, *, kv_tokens=1 << 20):
    engine = Engine("0", kv_tokens=kv_tokens)
    record.tell(engine, (), (), is_whole=True)
    return engine


def test_few_pages_are_named_of_a_prompt_that_is_not_known():
    record, names = PageRecord(), PageNames(b"", os.urandom(400 * PAGE_BYTES))
    engine = told_engine(record)
    assert record.cached(names) == []
    record.expect(engine, names)
    assert len(record) == 400
    assert len(vars(record)["_masks"]) == 1


def test_as_many_pages_are_named_as_are_known_and_as_many_again():
    record, prompt = PageRecord(), os.urandom(400 * PAGE_BYTES)
    engine, hashed = told_engine(record), []
    record.tell(engine, page_names(b"", prompt[: 50 * PAGE_BYTES]), ())

    class Counted(PageNames):
        def __getitem__(self, index, /):
            hashed.append(index)
            return super().__getitem__(index)

    assert cached_tokens(record, Counted(b"", prompt)) == {engine.life: 50 * PAGE_TOKENS}
    assert max(hashed) < 2 * 50


def test_the_ends_of_the_oldest_prompts_are_forgotten_with_or_without_a_name():
    record = PageRecord()
    engine = told_engine(record, kv_tokens=0)
    first, second = (os.urandom(40 * PAGE_BYTES) for _ in range(2))
    for prompt in (first, second):
        record.expect(engine, PageNames(b"", prompt))
    assert len(record) == LEAST_PAGES
    left = {engine.life: (LEAST_PAGES - 40) * PAGE_TOKENS}
    assert cached_tokens(record, PageNames(b"", first)) == left
    third = os.urandom(40 * PAGE_BYTES)
    record.expect(engine, PageNames(b"", third))
    assert cached_tokens(record, PageNames(b"", first)) == {}
    assert cached_tokens(record, PageNames(b"", second)) == left


def test_a_prompt_of_more_pages_than_the_cache_is_cut():
    record = PageRecord()
    engine = told_engine(record, kv_tokens=0)
    record.expect(engine, PageNames(b"", os.urandom((LEAST_PAGES + 9) * PAGE_BYTES)))
    assert len(record) == LEAST_PAGES


def test_pages_told_out_of_order_are_counted_once_in_the_end():
    record, prompt = PageRecord(), os.urandom(6 * PAGE_BYTES)
    engine, names = told_engine(record), page_names(b"", prompt)
    record.expect(engine, PageNames(b"", prompt))
    record.tell(engine, [names[i] for i in (2, 1, 4, 0, 5, 3)], ())
    assert len(record) == 6
    assert cached_tokens(record, names) == {engine.life: 6 * PAGE_TOKENS}
    record.tell(engine, (), names)
    assert (len(record), cached_tokens(record, names)) == (0, {})


def test_a_page_that_goes_before_it_came_leaves_the_others():
    record, prompt = PageRecord(), os.urandom(6 * PAGE_BYTES)
    engine, names = told_engine(record), page_names(b"", prompt)
    record.expect(engine, PageNames(b"", prompt))
    record.tell(engine, (), names[:1])
    assert len(record) == 5
    record.tell(engine, names[:1], ())
    assert cached_tokens(record, names) == {engine.life: 6 * PAGE_TOKENS}


@pytest.mark.parametrize("tokens", [0, 1, PAGE_TOKENS - 1, PAGE_TOKENS, 3 * PAGE_TOKENS + 5])
def test_names_are_the_same_whenever_they_are_asked_for(tokens):
    prompt = os.urandom(4 * tokens)
    whole, names = page_names(b"s", prompt), PageNames(b"s", prompt)
    assert len(names) == len(whole)
    assert [names[i] for i in reversed(range(len(names)))] == whole[::-1]
    with pytest.raises(IndexError):
        names[len(whole)]
