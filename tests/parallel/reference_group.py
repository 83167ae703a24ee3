"""A group of ranks in one process, in NumPy: the oracle of every other way to run them.

Ranks run in lock step: each goes on until it waits for rows that others have not sent yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from firelane.contract import SlotState, StepInputs
from firelane.parallel.ranks import RankLayout
from firelane.parallel.shard import AttentionShare
from firelane.program.ops import AllReduce, AwaitCache, Gather, GatherColumns, GatherRows, Op, Receive, Send
from firelane.program.program import Program, computes_own_rows
from firelane.program.reference import ReferenceExecutor
from firelane.program.reference_step import ReferenceStep

F32 = NDArray[np.float32]
Mail = dict[tuple[int, str], dict[int, F32]]
"""By stage and name, what its ranks have sent for it."""


class ReferenceGroup:
    """Runs the ranks' programs, in the order of their numbers in `layout`, each with weights of its own."""

    def __init__(
        self,
        layout: RankLayout,
        programs: Sequence[Program],
        weights: Sequence[Mapping[str, F32]],
        *,
        slots: int,
        max_len: int,
        snapshots: int = 0,
    ) -> None:
        assert len(programs) == layout.ranks, f"{len(programs)} programs for {layout.ranks} ranks"
        self._layout = layout
        self.executors = [
            ReferenceExecutor(program, own, slots=slots, max_len=max_len, snapshots=snapshots)
            for program, own in zip(programs, weights, strict=True)
        ]
        for rank, executor in enumerate(self.executors):
            if layout.attention is AttentionShare.ROWS:  # the ranks of a stage have one cache
                executor.cache = self.executors[rank - layout.lane_of(rank)].cache

    def step(self, inputs: StepInputs, state: SlotState) -> list[ReferenceStep]:
        """The steps of all ranks; outputs of that of layout.sampler hold what was drawn."""
        ranks = [_Rank(self._layout, i, e, inputs, state) for i, e in enumerate(self.executors)]
        mail: Mail = {}
        while any(rank.left for rank in ranks):
            went_on = [rank.run(mail) for rank in ranks]
            assert any(went_on), f"ranks wait for each other: {[rank.left[0] for rank in ranks if rank.left]}"
        return [rank.step for rank in ranks]


class _Rank:
    """One rank in a step: `left` are the ops that it has not run yet."""

    def __init__(
        self,
        layout: RankLayout,
        number: int,
        executor: ReferenceExecutor,
        inputs: StepInputs,
        state: SlotState,
    ) -> None:
        self._stage, self._lane = layout.stage_of(number), layout.lane_of(number)
        self.step = executor.begin(inputs, state)
        self.step.exact = True
        self._own = self.step.of_rank(self._lane, layout.lanes)
        self.left = list(executor.program.ops)

    def run(self, mail: Mail) -> bool:
        """Run as far as it can; returns whether it ran anything."""
        before = len(self.left)
        while self.left and self._is_ready(self.left[0], mail):
            self._compute(self.left.pop(0))
        return len(self.left) < before

    def _compute(self, op: Op) -> None:
        if not computes_own_rows(op):
            op.reference(self.step)
        elif len(self._own.token_ids):
            op.reference(self._own)
        else:
            for value in op.outputs:
                self._own.write(value, np.empty((0, value.width), np.float32))

    def _is_ready(self, op: Op, mail: Mail) -> bool:
        """Once it has sent what it has to send, whether what it waits for is there."""
        match op:
            case AllReduce(out=out, x=x, ranks=count):
                return self._exchange(mail, out.name, self.step.read(x), count)
            case GatherColumns(out=out, x=x, widths=widths):
                return self._exchange(mail, out.name, self.step.read(x), len(widths))
            case Gather(name=name, x=x, widths=widths, rank=rank):
                return self._exchange(mail, name, self.step.read(x), 0 if rank else len(widths))
            case GatherRows(out=out, x=x, ranks=count):
                return self._exchange(mail, out.name, self.step.read(x), count)
            case AwaitCache(layer=layer, ranks=count):
                return self._exchange(mail, f"cache {layer}", np.empty(0, np.float32), count)
            case Send(x=x):
                mail.setdefault((self._stage + 1, f"{x.name} to {self._lane}"), {})[0] = self.step.read(x)
                return True
            case Receive(out=out):
                sent = mail.get((self._stage, f"{out.name} to {self._lane}"), {})
                self.step.mail = {out.name: sent}
                return bool(sent)
            case _:
                return True

    def _exchange(self, mail: Mail, name: str, mine: F32, count: int) -> bool:
        sent = mail.setdefault((self._stage, name), {})
        sent[self._lane] = mine
        self.step.mail = {name: sent}
        return len(sent) >= count
