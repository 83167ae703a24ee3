from __future__ import annotations

import numpy as np
import pytest

from firelane.engine.policies.accounts import BURST_TOKENS, RECENT_S, Accounts, FairQueue
from firelane.engine.sequences.sequence import Sequence, TenantInfo
from firelane.kv import PrefixChain
from firelane.wire.frames import Sampling


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def accounts(clock):
    return Accounts(clock)


@pytest.fixture
def queue(accounts):
    return FairQueue(accounts)


class Arrivals:
    """Makes sequences that wait in a queue."""

    def __init__(self, accounts, queue):
        self.accounts, self.queue, self.count = accounts, queue, 0

    def __call__(self, tenant, weight=1.0, background=False):
        sequence = Sequence(
            self.count,
            np.zeros(4, np.int32),
            sampling=Sampling(),
            end=8,
            chain=PrefixChain(b"", 4),
            tenant=TenantInfo(tenant, weight, background),
        )
        sequence.arrival = self.count
        self.count += 1
        sequence.account = self.accounts.open(sequence.tenant)
        self.queue.push(sequence)
        return sequence


@pytest.fixture
def arrive(accounts, queue):
    return Arrivals(accounts, queue)


def admit(accounts, queue, tokens=10):
    """Remove the next sequence from the queue, charge its account, and return it."""
    head = best(accounts, queue)
    queue.remove(head)
    charge(accounts, head.account, tokens)
    return head


def best(accounts, queue, skip=None):
    return queue.heads(accounts.counter).best(skip)


def charge(accounts, account, tokens):
    accounts.charge(account, tokens, accounts.counter)


def served(accounts, queue, count, tokens=10):
    return "".join(admit(accounts, queue, tokens).tenant.name for _ in range(count))


def test_one_tenant_is_served_in_order_and_not_accounted(accounts, queue, arrive):
    sequences = [arrive("a") for _ in range(3)]
    assert not accounts.is_shared
    assert [admit(accounts, queue) for _ in sequences] == sequences
    assert best(accounts, queue) is None
    assert not queue


def test_tenants_take_turns_whatever_the_queue_lengths(accounts, queue, arrive):
    for _ in range(6):
        arrive("a")
    for _ in range(2):
        arrive("b")
    assert served(accounts, queue, 8) == "ababaaaa"


def test_service_follows_weights(accounts, queue, arrive):
    for _ in range(40):
        arrive("a", 1.0), arrive("b", 3.0)
    turns = served(accounts, queue, 40)
    assert turns.count("b") == 30


def test_idle_time_earns_no_credit(accounts, queue, arrive):
    arrive("b")
    admit(accounts, queue, 1)
    for _ in range(30):
        arrive("a")
    served(accounts, queue, 10, tokens=100)
    for _ in range(10):
        arrive("b")
    assert served(accounts, queue, 6, tokens=100).count("b") == 3


def test_a_new_tenant_is_level_with_those_at_work_where_nobody_waits(accounts, queue, arrive):
    first = arrive("a")
    arrive("b")
    served(accounts, queue, 2, tokens=500)
    late = arrive("c")
    assert accounts.counter[late.account] == accounts.counter[first.account] == 500


def test_debts_stay_while_the_tenant_is_known(accounts, queue, arrive):
    for _ in range(4):
        arrive("a"), arrive("b")
    ahead = admit(accounts, queue, 1000)
    again = arrive(ahead.tenant.name)
    assert accounts.counter[again.account] == 1000


def test_a_preempted_sequence_is_first_of_its_own_account_only(accounts, queue, arrive):
    first, other, second = arrive("a"), arrive("b"), arrive("a")
    queue.remove(first)
    charge(accounts, first.account, 50)
    queue.push(first, first=True)
    assert [admit(accounts, queue) for _ in range(3)] == [other, first, second]


def test_background_waits_for_all_others_and_is_not_held_against_its_tenant(accounts, queue, arrive):
    slow = arrive("a", background=True)
    charge(accounts, slow.account, 1e6)
    quick, other = arrive("a"), arrive("b")
    assert quick.account != slow.account
    assert [admit(accounts, queue) for _ in range(3)] == [quick, other, slow]
    assert queue.num_background() == 0


@pytest.mark.parametrize("slot", [0, 3])
def test_background_waits_even_where_the_others_cannot_be_admitted_yet(accounts, queue, arrive, slot):
    arrive("a", background=True)
    arrive("a").slot = slot  # preempted, its slot is part of a step in flight
    assert best(accounts, queue) is None


def test_skipped_accounts_are_passed_over(accounts, queue, arrive):
    arrive("a")
    other = arrive("b")
    skip = np.zeros(len(accounts.counter), np.bool_)
    skip[0] = True
    assert best(accounts, queue, skip) is other


def test_background_of_several_tenants_takes_turns(accounts, queue, arrive):
    for _ in range(2):
        arrive("a", background=True), arrive("b", background=True)
    assert served(accounts, queue, 4) == "abab"
    assert best(accounts, queue) is None


def test_background_is_counted_apart(queue, arrive):
    waiting = [arrive("a"), arrive("b"), arrive("a", background=True), arrive("c", background=True)]
    waiting.append(arrive("a", background=True))
    assert [len(queue), queue.num_background()] == [5, 3]
    for sequence, left in zip(waiting, (3, 3, 2, 1, 0), strict=True):
        queue.remove(sequence)
        assert queue.num_background() == left
    assert not queue


def test_where_nobody_has_background_work_none_is_counted(queue, arrive):
    for tenant in "ab":
        arrive(tenant)
        assert queue.num_background() == 0


def test_the_waiting_are_listed_by_account_and_found_by_id(queue, arrive):
    first, other, second = arrive("a"), arrive("b"), arrive("a")
    assert list(queue.values()) == [first, second, other]
    assert [queue.get(sequence.id) for sequence in (first, other, second)] == [first, other, second]
    queue.remove(first)
    queue.remove(other)
    assert list(queue.values()) == [second]
    assert queue.get(first.id) is None


@pytest.mark.parametrize("other_work", [100, 900])
@pytest.mark.parametrize("background", [False, True])
def test_a_new_tenant_is_level_with_those_who_wait_for_its_kind_of_work(
    accounts, queue, arrive, background, other_work
):
    """Neither the other kind of work counts, nor who is at work and waits for nothing."""
    for tenant, tokens in (("a", 700), ("b", 500), ("c", 300)):
        sequence, other = arrive(tenant, background=background), arrive(tenant, background=not background)
        accounts.counter[[sequence.account, other.account]] = tokens, other_work
    queue.remove(sequence)
    late = arrive("d", background=background)
    assert accounts.counter[late.account] == 500


@pytest.mark.parametrize("background", [False, True])
def test_a_new_tenant_for_whose_kind_of_work_nobody_waits_is_level_with_those_at_work(
    accounts, queue, arrive, background
):
    for tenant, tokens in (("a", 700), ("b", 500)):
        sequence, other = arrive(tenant, background=background), arrive(tenant, background=not background)
        accounts.counter[[sequence.account, other.account]] = tokens, 900
        queue.remove(sequence)
    late = arrive("c", background=background)
    assert accounts.counter[late.account] == 700


def test_a_draft_passes_over_what_it_has_admitted(accounts, queue, arrive):
    """The queue itself does not change meanwhile."""
    sequences = [arrive("a"), arrive("a"), arrive("b"), arrive("a")]
    counter, admitted = accounts.counter.copy(), set()
    heads = queue.heads(counter, admitted)
    found = []
    while (sequence := heads.best()) is not None:
        admitted.add(sequence.id)
        accounts.charge(sequence.account, 10, counter)
        found.append(sequence)
    first, second, other, third = sequences
    assert found == [first, other, second, third]
    assert list(queue.values()) == [first, second, third, other]
    assert not accounts.counter.any()


def test_a_draft_that_begins_with_some_admitted_passes_over_these(accounts, queue, arrive):
    first, second, other = arrive("a"), arrive("a"), arrive("b")
    heads = queue.heads(accounts.counter, {first.id, other.id})
    assert heads.best() is second
    assert queue.heads(accounts.counter, {first.id, second.id, other.id}).best() is None


def test_of_tenants_that_are_level_the_first_to_come_is_first(accounts, queue, arrive):
    later, sooner = arrive("a"), arrive("b")
    later.arrival, sooner.arrival = 8, 3
    assert best(accounts, queue) is sooner
    charge(accounts, sooner.account, 1)
    assert best(accounts, queue) is later


def test_the_unknown_and_the_forgotten_cost_nothing(accounts, clock):
    for i in range(1000):
        account = accounts.open(TenantInfo(f"tenant-{i}"))
        charge(accounts, account, 5)
        accounts.close(account)
        clock.now_s += RECENT_S / 4
        accounts.expire()
    assert len(accounts.counter) <= 16
    clock.now_s += 2 * RECENT_S
    accounts.expire()
    assert not accounts.is_shared
    assert not accounts.counter.any()


def test_the_living_are_never_forgotten(accounts, clock):
    account = accounts.open(TenantInfo("a"))
    charge(accounts, account, 7)
    clock.now_s += 100 * RECENT_S
    accounts.expire()
    assert accounts.counter[account] == 7
    assert accounts.open(TenantInfo("a")) == account


class TestLowPriority:
    @pytest.fixture
    def running(self, accounts):
        def running(tenant, count, weight=1.0, background=False):
            account = accounts.open(TenantInfo(tenant, weight, background))
            accounts.running[account] = count
            return account

        return running

    def test_one_tenant_alone_is_none(self, accounts, running):
        account = running("a", 50)
        assert not accounts.low_priority()[account]

    def test_those_above_their_share_are(self, accounts, running):
        a, b = running("a", 7), running("b", 3)
        assert accounts.low_priority()[[a, b]].tolist() == [True, False]

    def test_a_little_more_is_none(self, accounts, running):
        a, b = running("a", 6), running("b", 4)
        assert not accounts.low_priority()[[a, b]].any()

    def test_equals_are_not(self, accounts, running):
        tenants = [running(f"t{i}", 2) for i in range(7)]
        assert not accounts.low_priority()[tenants].any()

    def test_shares_follow_weights(self, accounts, running):
        a, b = running("a", 6, weight=3.0), running("b", 4)
        assert accounts.low_priority()[[a, b]].tolist() == [False, True]

    def test_one_who_was_here_lately_is_expected_back(self, accounts, running, clock):
        a, b = running("a", 6), running("b", 0)
        accounts.close(b)
        assert accounts.low_priority()[a]
        clock.now_s += 2 * RECENT_S
        accounts.expire()
        assert not accounts.low_priority()[a]

    def test_one_that_is_behind_all_others_is_not(self, accounts, running):
        a, b = running("a", 7), running("b", 3)
        charge(accounts, b, BURST_TOKENS - 1)
        assert accounts.low_priority()[a]
        charge(accounts, b, 2)
        assert not accounts.low_priority()[a]

    def test_background_always_is(self, accounts, running):
        a, b = running("a", 6), running("a", 1, background=True)
        assert accounts.low_priority()[[a, b]].tolist() == [False, True]
        assert accounts.low_priority().sum() == 1
