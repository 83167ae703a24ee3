"""An Executor that draws each token from a hash of (seed, position), at once or after a modelled time.

It needs the Program for its sizes alone, and costs the host next to nothing. A logit bias of 100 or more
forces its token, as it does with a real model: so a test can steer what is drawn. A hidden state is a hash of
the tokens up to its position.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.contract import (
    EMBED,
    MAX_LOGPROBS,
    NOTHING,
    SAMPLE,
    AdapterLimits,
    AdapterTensors,
    BackendDefaults,
    GivenBack,
    HostPages,
    ProgressCallback,
    SlotState,
    StepInputs,
    StepLimits,
    StepOutputs,
    check_adapter,
    mask_row,
    resolve_limits,
)
from firelane.engine_config import ExecutorConfig
from firelane.program.adapters import adaptable_modules
from firelane.program.program import Program

DEFAULT_KV_TOKENS = 1 << 20
STATES_PER_SEQUENCE = 4
"""The number of states of each sequence whose memory is added to that of the pages."""
DEFAULTS = BackendDefaults(block_size=16, max_num_batched_tokens=512)
FORCING_BIAS = 100.0
NULL_PAGE_BYTES = 16
StepTime = Callable[[StepInputs], float]
"""Seconds that a step takes."""


class NullAdapters:
    """A contract.AdapterMemory. tensors: by place, what is there."""

    def __init__(self, limits: AdapterLimits, modules: Mapping[str, tuple[int, int]]) -> None:
        self.limits, self.modules = limits, modules
        self.tensors: dict[int, AdapterTensors] = {}

    def put(self, place: int, tensors: AdapterTensors) -> None:
        check_adapter(self, place, tensors)
        self.tensors[place] = dict(tensors)

    def clear(self, place: int) -> None:
        self.tensors.pop(place, None)


def describe(config: ExecutorConfig) -> str:
    del config
    return "null backend: no model is computed"


def load(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> NullExecutor:
    """Raises OutOfMemoryError where kv_cache_bytes cannot hold one sequence of max_model_len tokens."""
    del model_dir
    progress("load", 0.0, 0.0, "B")
    tokens = max(DEFAULT_KV_TOKENS, config.max_model_len or program.max_model_len)
    pages = len(program.spans) * tokens * program.kv_bytes_per_token
    limits = resolve_limits(
        program,
        config,
        DEFAULTS,
        free_bytes=sys.maxsize,
        default_kv_bytes=pages + STATES_PER_SEQUENCE * config.max_num_seqs * program.state_bytes,
    )
    return NullExecutor(
        limits,
        program.vocab_size,
        hidden_width=program.hidden_width,
        features_in=program.features_in,
        features_out=program.features_out,
        adapters=_adapters(program, config),
    )


def _adapters(program: Program, config: ExecutorConfig) -> NullAdapters | None:
    limits = AdapterLimits.of(config)
    return None if limits is None else NullAdapters(limits, adaptable_modules(program))


class NullExecutor:
    """A contract.Executor without a model. The features that it tells are zeros.

    step_time: seconds that a step takes, from its submission or the end of the step before it; None answers
    at once. clock, sleep: of that time, in seconds; a simulation has its own.
    """

    arithmetic = ""
    activation_dtype = "bf16"
    weights_bytes = 0
    kv_bytes = 0
    is_pipelined = False
    can_sleep = True
    can_generate = True

    def __init__(
        self,
        limits: StepLimits,
        vocab_size: int,
        step_time: StepTime | None = None,
        *,
        hidden_width: int = 16,
        features_in: int = 0,
        features_out: int = 0,
        max_in_flight: int = 1,
        adapters: NullAdapters | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limits = limits
        self.max_in_flight = max_in_flight
        self.vocab_size = vocab_size
        self.adapters = adapters
        self.hidden_width = hidden_width
        self.features_in, self.features_out = features_in, features_out
        self.state = SlotState.allocate(limits, vocab_size)
        self._step_time, self._clock, self._sleep = step_time, clock, sleep
        self._outputs = [
            StepOutputs.allocate(limits, hidden_width, features_out) for _ in range(max_in_flight + 1)
        ]
        self._in_flight: deque[tuple[StepOutputs, float]] = deque()
        self._last_end_s = 0.0
        self._sleeps = False
        self._pages = np.zeros((limits.num_blocks, NULL_PAGE_BYTES), np.uint8)
        self._states = np.zeros((limits.num_states, NULL_PAGE_BYTES), np.uint8)

    @property
    def page_memory(self) -> HostPages:
        """Pages of a few bytes that nothing is ever written to."""
        return HostPages(pages=self._pages, layout_id=f"null {self.limits.block_size}")

    @property
    def state_memory(self) -> HostPages | None:
        """Memory of states, like page_memory."""
        if not self.limits.state_bytes:
            return None
        return HostPages(pages=self._states, layout_id=f"null {self.limits.state_bytes}")

    def settle(self) -> None:
        """Nothing works beside the steps."""

    def submit(self, inputs: StepInputs) -> None:
        assert not self._sleeps, "a step in standby"
        assert len(self._in_flight) < self.max_in_flight, "too many steps are in flight"
        outputs = self._outputs.pop(0)
        self._outputs.append(outputs)
        self._run(inputs, outputs)
        if self._step_time:
            self._last_end_s = max(self._clock(), self._last_end_s) + self._step_time(inputs)
        self._in_flight.append((outputs, self._last_end_s))

    def wait(self) -> StepOutputs:
        assert self._in_flight, "no step is in flight"
        outputs, ends_s = self._in_flight.popleft()
        left_s = ends_s - self._clock() if ends_s else 0.0
        if left_s > 0:
            self._sleep(left_s)
        return outputs

    def standby(self) -> GivenBack:
        assert not self._in_flight, "standby with a step in flight"
        self._sleeps = True
        return NOTHING

    def wake(self) -> None:
        self._sleeps = False

    def release(self) -> None:
        self._in_flight.clear()

    def _run(self, inputs: StepInputs, outputs: StepOutputs) -> None:
        rows = inputs.num_rows
        state = self.state
        slots, positions = inputs.row_slot[:rows], inputs.row_position[:rows]
        sampling, tokens = state.sampling, outputs.tokens[:rows]
        tokens[:] = mix(sampling["seed"][slots], positions + 1) % np.uint64(self.vocab_size)
        scored = inputs.row_kind[:rows] != SAMPLE
        if np.count_nonzero(scored):
            tokens[scored] = state.tokens[slots[scored], positions[scored] + 1]
            self._embed(inputs, outputs)
        sampled = ~scored
        self._force(tokens, slots, sampled & (sampling["num_bias"][slots] > 0))
        self._avoid_stops(tokens, slots, sampled & (positions + 1 < sampling["stop_from"][slots]))
        self._keep_to_masks(inputs, tokens, (sampled & (sampling["masked"][slots] > 0)).nonzero()[0])
        state.tokens[slots, positions + 1] = tokens
        rows_scored = (scored | (sampling["logprobs"][slots] >= 0)).nonzero()[0]
        self._score(outputs, rows_scored)
        self._report(outputs, slots, rows_scored)

    def _embed(self, inputs: StepInputs, outputs: StepOutputs) -> None:
        width = np.arange(self.hidden_width, dtype=np.int32)
        for row in np.flatnonzero(inputs.row_kind[: inputs.num_rows] == EMBED).tolist():
            slot, position = inputs.row_slot[row], inputs.row_position[row]
            tokens = self.state.tokens[slot, : position + 1].astype(np.uint64)
            history = mix(tokens, np.arange(position + 1, dtype=np.int32)).sum(keepdims=True)
            outputs.hidden[row] = mix(history, width) * 2.0**-63 - 1.0

    def _force(self, tokens: NDArray[np.int32], slots: NDArray[np.int32], rows: NDArray[np.bool_]) -> None:
        for row in rows.nonzero()[0]:
            slot, count = slots[row], self.state.sampling["num_bias"][slots[row]]
            best = int(self.state.bias_values[slot, :count].argmax())
            if self.state.bias_values[slot, best] >= FORCING_BIAS:
                tokens[row] = self.state.bias_ids[slot, best]

    def _avoid_stops(
        self, tokens: NDArray[np.int32], slots: NDArray[np.int32], rows: NDArray[np.bool_]
    ) -> None:
        """Take the next id that is not a stop token."""
        for row in rows.nonzero()[0]:
            slot = slots[row]
            stops = set(self.state.stop_ids[slot, : self.state.sampling["num_stop_ids"][slot]].tolist())
            while int(tokens[row]) in stops:
                tokens[row] = (int(tokens[row]) + 1) % self.vocab_size

    def _keep_to_masks(self, inputs: StepInputs, tokens: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
        """Instead of a token that the mask forbids take the lowest one that it allows."""
        state = self.state
        for row in rows.tolist():
            slot, token = inputs.row_slot[row], int(tokens[row])
            mask = state.masks[mask_row(inputs, row, len(state.tokens))]
            if mask[token // 32] >> np.uint32(token % 32) & 1:
                continue
            sampling, unbanned = state.sampling[slot], mask.copy()
            if inputs.row_position[row] + 1 < sampling["stop_from"]:
                stops = state.stop_ids[slot, : sampling["num_stop_ids"]]
                np.bitwise_and.at(unbanned, stops // 32, ~(np.uint32(1) << (stops % 32).astype(np.uint32)))
            lowest = lowest_allowed(unbanned, self.vocab_size)
            tokens[row] = max(0, lowest if lowest >= 0 else lowest_allowed(mask, self.vocab_size))

    def _score(self, outputs: StepOutputs, rows: NDArray[np.int64]) -> None:
        """Log-probabilities that look real: the token is the best one, each alternative half as likely."""
        if rows.size:
            ranks = np.arange(MAX_LOGPROBS, dtype=np.int32)
            tokens = outputs.tokens[rows]
            outputs.logprobs[rows] = -0.7 - (tokens % 7) * 0.1
            outputs.top_ids[rows] = (tokens[:, None] + ranks) % self.vocab_size
            outputs.top_logprobs[rows] = outputs.logprobs[rows, None] - 0.7 * ranks

    def _report(self, outputs: StepOutputs, slots: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
        """Tokens that a slot names, in place of the best ones."""
        named = self.state.sampling["num_reported"][slots[rows]]
        for row, count in zip(rows[named > 0].tolist(), named[named > 0].tolist(), strict=True):
            ids = self.state.bias_ids[slots[row], :count]
            outputs.top_ids[row, :count] = ids
            outputs.top_logprobs[row, :count] = -0.1 - (ids % 97) * 0.05


def lowest_allowed(mask: NDArray[np.uint32], vocab_size: int) -> int:
    """The lowest token of a mask; -1 where it allows none."""
    words = np.flatnonzero(mask)
    if not words.size:
        return -1
    bits = int(mask[words[0]])
    token = 32 * int(words[0]) + (bits & -bits).bit_length() - 1
    return token if token < vocab_size else -1


def mix(seeds: NDArray[np.uint64], positions: NDArray[np.int32]) -> NDArray[np.uint64]:
    """One well-mixed 64-bit number for each (seed, position): the SplitMix64 output function (Steele et al.
    2014)."""
    z = seeds + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
