"""The commit of a step: its outputs become the true lengths of sequences, and one frame for the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.contract import EMBED, NO_SNAPSHOT, SAMPLE, SCORE, SlotState, StepInputs, StepOutputs
from firelane.engine.apply import PlanApplier
from firelane.engine.policies.policy import SchedulingPolicy
from firelane.engine.sequences.sequence import PEER, Sequence, Status
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.speculation.drafter import Drafter
from firelane.engine.step.plan import PrefillChunk, StepPlan
from firelane.kv import KvCache
from firelane.kv.prefix import number_of
from firelane.wire.frames import (
    Embedding,
    EngineStats,
    Finished,
    FinishReason,
    PagesAt,
    Started,
    StepFrame,
    TokenLogprobs,
)


class OutputProcessor:
    """Commits steps in order. What happens between two steps (an abort) is reported in the next frame."""

    def __init__(
        self,
        table: SequenceTable,
        kv: KvCache,
        applier: PlanApplier,
        policy: SchedulingPolicy,
        state: SlotState,
        drafter: Drafter,
        in_stats: Callable[[EngineStats], EngineStats],
    ) -> None:
        """in_stats: adds the counters of others."""
        self._table = table
        self._kv = kv
        self._applier = applier
        self._policy = policy
        self._state = state
        self._drafter = drafter
        self._in_stats = in_stats
        self._count = np.arange(len(table.sequences), dtype=np.int64)
        self._ones = np.ones(len(table.sequences), np.int32)
        self._started: list[Started] = []
        self._finished: list[Finished] = []
        self._completed: list[Finished] = []  # to be reported after the frame with their last token
        self._embeddings: list[Embedding] = []
        self._origin: tuple[str, str] | None = None
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._grammar_failures = 0

    @property
    def has_news(self) -> bool:
        """Something is to be reported without waiting for a step."""
        return bool(self._finished or self._completed)

    def commit(
        self,
        plan: StepPlan,
        inputs: StepInputs,
        outputs: StepOutputs,
        by_grammar: Mapping[int, FinishReason] = MappingProxyType({}),
    ) -> StepFrame:
        """Append the tokens, publish full blocks, end what has ended. Tokens of ended sequences are dropped.

        by_grammar: slots whose sequence ends by its grammar, and how. That is reported in the frame after:
        with "stop", a token in the same frame would count as a stop token, which is no part of the text.
        """
        table = self._table
        self._note_started(plan)
        rows, slots = self._sampled(plan, inputs)
        won, advanced = self._won(plan, outputs, rows)
        self._publish_full(plan, advanced)
        self._publish_states(plan)
        table.length[slots] = inputs.row_position[rows] + (won + 1)
        if plan.drafts is not None:
            table.expected_length[slots] += won - 1
        if table.slots_will_be_freed:
            wanted = table.wants_output[slots]
            rows, slots, won = rows[wanted], slots[wanted], won[wanted]
        tokens, drawn, counts = outputs.tokens[rows], None, list[int]()
        if plan.drafts is not None:
            tokens, drawn, counts = self._runs(slots, won)
        ids = table.ids[slots].tolist()
        logprobs = self._logprobs(plan, inputs, outputs, rows, counts)
        for slot, reason in by_grammar.items():
            self._complete(slot, reason)
        self._end_sequences(plan, slots, tokens)
        if any(chunk.sequence.pool for chunk in plan.chunks):
            self._pool(plan, inputs, outputs)
        table.retire(plan.step)
        self._steps += 1
        drawn = drawn or tokens.tolist()
        self._generated_tokens += len(drawn)
        if self._drafter.is_on:
            self._policy.drew(len(ids), len(drawn))
        return self._frame(plan.step, ids, drawn, logprobs, counts)

    def _sampled(self, plan: StepPlan, inputs: StepInputs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows that sample, of several that verify a draft the first one, and their slots."""
        drafts = plan.drafts
        if not plan.chunks and drafts is None:
            return self._count[: inputs.num_rows], plan.decode_slots
        decodes = drafts.num_rows if drafts else len(plan.decode_slots)
        rows = decodes + (inputs.row_kind[decodes : inputs.num_rows] == SAMPLE).nonzero()[0]
        first = drafts.first_rows if drafts else self._count[:decodes]
        slots = np.concatenate([plan.decode_slots, inputs.row_slot[rows].astype(np.int64)])
        return np.concatenate([first, rows]), slots

    def _won(
        self, plan: StepPlan, outputs: StepOutputs, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Tokens that each of these rows adds: one, and those of its draft that were drawn; and of decodes,
        by how many tokens what they have computed has advanced for good."""
        won = self._ones[: len(rows)]
        if plan.drafts is None:
            return won, won
        accepted = plan.drafts.won(outputs.tokens)
        advanced = self._table.spares.committed(plan.decode_slots, plan.drafts.counts, accepted)
        self._drafter.note(plan, accepted)
        won = won.copy()
        won[: len(accepted)] = accepted
        return won, advanced

    def _runs(
        self, slots: NDArray[np.int64], accepted: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], list[int], list[int]]:
        """Several tokens of a row, up to the first stop token or the sequence's end: the last one of each
        row, all tokens, and how many there are of each."""
        table, drawn, counts, last = self._table, list[int](), list[int](), list[int]()
        for slot, count in zip(slots.tolist(), accepted.tolist(), strict=True):
            before = int(table.length[slot]) - count
            stop = min(before + count, int(table.end[slot]))
            tokens = self._state.tokens[slot, before:stop]
            stops = np.flatnonzero(np.isin(tokens, self._state.stop_ids[slot]))
            run = tokens[: stops[0] + 1 if stops.size else None].tolist()
            table.length[slot] = before + len(run)
            drawn += run
            counts.append(len(run))
            last.append(run[-1])
        return np.array(last, np.int32), drawn, counts

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """A live sequence ends now."""
        self._table.finish(sequence)
        self.note_end(sequence, reason)

    def note_end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Report the end of a sequence that is not in the table."""
        self._finished.append(self._end_of(sequence, reason))

    def tell_pages(self, engine_id: str, address: str) -> None:
        """From now on requests that ask for it are told where others may have their pages."""
        self._origin = engine_id, address

    def _end_of(self, sequence: Sequence, reason: FinishReason) -> Finished:
        failure = sequence.failure if reason == "error" else ""
        self._grammar_failures += bool(failure)
        pages = self._pages_of(sequence) if sequence.tells_pages else None
        return Finished(sequence.id, reason, failure, pages, sequence.rejected_drafts)

    def _pages_of(self, sequence: Sequence) -> PagesAt | None:
        if self._origin is None:
            return None
        names = sequence.chain.known[: sequence.prompt_len // self._kv.block_size]
        return PagesAt(*self._origin, [number_of(name) for name in names])

    def report(self) -> StepFrame:
        """The news alone, while no step runs."""
        return self._frame(self._steps, [], [], [], [])

    def _note_started(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if chunk.writes_row and not sequence.started:
                sequence.started = True
                if not sequence.is_resumed:
                    self._prompt_tokens += sequence.prompt_len
                age_s = time.monotonic() - sequence.scheduled_s
                self._started.append(Started(sequence.id, chunk.start, age_s, *self._restored(chunk)))

    def _restored(self, chunk: PrefillChunk) -> tuple[int, int, int]:
        """Tokens before the chunk that came from host memory, a drive, and another engine."""
        size = self._kv.block_size
        blocks = chunk.sequence.restored_blocks(chunk.start // size)
        return size * blocks["host"], size * blocks["disk"], size * blocks[PEER]

    def _publish_full(self, plan: StepPlan, advanced: NDArray[np.int32]) -> None:
        """Give the prefix cache the blocks that this step has filled (all of their tokens are known by now),
        and the pool what lies behind the spans; but for what is computed once more."""
        table, slots = self._table, plan.decode_slots
        computed = plan.decode_positions + advanced[: len(slots)]
        is_full = computed >= table.publish_at[slots]
        for slot, stop in zip(slots[is_full].tolist(), computed[is_full].tolist(), strict=True):
            self._publish(slot, stop)
        for chunk in plan.chunks:
            stop = chunk.start + chunk.length
            if stop >= table.publish_at[chunk.slot]:
                self._publish(chunk.slot, stop)

    def _publish_states(self, plan: StepPlan) -> None:
        """Let later prompts find the snapshots that this step has written, and let go of those that it has
        read."""
        table, states = self._table, self._kv.states
        for chunk in plan.chunks:
            if chunk.snapshot != NO_SNAPSHOT and chunk.sequence.blocks is not None:
                states.begun(chunk.sequence.blocks.snapshots)
        for save in plan.saves:
            sequence = table.sequences[save.slot]
            if sequence is not None and sequence.status is Status.RUNNING and sequence.blocks is not None:
                tokens = self._state.tokens[save.slot]
                states.publish(sequence.blocks.snapshots, save, sequence.chain, tokens)

    def _publish(self, slot: int, computed: int) -> None:
        sequence, kv = self._table.sequences[slot], self._kv
        if sequence is not None and sequence.status is Status.RUNNING and sequence.blocks is not None:
            num_blocks = computed // kv.block_size
            kv.publish(sequence.blocks, sequence.chain, self._state.tokens[slot], num_blocks)
            if kv.num_limited:
                kv.advance(sequence.blocks, num_blocks * kv.block_size)
            self._table.publish_at[slot] = (num_blocks + 1) * kv.block_size

    def _end_sequences(self, plan: StepPlan, slots: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
        """Stop tokens first: a stop token at the length's end is a stop."""
        table = self._table
        is_stop = self._state.stop_ids.take(slots, axis=0) == tokens[:, None]
        ended = table.length[slots] >= table.end[slots]
        stopped: NDArray[np.bool_] | None = None
        if np.count_nonzero(is_stop):
            stopped = np.asarray(is_stop.any(axis=1))
            ended |= stopped
        for row in ended.nonzero()[0].tolist():
            sequence = table.at(int(slots[row]))
            if sequence.status is not Status.FINISHED:
                self.end(sequence, "stop" if stopped is not None and stopped[row] else "length")
        for chunk in plan.chunks:
            scored_only = chunk.is_last and not chunk.samples
            if scored_only and chunk.sequence.status is Status.RUNNING:
                self.end(chunk.sequence, "length")

    def _complete(self, slot: int, reason: FinishReason) -> None:
        sequence = self._table.sequences[slot]
        assert sequence is not None
        self._table.finish(sequence)
        self._completed.append(self._end_of(sequence, reason))

    def _pool(self, plan: StepPlan, inputs: StepInputs, outputs: StepOutputs) -> None:
        """Collect hidden states; a prompt that is through ends with its embedding."""
        table = self._table
        for row in np.flatnonzero(inputs.row_kind[: inputs.num_rows] == EMBED).tolist():
            slot = int(inputs.row_slot[row])
            sequence = table.sequences[slot]
            if table.wants_output[slot] and sequence is not None and sequence.pool is not None:
                sequence.pool.add(outputs.hidden[row])
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.pool is not None and chunk.is_last and table.wants_output[chunk.slot]:
                self._embeddings.append(Embedding(sequence.id, sequence.pool.values()))
                self.end(sequence, "stop")

    def _logprobs(
        self,
        plan: StepPlan,
        inputs: StepInputs,
        outputs: StepOutputs,
        rows: NDArray[np.int64],
        counts: list[int],
    ) -> list[TokenLogprobs]:
        """rows, counts: first row of each sequence that got tokens, and how many it got; one where there are
        no counts."""
        asked = self._table.logprobs[inputs.row_slot[rows]] >= 0
        sampled = rows[asked]
        if counts and sampled.size:
            runs = zip(sampled.tolist(), np.array(counts)[asked].tolist(), strict=True)
            sampled = np.concatenate([np.arange(row, row + count) for row, count in runs])
        if not sampled.size and not any(chunk.num_scores for chunk in plan.chunks):
            return []
        scored = np.flatnonzero(inputs.row_kind[: inputs.num_rows] == SCORE)
        scored = scored[self._table.wants_output[inputs.row_slot[scored]]]
        return [self._row_logprobs(inputs, outputs, row) for row in [*scored.tolist(), *sampled.tolist()]]

    def _row_logprobs(self, inputs: StepInputs, outputs: StepOutputs, row: int) -> TokenLogprobs:
        sequence: Any = self._table.sequences[inputs.row_slot[row]]
        sampling = sequence.sampling
        count = sampling.logprobs if inputs.row_kind[row] == SAMPLE else sampling.prompt_logprobs
        count = len(sampling.logprob_token_ids) or count
        known = outputs.top_ids[row, :count] >= 0  # a small vocabulary may have fewer alternatives
        return TokenLogprobs(
            sequence.id,
            int(inputs.row_position[row]) + 1,
            int(outputs.tokens[row]),
            float(outputs.logprobs[row]),
            outputs.top_ids[row, :count][known].tolist(),
            outputs.top_logprobs[row, :count][known].tolist(),
        )

    def _frame(
        self,
        step: int,
        ids: list[int],
        tokens: list[int],
        logprobs: list[TokenLogprobs],
        counts: list[int],
    ) -> StepFrame:
        started, self._started = self._started, []
        finished, self._finished, self._completed = self._finished, self._completed, []
        embeddings, self._embeddings = self._embeddings, []
        return StepFrame(
            step=step,
            ids=ids,
            tokens=tokens,
            started=started,
            finished=finished,
            logprobs=logprobs,
            stats=self._in_stats(self._stats()),
            embeddings=embeddings,
            counts=counts,
        )

    def _stats(self) -> EngineStats:
        table, applier = self._table, self._applier
        return EngineStats(
            running=len(table.running),
            waiting=len(table.waiting),
            kv_used_blocks=self._kv.num_used_pages,
            kv_total_blocks=self._kv.num_pages,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            prefix_queries=applier.prefix_queries,
            prefix_hits=applier.prefix_hits,
            preemptions=applier.preemptions,
            steps=self._steps,
            running_background=self._policy.num_running_background(),
            waiting_background=table.waiting.num_background(),
            grammar_failures=self._grammar_failures,
            state_snapshots=self._kv.states.num_named,
            state_snapshots_total=self._kv.states.count,
            state_snapshot_hits=applier.snapshot_hits,
            spec_drafts=self._drafter.drafts,
            spec_draft_tokens=self._drafter.drafted_tokens,
            spec_accepted_tokens=self._drafter.accepted_tokens,
        )
