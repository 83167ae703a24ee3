"""Planning changes nothing, and a plan is applied as it was made."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from firelane.contract import CAUSAL, Window
from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.kv import SnapshotRule


def leaves(value, seen):
    """All that can be reached from a value, as one that can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, int | float | str | bytes | bool | type(None)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [(leaves(k, seen), leaves(v, seen)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [leaves(v, seen) for v in value]
    if isinstance(value, set):
        return sorted(value)
    names = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    fields = {n: getattr(value, n) for n in names if hasattr(value, n)} | getattr(value, "__dict__", {})
    skipped = ("_clock", "_state", "_by_salt", "_names")  # a chain remembers the names that it has computed
    return [(n, leaves(v, seen)) for n, v in fields.items() if n not in skipped and not callable(v)]


def snapshot(d):
    core = d.core
    return leaves([core.table, core.kv, core.policy, core._applier], {})


@pytest.mark.parametrize("policy", [FcfsPolicy, None])
@pytest.mark.parametrize(
    ("spans", "states"),
    [((CAUSAL,), {}), ((CAUSAL, Window(8)), {}), ((CAUSAL,), {"state_bytes": 64, "num_snapshots": 6})],
)
def test_schedule_changes_nothing(driver, request_of, tiles, spans, states, policy):
    """Plans with decodes, last tokens, preemptions, chunks that score, begin and end prompts, and
    snapshots."""
    sizes = {"max_num_seqs": 5, "max_output_rows": 6, "num_blocks": 30, "spans": spans} | states
    with tiles(4):
        d = driver(policy=policy() if policy else None, snapshots=SnapshotRule(at_least=1), **sizes)
        if not policy:
            d.core.policy.times.tokens_within = lambda _: 9.0
            d.core.policy.accounts._next_expiry_s = 1e18
        seen = {"admissions": 0, "preempted": 0, "growth": 0, "chunks": 0, "decode_slots": 0}
        seen |= {"saves": 0} if states else {}
        for i in range(30):
            scores = {"prompt_logprobs": 1} if i % 3 == 0 else {}
            d.submit(request_of(i, range(3 + i), max_tokens=20, tenant="aab"[i % 3], **scores))
        d.step()
        while not d.core.is_idle:
            before = copy.deepcopy(snapshot(d))
            plan = d.core.scheduler.schedule(d.core._next_step, d.core._next_step - 1)
            assert snapshot(d) == before
            for name in seen:
                seen[name] += len(getattr(plan, name))
            d.step()
        assert all(count > 5 for count in seen.values()), seen
        assert len(d.reasons) == 30


def test_an_abort_during_a_step_changes_the_next_plan(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(4), max_tokens=30), request_of(2, range(4), max_tokens=30))
    d.step()
    wait = d.executor.wait

    def waiting():
        d.abort(1)
        d.executor.wait = wait
        return wait()

    d.executor.wait = waiting
    d.step()
    assert d.executor.pending.num_chunks == 1
    d.run()
    assert d.reasons == {1: "abort", 2: "length"}
