"""Stored answers: bounded, least recently used first out, each tenant's apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import NotFoundError
from firelane.gateway.conversations.response_store import ENTRY_BYTES, ResponseStore, StoredResponse
from firelane.gateway.tenants.tenant import ANONYMOUS_ADMIN, Tenant

ANNE, BERT = Tenant(name="anne"), Tenant(name="bert")


def entry(name: str, size_bytes: int = 10) -> StoredResponse:
    return StoredResponse(name, b"x" * size_bytes, (), ())


def test_reads_what_was_put():
    store = ResponseStore(2)
    store.put(ANNE, entry("a"))
    assert store.get(ANNE, "a").body == b"x" * 10
    assert len(store) == 1


def test_the_least_recently_used_goes_first():
    store = ResponseStore(2)
    for name in ("a", "b"):
        store.put(ANNE, entry(name))
    store.get(ANNE, "a")
    store.put(ANNE, entry("c"))
    assert store.get(ANNE, "a")
    with pytest.raises(NotFoundError, match="`store: false`"):
        store.get(ANNE, "b")


def test_nobody_reads_or_deletes_anothers():
    store = ResponseStore(2)
    store.put(ANNE, entry("a"))
    for other in (BERT, ANONYMOUS_ADMIN, Tenant(name="anne", salt=b"another key")):
        with pytest.raises(NotFoundError):
            store.get(other, "a")
        with pytest.raises(NotFoundError):
            store.delete(other, "a")
    store.delete(ANNE, "a")
    assert len(store) == store.bytes_held == 0


def test_a_flood_pushes_out_the_floods_own():
    store = ResponseStore(100, max_bytes=10 * (ENTRY_BYTES + 100))
    store.put(ANNE, entry("a", 100))
    for i in range(200):
        store.put(BERT, entry(f"b{i}", 100))
    assert store.get(ANNE, "a")
    assert store.get(BERT, "b199")


def test_one_that_is_larger_than_the_store_is_not_kept():
    store = ResponseStore(10, max_bytes=ENTRY_BYTES + 100)
    store.put(ANNE, entry("a", 100))
    store.put(ANNE, entry("b", 101))
    assert store.get(ANNE, "a")
    with pytest.raises(NotFoundError):
        store.get(ANNE, "b")


def test_without_room_nothing_is_kept():
    store = ResponseStore(0)
    assert not store.enabled
    store.put(ANNE, entry("a"))
    assert len(store) == 0


OPS = st.tuples(
    st.sampled_from(("put", "get", "delete")),
    st.sampled_from((ANNE, BERT, ANONYMOUS_ADMIN)),
    st.sampled_from("abcdefgh"),
    st.integers(0, 600),
)


@given(st.lists(OPS, max_size=60), st.integers(1, 5), st.integers(600, 4000))
def test_any_order_of_use_stays_within_the_bounds(ops, max_entries, max_bytes):
    store = ResponseStore(max_entries, max_bytes)
    kept: dict[tuple[str, str], StoredResponse] = {}
    for op, tenant, name, size_bytes in ops:
        if op == "put":
            kept[tenant.name, name] = made = entry(name, size_bytes)
            store.put(tenant, made)
        else:
            try:
                found = store.get(tenant, name)
            except NotFoundError:
                pass
            else:
                assert found is kept[tenant.name, name]
                if op == "delete":
                    store.delete(tenant, name)
        store.check_integrity()
