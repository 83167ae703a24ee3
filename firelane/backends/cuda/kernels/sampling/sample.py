"""Sampling: the launches of the op Sample, and the memory that they share.

Three launches: what each row asks for (sample_slots), a look at all logits (sample_scan, many programs a
row), and the draw (sample_finish, one program a row).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.kernels.sampling.sample_finish import finish_kernel
from firelane.backends.cuda.kernels.sampling.sample_layout import (
    BIAS_ROOM,
    GROUPS,
    RECORD_WORDS,
    block_size,
    bus_read_size,
    chunk_size,
    num_blocks,
    row_size,
)
from firelane.backends.cuda.kernels.sampling.sample_logprobs import LogprobOutputs
from firelane.backends.cuda.kernels.sampling.sample_scan import scan_kernel
from firelane.backends.cuda.kernels.sampling.sample_select import CandidateLists
from firelane.backends.cuda.kernels.sampling.sample_slots import read_slots_kernel
from firelane.backends.cuda.kernels.sampling.sample_summary import SummaryOperand
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.backends.cuda.step.tables import MAX_IN_FLIGHT, StepTables
from firelane.contract import MAX_LOGPROBS, MAX_STOP_IDS

_SLOTS_WARPS = 8
_SCAN_WARPS = 8


@dataclass(frozen=True, kw_only=True)
class SampleOutputs:
    """Pinned host memory, as in contract.StepOutputs: tokens int32, logprobs float32 [sets, rows]; top_ids
    int32, top_logprobs float32 [sets, rows, MAX_LOGPROBS]. A step writes the set of its parity."""

    tokens: Tensor
    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def allocate(cls, max_rows: int, device: Device) -> SampleOutputs:
        rows = (MAX_IN_FLIGHT, max_rows)
        return cls(
            tokens=device.pinned(*rows),
            logprobs=device.pinned(*rows, dtype=torch.float32),
            top_ids=device.pinned(*rows, MAX_LOGPROBS),
            top_logprobs=device.pinned(*rows, MAX_LOGPROBS, dtype=torch.float32),
        )


@dataclass(frozen=True, kw_only=True)
class SampleScratch:
    """Scratch memory that the launches of one step leave each other, by row; about three times the logits.

    records: int32 [rows, RECORD_WORDS], see sample_layout; bias_ids, bias_values, bans, allowed: what the
    slot lists, checked. adjusted: float32 [rows, row_size], the logits that are drawn by; tally: int32, the
    same shape, the penalties' counts, then a list of candidates; values: float32, the same shape, a list of
    their logits. bests, best_ids: float32, int32 [rows, 2, blocks], of the raw logits and of those drawn by;
    peaks, masses: float32, int64 [rows, 2, groups]; groups: int32 [rows, groups], a list.
    """

    records: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    bans: Tensor
    allowed: Tensor
    adjusted: Tensor
    tally: Tensor
    values: Tensor
    bests: Tensor
    best_ids: Tensor
    masses: Tensor
    peaks: Tensor
    groups: Tensor

    @property
    def nbytes(self) -> int:
        tensors: list[Tensor] = [getattr(self, f.name) for f in fields(self)]
        return sum(t.nbytes for t in tensors)

    @classmethod
    def allocate(cls, vocab: int, max_rows: int, device: Device) -> SampleScratch:
        rows, blocks = max_rows, num_blocks(vocab)
        groups = blocks * GROUPS
        return cls(
            records=device.empty(rows, RECORD_WORDS),
            bias_ids=device.empty(rows, BIAS_ROOM),
            bias_values=device.empty(rows, BIAS_ROOM, dtype=torch.float32),
            bans=device.empty(rows, MAX_STOP_IDS),
            allowed=device.empty(rows, vocab // 32 + 1),
            adjusted=device.empty(rows, row_size(vocab), dtype=torch.float32),
            tally=device.empty(rows, row_size(vocab)),
            values=device.empty(rows, row_size(vocab), dtype=torch.float32),
            bests=device.empty(rows, 2, blocks, dtype=torch.float32),
            best_ids=device.empty(rows, 2, blocks),
            masses=device.empty(rows, 2, groups, dtype=torch.int64),
            peaks=device.empty(rows, 2, groups, dtype=torch.float32),
            groups=device.empty(rows, groups),
        )


def sample(  # limits: exempt (kernel: as the op, and the rows of the bucket)
    logits: Tensor,
    tables: StepTables,
    state: PinnedState,
    outputs: SampleOutputs,
    scratch: SampleScratch,
    *,
    vocab: int,
    max_rows: int,
) -> list[Launch]:
    """Launches of the op Sample; rows of kind EMBED are left alone. logits: float32 [max_rows, stride], read
    only.

    NaN logits are taken for -inf; a row of nothing else gives token 0, or the lowest that its mask allows,
    and a log-probability of NaN. Writes outputs, and state.tokens for rows that draw.
    """
    return [
        _read_slots(tables, state, scratch, vocab=vocab, max_rows=max_rows),
        _scan(logits, scratch, vocab=vocab, max_rows=max_rows),
        _finish(logits, tables, state, outputs, scratch, vocab=vocab, max_rows=max_rows),
    ]


def _read_slots(
    tables: StepTables, state: PinnedState, scratch: SampleScratch, *, vocab: int, max_rows: int
) -> Launch:
    return Launch(
        kernel=read_slots_kernel,
        grid=(max_rows,),
        arguments={
            "counts": tables.counts,
            "rows": tables.rows,
            "tokens": state.tokens,
            "tokens_stride": state.tokens.stride(0),
            "slot_params": state.params,
            "bias_ids": state.bias_ids,
            "bias_values": state.bias_values,
            "stop_ids": state.stop_ids,
            "masks": state.masks,
            "records": scratch.records,
            "tally": scratch.tally,
            "own_bias_ids": scratch.bias_ids,
            "own_bias_values": scratch.bias_values,
            "bans": scratch.bans,
            "allowed": scratch.allowed,
            "VOCAB": vocab,
            "ROW": row_size(vocab),
            "CHUNK": bus_read_size(vocab),
        },
        warps=_SLOTS_WARPS,
    )


def _scan(logits: Tensor, scratch: SampleScratch, *, vocab: int, max_rows: int) -> Launch:
    return Launch(
        kernel=scan_kernel,
        grid=(num_blocks(vocab), max_rows),
        arguments={
            "records": scratch.records,
            "logits": logits,
            "logits_stride": logits.stride(0),
            "adjusted": scratch.adjusted,
            "tally": scratch.tally,
            "bias_ids": scratch.bias_ids,
            "bias_values": scratch.bias_values,
            "bans": scratch.bans,
            "allowed": scratch.allowed,
            "summary": _summary(scratch),
            "VOCAB": vocab,
            "BLOCK": block_size(vocab),
            "BLOCKS": num_blocks(vocab),
        },
        warps=_SCAN_WARPS,
    )


def _finish(  # limits: exempt (as sample())
    logits: Tensor,
    tables: StepTables,
    state: PinnedState,
    outputs: SampleOutputs,
    scratch: SampleScratch,
    *,
    vocab: int,
    max_rows: int,
) -> Launch:
    blocks = num_blocks(vocab)
    return Launch(
        kernel=finish_kernel,
        grid=(max_rows,),
        arguments={
            "counts": tables.counts,
            "rows": tables.rows,
            "records": scratch.records,
            "logits": logits,
            "logits_stride": logits.stride(0),
            "adjusted": scratch.adjusted,
            "lists": CandidateLists(scratch.groups, ids=scratch.tally, logits=scratch.values),
            "summary": _summary(scratch),
            "tokens": state.tokens,
            "tokens_stride": state.tokens.stride(0),
            "bias_ids": state.bias_ids,
            "out_rows": outputs.tokens.shape[1],
            "out_tokens": outputs.tokens,
            "out": LogprobOutputs(outputs.logprobs, outputs.top_ids, outputs.top_logprobs),
            "VOCAB": vocab,
            "BLOCK": block_size(vocab),
            "BLOCKS": blocks,
            "CHUNK": chunk_size(vocab),
            "LANES": power_of_two(blocks),
            "PEAKS": power_of_two(blocks * GROUPS),
        },
        warps=_finish_warps(vocab),
    )


def _finish_warps(vocab: int) -> int:
    """Four elements a thread of what a program holds at once: a chunk of a list, or all peaks."""
    return min(32, max(1, chunk_size(vocab) // 128, power_of_two(num_blocks(vocab) * GROUPS) // 128))


def _summary(scratch: SampleScratch) -> SummaryOperand:
    """Pointers to what the scan leaves of each row."""
    return SummaryOperand(scratch.bests, scratch.best_ids, scratch.masses, scratch.peaks)
