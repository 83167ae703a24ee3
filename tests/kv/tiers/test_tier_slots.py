"""Which page lies in which slot, and which slot is given out again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.kv.tiers.admission import AdmitReused, TierAdmission
from firelane.kv.tiers.eviction import SegmentedLru
from firelane.kv.tiers.slots import NO_SLOT, SlotIndex


def key(number):
    return 0, bytes([number])


def put(index, number, tenant=b"a"):
    slot = index.reserve(tenant)
    index.publish(slot, key(number), tenant)
    return slot


def test_the_least_recently_used_makes_room():
    index = SlotIndex(2)
    put(index, 1)
    put(index, 2)
    put(index, 3)
    assert key(1) not in index
    assert key(2) in index
    assert index.evictions == 1


def test_what_was_asked_for_again_outlives_what_was_not():
    index = SlotIndex(5)
    put(index, 0)
    index.touch(key(0))
    for number in range(1, 40):
        put(index, number)
    assert key(0) in index
    index.check_integrity()


def test_too_many_protected_slots_become_ordinary_ones():
    order = SegmentedLru(5)
    for slot in range(5):
        order.add(slot)
        order.touch(slot)
    assert order.first() == 0
    assert len(order) == 5


def test_a_tenant_makes_room_for_itself_alone():
    index = SlotIndex(8, tenant_slots=2)
    put(index, 100, b"b")
    for number in range(20):
        put(index, number, b"a")
    assert len(index.slots_of(b"a")) == 2
    assert key(100) in index
    index.check_integrity()


def test_a_slot_changes_its_generation_before_its_content():
    index = SlotIndex(1)
    put(index, 1)
    slot, generation = index.find(key(1))
    assert index.is_current(slot, generation)
    index.reserve(b"a")
    assert not index.is_current(slot, generation)
    assert index.find(key(1))[0] == NO_SLOT


def test_no_slot_while_all_are_being_written():
    index = SlotIndex(1)
    slot = index.reserve(b"a")
    assert index.reserve(b"b") == NO_SLOT
    index.cancel(slot)
    index.check_integrity()


def test_a_second_copy_of_a_page_is_dropped():
    index = SlotIndex(3)
    put(index, 1)
    put(index, 1)
    assert len(index) == 1
    index.check_integrity()


calls = st.tuples(
    st.sampled_from(["put", "hold", "touch", "discard", "end", "clear"]),
    st.integers(0, 11),
    st.sampled_from([b"a", b"b", b"c"]),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.none() | st.integers(1, 4), st.lists(calls, max_size=60))
def test_every_slot_is_in_one_place(num_slots, tenant_slots, made):
    index, held = SlotIndex(num_slots, tenant_slots), []
    for what, number, tenant in made:
        if what in ("put", "hold"):
            slot = index.reserve(tenant)
            if slot != NO_SLOT and what == "hold":
                held.append(slot)
            elif slot != NO_SLOT:
                known = key(number) in index
                index.publish(slot, key(number), tenant)
                assert known or index.find(key(number))[0] == slot
        elif what == "touch":
            index.touch(key(number))
        elif what == "discard":
            index.discard(key(number))
            assert key(number) not in index
        elif what == "end" and held:
            index.cancel(held.pop())
        elif what == "clear":
            index.clear()
            assert len(index) == 0
        index.check_integrity()


def test_all_pages_are_admitted_when_they_are_computed():
    assert TierAdmission().admits(key(1), is_reused=False)
    assert not TierAdmission().admits(key(1), is_reused=True)


def test_reused_pages_are_admitted_at_their_second_use():
    found, computed = AdmitReused(memory=2), AdmitReused(memory=2)
    assert not found.admits(key(1), is_reused=False)
    assert found.admits(key(1), is_reused=True)
    assert not computed.admits(key(1), is_reused=False)
    assert computed.admits(key(1), is_reused=False)
    for number in (1, 2, 3):
        assert not computed.admits(key(number), is_reused=False)
    assert not computed.admits(key(1), is_reused=False)  # too long ago
