"""The deadlines of waiting sequences: which of them cannot be kept any more.

At its arrival a sequence is asked whether it could keep its deadline if it were alone. Then, every CHECK_S
at most, all that wait are gone through in their order, each with the prompts that are ahead of it,
those of other tenants by their shares. What an answer takes is predicted by the times of this engine's steps
(forecast.py). A sequence that has begun once is never asked again: it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from firelane.engine.policies.accounts import Accounts, FairQueue
from firelane.engine.policies.forecast import Forecast, LateSequence, Pace
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.urgency import PLAIN

CHECK_S, CHECKED = 0.02, 200
"""Time between two looks at so many waiting sequences: more of them are looked at less often."""


class WorkAhead(NamedTuple):
    """Prompt tokens that are to be computed. ahead: of one account, before its first waiting sequence; total:
    of all; others: of other accounts. ratio: of these, the most for each token of this one."""

    ahead: float
    total: float
    others: float
    ratio: float


class DeadlineWatch:
    """Counts the urgent sequences that live, and finds those that will be late."""

    def __init__(self, accounts: Accounts, waiting: FairQueue, forecast: Forecast) -> None:
        self._accounts, self._waiting, self._forecast = accounts, waiting, forecast
        self.num_urgent = 0
        """Live sequences with a priority or a deadline."""
        self._num_due = 0
        self._arrived: list[Sequence] = []
        self._next_check_s = 0.0

    def added(self, sequence: Sequence) -> None:
        if sequence.urgency is PLAIN:
            return
        self.num_urgent += 1
        if sequence.urgency.has_deadline:
            self._num_due += 1
            self._arrived.append(sequence)

    def finished(self, sequence: Sequence) -> None:
        if sequence.urgency is not PLAIN:
            self.num_urgent -= 1
            self._num_due -= sequence.urgency.has_deadline

    def unreachable(self, prefilling: Iterable[Sequence]) -> list[LateSequence]:
        """Waiting sequences that are to be refused. prefilling: those whose prompt is being computed."""
        if not self._num_due:
            return []
        now_s = self._accounts.clock()
        arrived, self._arrived = self._arrived, []
        if now_s < self._next_check_s:
            return self._of_arrived(arrived, now_s)
        self._next_check_s = now_s + CHECK_S * max(1.0, len(self._waiting) / CHECKED)
        return self._of_all(prefilling, now_s)

    def _of_arrived(self, arrived: list[Sequence], now_s: float) -> list[LateSequence]:
        live = [one for one in arrived if self._waiting.get(one.id) is one]
        return _late(((one, self._forecast.alone_s(one)) for one in live), now_s)

    def _of_all(self, prefilling: Iterable[Sequence], now_s: float) -> list[LateSequence]:
        queues = {account: list(queue) for account, queue in self._waiting.by_account().items()}
        ahead = dict.fromkeys(queues, 0.0)
        for sequence in prefilling:
            ahead[sequence.account] = ahead.get(sequence.account, 0.0) + self._forecast.work(sequence)
        total = dict(ahead)
        for account, queue in queues.items():
            total[account] += sum(map(self._forecast.work, queue))
        pace, found, all_tokens = self._forecast.pace(), list[LateSequence](), sum(total.values())
        for account, queue in queues.items():
            if any(one.urgency.has_deadline for one in queue):
                others = self._others(account, total)
                work = WorkAhead(ahead[account], all_tokens, *others)
                found += self._of_account(queue, work, pace, now_s)
        return found

    def _of_account(
        self, queue: list[Sequence], work: WorkAhead, pace: Pace, now_s: float
    ) -> list[LateSequence]:
        found: list[LateSequence] = []
        ahead = work.ahead
        for sequence in queue:
            own = self._forecast.work(sequence)
            first = ahead + own + min(work.others, (ahead + own) * work.ratio)
            behind = max(0.0, work.total - first)
            needs_s = pace.seconds(first, sequence.urgency.output_tokens, behind)
            late = _late(((sequence, needs_s),), now_s)
            found += late
            ahead += 0.0 if late else own
        return found

    def _others(self, account: int, total: dict[int, float]) -> tuple[float, float]:
        """Background work waits for all other, and nobody waits for it."""
        background, weight = self._accounts.background, self._accounts.weight
        rivals = [one for one in total if one != account and background[one] <= background[account]]
        weights = sum(float(weight[one]) for one in rivals)
        ratio = float("inf") if background[account] else weights / float(weight[account])
        return sum(total[one] for one in rivals), ratio


def _late(needs: Iterable[tuple[Sequence, float]], now_s: float) -> list[LateSequence]:
    return [
        LateSequence(one, one.urgency.due_s - now_s, needs_s)
        for one, needs_s in needs
        if now_s + needs_s > one.urgency.due_s and not (one.started or one.is_resumed)
    ]
