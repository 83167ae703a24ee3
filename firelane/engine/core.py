"""The engine's loop: receive, schedule, submit, commit the step before, send. New behaviour belongs in what
it calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from firelane.contract import Executor, StepInputs, StepOutputs
from firelane.engine.adapters.places import AdapterPlaces
from firelane.engine.apply import PlanApplier
from firelane.engine.cache import cache_of
from firelane.engine.grammar.draft_masks import DraftMasks
from firelane.engine.grammar.masks import GrammarMasks
from firelane.engine.output import OutputProcessor
from firelane.engine.pages.page_waits import PageWaits, PullCounters
from firelane.engine.pages.pulls import PagePulls
from firelane.engine.pages.tier_reads import TierReads
from firelane.engine.policies.fair import FairPolicy
from firelane.engine.policies.forecast import refusal_of
from firelane.engine.policies.policy import SchedulingPolicy
from firelane.engine.scheduler import Scheduler
from firelane.engine.sequences.prerequisites import Prerequisites
from firelane.engine.sequences.sequence import Sequence, check_generates, make_sequence
from firelane.engine.sequences.spares import SpareStates
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.sequences.urgency import urgency_of
from firelane.engine.speculation.drafter import Drafter
from firelane.engine.speculation.proposer import Proposer
from firelane.engine.step.inputs import InputWriter
from firelane.engine.step.plan import StepPlan
from firelane.engine.step.slot_writer import SlotWriter
from firelane.engine.step.step_cost import StepCost
from firelane.errors import RequestError
from firelane.kv import SnapshotRule
from firelane.kv.tiers import TieredPages
from firelane.kv.transfer.seam import KVTransfer
from firelane.wire.cache_events import CacheEvents, PageChanges
from firelane.wire.frames import Abort, EngineStats, FinishReason, NewRequest, Rejected, StepFrame, Submit
from firelane.wire.submissions import restored

PREREQUISITE_POLL_S = 0.002
TIERS_POLL_S = 0.05
"""Between two reports of an idle engine whose tiers still store what was computed."""
NO_PREREQUISITES = Prerequisites()
NOTHING: Mapping[int, FinishReason] = MappingProxyType({})


class EngineChannel(Protocol):
    """The core's connection to whoever asks: frames in, frames out."""

    def receive(self, wait_s: float | None) -> Iterable[Submit | Abort]:
        """Frames that have arrived, in order. Where there are none, it may wait for `wait_s` seconds; None:
        for as long as it likes."""
        ...

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None: ...


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    inputs: StepInputs
    submitted_s: float


class EngineCore:
    """One executor and the sequences that share it. Owns neither the executor nor the channel."""

    def __init__(
        self,
        executor: Executor,
        channel: EngineChannel,
        *,
        prefix_cache: bool = True,
        prerequisites: Prerequisites = NO_PREREQUISITES,
        policy: SchedulingPolicy | None = None,
        proposer: Proposer | None = None,
        snapshots: SnapshotRule | None = None,
        adapters: AdapterPlaces | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """prerequisites: owned by the caller. policy: fair between tenants by default. proposer: what
        drafts tokens of sequences; None: nothing does. snapshots: where prompts leave snapshots of
        recurrent states. adapters: those in the executor's memory. clock: seconds, of steps and pulls. A
        model with recurrent state is served without drafts where the executor has no spare states."""
        limits = executor.limits
        self._executor, self._channel, self._clock = executor, channel, clock
        self.kv = cache_of(limits, snapshots, is_searched=prefix_cache and not limits.whole_prompts)
        self.policy = policy or FairPolicy(limits.max_num_batched_tokens)
        spares = SpareStates(limits.max_num_seqs, limits.num_spares, limits.first_spare)
        self.table = SequenceTable(limits.max_num_seqs, self.kv, executor.state, self.policy, spares)
        stages = executor.max_in_flight if executor.is_pipelined else 1
        self.scheduler = Scheduler(self.table, self.kv, limits, self.policy, stages)
        self._writer = SlotWriter(executor.state)
        self.drafter = Drafter(
            self.table,
            executor.state,
            proposer if limits.num_spares or not limits.state_bytes else None,
            DraftMasks(limits.max_num_seqs, self._writer),
        )
        self._applier = PlanApplier(self.table, self.kv, self.policy, self._writer)
        self._prerequisites, self._pulls = PageWaits(prerequisites), PullCounters()
        self._masks = GrammarMasks(self.table, self._writer)
        self._inputs = InputWriter(limits, executor.max_in_flight, executor.features_in)
        self._tell: Callable[[CacheEvents], None] = lambda _: None
        self._is_stuck = False  # for want of pages that are on their way
        self._outputs = OutputProcessor(
            self.table, self.kv, self._applier, self.policy, executor.state, self.drafter, self._in_stats
        )
        self._in_flight: deque[_InFlight] = deque()
        self.cost = StepCost()
        self._next_step, self._last_end_s = 1, 0.0
        self._adapters = adapters or AdapterPlaces()

    def have_pages_from(self, transfer: KVTransfer, address: str = "") -> None:
        """From now on requests wait for pages that other engines have. address: where those of other servers
        have pages from here; "" where they have none. Before the first step; the caller keeps `transfer`."""
        if address:
            self._outputs.tell_pages(transfer.engine_id, address)
        spare_pages = self.table.num_spare_pages
        pulls = PagePulls(self.kv, transfer, self._pulls, spare_pages, self._clock)
        self._prerequisites.sources += (pulls,)

    def expect_nothing(self) -> None:
        """Requests that were announced do not come."""
        self._prerequisites.expect_nothing()

    def have_tiers(self, tiers: TieredPages) -> None:
        """From now on requests wait for pages that `tiers` have, and do not have those from other engines.
        Before the first step; the caller keeps `tiers`."""
        reads = TierReads(self.kv, tiers, self._pulls, self.table.num_spare_pages)
        self._prerequisites.sources = (reads, *self._prerequisites.sources)

    def tell_cache(self, tell: Callable[[CacheEvents], None]) -> None:
        """From now on somebody hears of changes of the prefix cache, once a step. Before the first one."""
        self._tell = tell
        self.kv.tell_events()

    @property
    def is_idle(self) -> bool:
        """No sequence lives and no step runs."""
        return self._rests and not self._prerequisites.is_waiting

    @property
    def _rests(self) -> bool:
        """There is nothing to do before something arrives, or a prerequisite is there."""
        table = self.table
        return not (table.running or table.waiting or self._in_flight or self._outputs.has_news)

    def step(self) -> None:
        """One turn: a step is planned while the one before it runs, and that one is committed while the new
        one runs."""
        self._tell_cache()
        wait_s = self._idle_wait_s() if self._rests else PREREQUISITE_POLL_S if self._is_stuck else 0.0
        if self._rests and self._prerequisites.has_news:
            self._channel.send(self._outputs.report())
        self._receive(wait_s)
        if self._executor.is_pipelined and self._submit_beside():
            return
        if self._commit_drafts() and self._in_flight:
            self._submit_beside()
            return
        drawn = self._drawn_next()
        plan, inputs = self._plan(drawn)
        self._is_stuck = plan.is_empty and not self._in_flight and self.kv.incoming.num_pages > 0
        if not self._in_flight:
            self._submit(*self._drafted(plan, inputs))
        elif self._runs_ahead(plan):
            self._submit(plan, inputs)
            self._commit(*self._wait(), NOTHING)
        else:
            before, outputs = self._wait()
            plan, inputs = self._joined(plan, inputs, drawn)
            ended = self._masks.advance(before.inputs, outputs)
            self._submit(*self._drafted(plan, inputs))
            self._commit(before, outputs, ended)
        if self._outputs.has_news:
            self._channel.send(self._outputs.report())

    def submit(self, request: NewRequest) -> None:
        """Queue a request, or send its Rejected frame."""
        if request.prefetch:
            self._prerequisites.expect(request)
            return
        try:
            if self._get(request.id) is not None:
                raise RequestError(f"request id {request.id} is in use")
            limits = self._executor.limits
            is_encoder, can_generate = limits.whole_prompts, self._executor.can_generate
            check_generates(request, can_generate=can_generate, is_encoder=is_encoder)
            prepared = self._prerequisites.prepare(request)
            sequence = make_sequence(prepared, limits, self._executor.vocab_size, self.kv)
            sequence.urgency = urgency_of(request, self._clock())
            sequence.adapter = self._adapters.of(request.adapter)
            is_ready = self._prerequisites.add(sequence, request)
        except RequestError as error:
            self._channel.send(Rejected(request.id, str(error), status=error.status, code=error.code or ""))
            return
        if is_ready:
            self._add(sequence)

    def _add(self, sequence: Sequence) -> None:
        if sequence.urgency.has_deadline:
            hit = self.kv.search.lookup(sequence.chain, sequence.tokens, sequence.reusable_tokens)
            sequence.likely_cached = hit.num_blocks * self.kv.block_size
        self.table.add(sequence)
        outcome = sequence.outcome
        if outcome is not None:
            self._outputs.end(sequence, outcome)

    def abort(self, request_id: int) -> None:
        """End a request now; an unknown id is ignored."""
        sequence = self._get(request_id)
        if sequence is not None:
            self._abort(sequence)

    def forget_tenant(self, tenant: bytes) -> int:
        """Erase a tenant's pages, and its texts that drafts come from; returns how many pages there were."""
        self.drafter.forget(tenant)
        return self.kv.forget_tenant(tenant)

    def adapters_in_use(self) -> set[int]:
        """Places of adapters that sequences, or steps in flight, name."""
        slots = [step.inputs.chunk_slot[: step.inputs.num_chunks] for step in self._in_flight]
        named = {place for of_step in slots for place in self._executor.state.adapter[of_step].tolist()}
        return named | {one.adapter for one in (*self.table.live(), *self._prerequisites.waiting())}

    def abort_all(self) -> None:
        for sequence in [*self.table.live(), *self._prerequisites.waiting()]:
            self._abort(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool, slots and queues agree."""
        self.table.check_integrity()

    def _idle_wait_s(self) -> float | None:
        """Time to wait for something to arrive. An idle engine holds no slot and no page."""
        self.table.check_idle()
        if self._prerequisites.is_waiting:
            return PREREQUISITE_POLL_S
        return TIERS_POLL_S if self._prerequisites.is_behind else None

    def _receive(self, wait_s: float | None) -> None:
        reserved = self.kv.num_incoming
        for frame in self._channel.receive(wait_s):
            if isinstance(frame, Submit):
                for request in restored(frame.requests):
                    self.submit(request)
            else:
                for request_id in frame.ids:
                    self.abort(request_id)
        if self._prerequisites.is_waiting:
            for sequence, error in self._prerequisites.take():
                if error is not None:
                    self._channel.send(Rejected(sequence.id, str(error), status=error.status))
                else:
                    self._add(sequence)
        for late in self.policy.unreachable(self.table.prefilling.values()):
            self.table.finish(late.sequence)
            self._channel.send(refusal_of(late))
        self.table.changes += self.kv.num_incoming - reserved

    def _in_stats(self, stats: EngineStats) -> EngineStats:
        return self._prerequisites.in_stats(self._pulls.in_stats(stats))

    def _tell_cache(self) -> None:
        """Changes of the prefix cache, behind the tokens of the step that changed it."""
        events = self.kv.take_events()
        if events:
            self._tell(CacheEvents(events))
        pages = self.kv.pages.take()
        if pages is not None:
            self._channel.send(pages)

    def _get(self, request_id: int) -> Sequence | None:
        return self.table.get(request_id) or self._prerequisites.get(request_id)

    def _abort(self, sequence: Sequence) -> None:
        if self._prerequisites.get(sequence.id) is sequence:
            self._prerequisites.abort(sequence)
            self._outputs.note_end(sequence, "abort")
        else:
            self._outputs.end(sequence, "abort")

    def _submit_beside(self) -> bool:
        """In a pipeline with room for a step: submit one that needs no token of those in flight, if any."""
        if not 0 < len(self._in_flight) < self._executor.max_in_flight:
            return False
        plan = self.scheduler.schedule(self._next_step, drawn=self._in_flight[0].plan.step - 1)
        if not plan.is_empty:
            self._submit(*self._drafted(plan, self._inputs.fill(plan)))
        return not plan.is_empty

    def _commit_drafts(self) -> bool:
        """Wait for the oldest step in flight, where it has drafts: the next one is planned when it is known
        how far they have brought their sequences, with what has come meanwhile."""
        if not self._in_flight or self._in_flight[0].plan.drafts is None:
            return False
        before, outputs = self._wait()
        ended = self._masks.advance(before.inputs, outputs, before.plan.drafts)
        self._commit(before, outputs, ended)
        self._receive(0.0)
        return True

    def _drafted(self, plan: StepPlan, inputs: StepInputs) -> tuple[StepPlan, StepInputs]:
        """The plan with drafts, where there are any. All tokens that it goes on from are drawn."""
        if not self.drafter.is_on:
            return plan, inputs
        limits = self._executor.limits
        rows = min(
            limits.max_num_batched_tokens - inputs.num_tokens, limits.max_output_rows - inputs.num_rows
        )
        if limits.state_bytes:
            rows = min(rows, self._most_computed_anew(plan))
        drafted = self.drafter.draft(plan, rows, limits.block_size, is_alone=not self._in_flight)
        return (plan, inputs) if drafted is plan else (drafted, self._inputs.fill(drafted))

    def _most_computed_anew(self, plan: StepPlan) -> int:
        """Tokens that a draft may have, so that a step has room for what all sequences compute anew beside
        their next tokens."""
        limits, others = self._executor.limits, self.table.spares.num_others(plan.decode_slots)
        return limits.max_num_batched_tokens - limits.max_num_seqs - others

    def _drawn_next(self) -> int:
        """The last step whose tokens the next one may go on from, once the oldest one in flight has ended."""
        if self._executor.is_pipelined and self._in_flight:
            return self._in_flight[0].plan.step
        return self._next_step - 1

    def _plan(self, drawn: int) -> tuple[StepPlan, StepInputs]:
        plan = self.scheduler.schedule(self._next_step, drawn)
        return plan, self._inputs.fill(plan)

    def _joined(self, plan: StepPlan, inputs: StepInputs, drawn: int) -> tuple[StepPlan, StepInputs]:
        """The plan with what came while a step ran."""
        self._receive(0.0)
        return (plan, inputs) if plan.changes == self.table.changes else self._plan(drawn)

    def _runs_ahead(self, plan: StepPlan) -> bool:
        """The step need not wait for the one in flight: nothing could join it, and no mask of it follows from
        what that one draws."""
        if self._executor.is_pipelined or len(self._in_flight) >= self._executor.max_in_flight:
            return False
        if self.drafter.is_on:
            return False
        return not (plan.is_empty or plan.chunks or self.table.waiting or self._masks.is_needed)

    def _wait(self) -> tuple[_InFlight, StepOutputs]:
        """The oldest step in flight, with its outputs."""
        step = self._in_flight.popleft()
        outputs = self._executor.wait()
        now_s = self._clock()
        step_s = now_s - max(step.submitted_s, self._last_end_s)
        self.policy.step_ended(step.inputs.num_tokens, step_s)
        self._pulls.note_step(step.inputs.num_tokens, step_s)
        self.cost.note(step.inputs.num_tokens, step_s)
        if self.drafter.is_on:
            self.drafter.times.note(step.inputs.num_tokens, step_s)
            self.drafter.note_step(step.plan, step.inputs, outputs)
        self._last_end_s = now_s
        return step, outputs

    def _commit(self, step: _InFlight, outputs: StepOutputs, ended: Mapping[int, FinishReason]) -> None:
        self._channel.send(self._outputs.commit(step.plan, step.inputs, outputs, ended))

    def _submit(self, plan: StepPlan, inputs: StepInputs) -> None:
        self._applier.apply(plan)
        if plan.is_empty:
            return
        for chunk in plan.chunks:
            if chunk.writes_row:
                self._writer.write_row(chunk.sequence)
                self._masks.write_row(chunk.sequence)
        if plan.drafts is not None:
            self._writer.write_drafts(inputs, plan.drafts)
        began_s = self._clock()  # a step may be over before the call returns
        self._executor.submit(inputs)
        self._next_step += 1
        self._in_flight.append(_InFlight(plan, inputs, began_s))
