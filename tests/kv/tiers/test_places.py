"""Pages and snapshots as tiers see them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from firelane.contract import HostPages
from firelane.kv.pool import STATES, WantedPage
from firelane.kv.tiers import CachedMemory, HostTier, TierAdmission
from firelane.kv.tiers.reader import TierReader
from firelane.kv.tiers.writer import PagesToStore, TierWriter
from tests.kv.shared_pages import CopiedPages, array_of

NAME = b"n" * 16


@pytest.fixture(params=["array", "copied"])
def kind(request):
    return HostPages if request.param == "array" else CopiedPages


def memory(kind=HostPages, state_bytes=None, *, rng=None):
    rng = rng or np.random.default_rng(1)
    pages = kind(pages=rng.integers(0, 256, (6, 64), np.uint8), layout_id="p")
    if state_bytes is None:
        return CachedMemory(pages, 2)
    states = kind(pages=rng.integers(0, 256, (5, state_bytes), np.uint8), layout_id="s")
    return CachedMemory(pages, 2, states)


def content(memory):
    """Bytes of all pages, and of all states."""
    return [array_of(one).copy() for one in (memory._pages, memory._states) if one is not None]


@pytest.mark.parametrize(
    ("state_bytes", "sizes"), [(8, [8]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])]
)
def test_a_snapshot_is_its_parts_in_order(kind, state_bytes, sizes):
    one = memory(kind, state_bytes)
    parts = one.parts(WantedPage(STATES, NAME, b"t"))
    assert [(p.name, p.tenant) for p in parts] == [(NAME, b"t")] * len(sizes)
    assert [p.group for p in parts] == list(range(2, 2 + len(sizes))) == list(one.part_groups)
    read = [one.read(p.group, 3, one.buffer()) for p in parts]
    assert [part.size for part in read] == sizes
    assert np.concatenate(read).tobytes() == content(one)[1][3].tobytes()


def test_pages_are_themselves(kind):
    one = memory(kind)
    assert one.parts(WantedPage(1, NAME, b"t")) == [WantedPage(1, NAME, b"t")]
    assert (one.num_groups, list(one.part_groups), one.layout_id) == (2, [], "p")
    before = content(one)[0]
    room = one.room(1, 4, one.buffer())
    room[:] = 7
    assert one.write(1, 4, room)
    before[4] = 7
    assert (content(one)[0] == before).all()
    assert (one.read(0, 4, one.buffer()) == 7).all()


def test_pages_in_an_array_are_read_and_written_where_they_are():
    one = memory()
    assert np.shares_memory(one.read(0, 4, one.buffer()), one._pages.pages)
    assert np.shares_memory(one.room(0, 4, one.buffer()), one._pages.pages)


def test_the_layout_says_that_there_are_states():
    assert len({memory().layout_id, memory(state_bytes=8).layout_id}) == 2


class Names:
    def __init__(self):
        self.there = (3, 1)
        self.calls = 0

    def locate(self, group, name):
        assert (group, name) == (STATES, NAME)
        self.calls += 1
        return self.there


def stored_by(names, tier, source):
    writer = TierWriter(tier, TierAdmission(), source, names)
    writer.store(PagesToStore([(3, WantedPage(STATES, NAME, b"t" * 16))], is_reused=False))
    writer.call(lambda: None)
    writer.close()


def read_by(tier, target, parts, place):
    """The tiers that the parts came from."""
    reader = TierReader([tier], target, 1)
    reader.read(parts, [place] * len(parts), 1e12)
    while not (read := reader.poll()):
        time.sleep(0.001)
    reader.close()
    (ended,) = read
    return list(ended.sources)


@pytest.mark.parametrize("state_bytes", [8, 64, 200])
def test_a_snapshot_comes_back_as_it_was(kind, state_bytes):
    source, target = memory(kind, state_bytes), memory(kind, state_bytes, rng=np.random.default_rng(2))
    before, tier = content(target)[1], HostTier(8, 64)
    stored_by(Names(), tier, source)
    parts = target.parts(WantedPage(STATES, NAME))
    assert read_by(tier, target, parts, 1) == ["host"] * len(parts)
    before[1] = content(source)[1][3]
    assert (content(target)[1] == before).all(), "this state, and no other"


def test_pages_that_cannot_be_had_are_neither_stored_nor_read():
    source, target = (memory(CopiedPages, 200) for _ in range(2))
    tier = HostTier(8, 64)
    source._states.is_away = target._states.is_away = True
    stored_by(Names(), tier, source)
    assert len(tier.index) == 0
    source._states.is_away = False
    stored_by(Names(), tier, source)
    parts = target.parts(WantedPage(STATES, NAME))
    assert read_by(tier, target, parts, 1) == [None] * len(parts)
    target._states.is_away = False
    assert read_by(tier, target, parts, 1) == ["host"] * len(parts)


def test_what_is_taken_again_meanwhile_is_not_stored(kind):
    class Moves(Names):
        def locate(self, group, name):
            place, _ = super().locate(group, name)
            return place, self.calls

    tier = HostTier(8, 64)
    stored_by(Moves(), tier, memory(kind, 200))
    assert len(tier.index) == 0
