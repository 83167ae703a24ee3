"""Pages and snapshots as tiers see them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from firelane.contract import PageMemory
from firelane.kv.incoming import STATES, WantedPage
from firelane.kv.tiers import AdmitAll, CachedMemory, HostTier
from firelane.kv.tiers.reader import TierReader
from firelane.kv.tiers.writer import Stored, TierWriter

NAME = b"n" * 16


def memory(state_bytes=None, *, rng=None):
    rng = rng or np.random.default_rng(1)
    pages = PageMemory(pages=rng.integers(0, 256, (6, 64), np.uint8), layout_id="p")
    if state_bytes is None:
        return CachedMemory(pages, 2)
    states = PageMemory(pages=rng.integers(0, 256, (5, state_bytes), np.uint8), layout_id="s")
    return CachedMemory(pages, 2, states)


@pytest.mark.parametrize(
    ("state_bytes", "sizes"), [(8, [8]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])]
)
def test_a_snapshot_is_its_parts_in_order(state_bytes, sizes):
    one = memory(state_bytes)
    parts = one.parts(WantedPage(STATES, NAME, b"t"))
    assert [(p.name, p.tenant) for p in parts] == [(NAME, b"t")] * len(sizes)
    assert [p.group for p in parts] == list(range(2, 2 + len(sizes))) == list(one.part_groups)
    assert [one.at(p.group, 3).size for p in parts] == sizes
    whole = np.concatenate([one.at(p.group, 3) for p in parts])
    assert whole.tobytes() == one._states.pages[3].tobytes()


def test_pages_are_themselves():
    one = memory()
    assert one.parts(WantedPage(1, NAME, b"t")) == [WantedPage(1, NAME, b"t")]
    assert (one.num_groups, list(one.part_groups), one.layout_id) == (2, [], "p")
    one.at(1, 4)[:] = 7
    assert (one.at(0, 4) == 7).all(), "a view"


def test_the_layout_says_that_there_are_states():
    assert len({memory().layout_id, memory(8).layout_id}) == 2


class Names:
    def __init__(self):
        self.there = (3, 1)
        self.calls = 0

    def locate(self, group, name):
        assert (group, name) == (STATES, NAME)
        self.calls += 1
        return self.there


def stored_by(names, tier, source):
    writer = TierWriter(tier, AdmitAll(), source, names)
    writer.store(Stored([(3, WantedPage(STATES, NAME, b"t" * 16))], is_reused=False))
    writer.call(lambda: None)
    writer.close()


@pytest.mark.parametrize("state_bytes", [8, 64, 200])
def test_a_snapshot_comes_back_as_it_was(state_bytes):
    source, target = memory(state_bytes), memory(state_bytes, rng=np.random.default_rng(2))
    tier = HostTier(8, 64)
    stored_by(Names(), tier, source)
    parts = target.parts(WantedPage(STATES, NAME))
    reader = TierReader([tier], target, 1)
    reader.read(parts, [1] * len(parts), 1e12)
    while not (read := reader.poll()):
        time.sleep(0.001)
    reader.close()
    (ended,) = read
    assert list(ended.sources) == ["host"] * len(parts)
    assert target._states.pages[1].tobytes() == source._states.pages[3].tobytes()
    before = memory(state_bytes, rng=np.random.default_rng(2))._states.pages
    assert (np.delete(target._states.pages, 1, 0) == np.delete(before, 1, 0)).all(), "no other state"


def test_what_is_taken_again_meanwhile_is_not_stored():
    class Moves(Names):
        def locate(self, group, name):
            place, _ = super().locate(group, name)
            return place, self.calls

    tier = HostTier(8, 64)
    stored_by(Moves(), tier, memory(200))
    assert len(tier.index) == 0
