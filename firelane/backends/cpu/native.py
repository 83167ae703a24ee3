"""The C interface of a compiled program (csrc/context.h), through ctypes. Calls release the GIL."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from firelane.contract import SlotState, StepInputs, StepLimits, StepOutputs


class LimitsStruct(ct.Structure):
    _fields_ = [
        (name, ct.c_int32)
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_output_rows",
            "max_model_len",
            "block_size",
            "num_blocks",
            "blocks_per_seq",
            "threads",
        )
    ]


class CreateStruct(ct.Structure):
    _fields_ = [
        ("limits", LimitsStruct),
        *(
            (name, ct.c_void_p)
            for name in (
                "weights",
                "pages",
                "position_tables",
                "arena",
                "offsets",
                "parts",
                "scratch",
                "tokens",
                "block_tables",
                "sampling",
                "bias_ids",
                "bias_values",
                "stop_ids",
                "masks",
                "states",
                "op_seconds",
                "link",
                "shared",
            )
        ),
        ("shared_apart", ct.c_size_t),
        ("mail_in", ct.c_void_p),
        ("mail_out", ct.c_void_p),
        ("mail_apart", ct.c_size_t),
        *((name, ct.c_int32) for name in ("stage", "lane", "ranks", "depth", "link_spins", "in_flight")),
        ("peers", ct.c_void_p),
        *((name, ct.c_int32) for name in ("peer_count", "lanes_here", "mail_in_fd", "mail_out_fd")),
    ]


class PeerStruct(ct.Structure):
    """A rank and the columns that it has of gathered rows: csrc/context.h, Peer."""

    _fields_ = [("fd", ct.c_int32), ("lane", ct.c_int32), ("column", ct.c_size_t), ("width", ct.c_size_t)]


class CodedStruct(ct.Structure):
    """A matrix in a coded form: csrc/panels/coded.h, CodedWeight."""

    _fields_ = [("bytes", ct.c_void_p), ("offsets", ct.c_void_p), ("decode_once_from", ct.c_int32)]


LINK_ENDED_AT, LINK_STAGES_AT, LINK_COUNTS_AT, LINK_BYTES = 64, 68, 128, 4096
"""Places in csrc/ranks/link.h, LinkHeader: of whether the group has ended, of the number of its stages, of
num_chunks, num_tokens and num_rows of each step; and where the header ends."""
STAGE_BUSY_AT, STAGE_BYTES = 576, 1024
"""The same of a StageHeader: of the seconds that its ranks have computed, and where it ends."""
MOST_IN_FLIGHT, MOST_LANES = 32, 8
"""Places of steps, and ranks of a stage."""

CHUNK_ARRAYS = (
    *("chunk_slot", "chunk_start", "chunk_len", "chunk_from", "chunk_save"),
    *("chunk_drafted", "chunk_spare"),
)
STEP_ARRAYS = (*CHUNK_ARRAYS, "row_token", "row_slot", "row_position", "row_kind", "row_mask")
OUTPUT_ARRAYS = ("tokens", "logprobs", "top_ids", "top_logprobs", "hidden")


class StepStruct(ct.Structure):
    _fields_ = [
        *((name, ct.c_int32) for name in ("num_chunks", "num_tokens", "num_rows", "pad")),
        *((name, ct.c_void_p) for name in STEP_ARRAYS),
        *((f"out_{name}", ct.c_void_p) for name in OUTPUT_ARRAYS),
    ]


def address(array: NDArray[Any]) -> int:
    return array.ctypes.data


def limits_struct(limits: StepLimits, threads: int) -> LimitsStruct:
    return LimitsStruct(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_output_rows=limits.max_output_rows,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        blocks_per_seq=limits.blocks_per_seq,
        threads=threads,
    )


def state_addresses(state: SlotState) -> dict[str, int]:
    names = ("tokens", "block_tables", "sampling", "bias_ids", "bias_values", "stop_ids", "masks")
    return {name: address(getattr(state, name)) for name in names}


def step_struct(inputs: StepInputs, outputs: StepOutputs) -> StepStruct:
    """A struct that points at the arrays; the counts are set at each step."""
    arrays = {name: address(getattr(inputs, name)) for name in STEP_ARRAYS}
    results = {f"out_{name}": address(getattr(outputs, name)) for name in OUTPUT_ARRAYS}
    return StepStruct(**arrays, **results)


def pointers(addresses: Sequence[int]) -> ct.Array[ct.c_void_p]:
    return (ct.c_void_p * max(1, len(addresses)))(*addresses)


class ProgramLibrary:
    """A compiled program, loaded."""

    def __init__(self, path: Path) -> None:
        lib = ct.CDLL(str(path))
        self.create = lib.firelane_create
        self.create.restype, self.create.argtypes = ct.c_void_p, [ct.POINTER(CreateStruct)]
        self.submit = lib.firelane_submit
        self.submit.restype, self.submit.argtypes = None, [ct.c_void_p, ct.POINTER(StepStruct)]
        self.wait = lib.firelane_wait
        self.wait.restype, self.wait.argtypes = None, [ct.c_void_p]
        self.follow = lib.firelane_follow
        self.follow.restype, self.follow.argtypes = None, [ct.c_void_p, ct.POINTER(StepStruct)]
        for name in ("hand_out", "end_group"):
            function = getattr(lib, f"firelane_{name}")
            function.restype, function.argtypes = None, [ct.c_void_p]
        self.hand_out, self.end_group = lib.firelane_hand_out, lib.firelane_end_group
        self.destroy = lib.firelane_destroy
        self.destroy.restype, self.destroy.argtypes = None, [ct.c_void_p]
        self._scratch_bytes = lib.firelane_scratch_bytes
        self._scratch_bytes.restype, self._scratch_bytes.argtypes = ct.c_longlong, [ct.c_longlong]

    def scratch_bytes(self, max_tokens: int) -> int:
        """Bytes of scratch memory of one thread, for steps of so many tokens."""
        return self._scratch_bytes(max_tokens)
