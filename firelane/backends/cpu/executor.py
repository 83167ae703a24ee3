"""The CPU executor: owns the compiled program, its memory and its threads, and runs one native call per
step."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.adapters import CpuAdapters
from firelane.backends.cpu.alike import op_parts
from firelane.backends.cpu.codegen.layout import CACHE_LINE_BYTES, Layout
from firelane.backends.cpu.link import RankLink
from firelane.backends.cpu.memory import zeroed
from firelane.backends.cpu.native import (
    CodedStruct,
    CreateStruct,
    PeerStruct,
    ProgramLibrary,
    StepStruct,
    address,
    limits_struct,
    pointers,
    state_addresses,
    step_struct,
)
from firelane.backends.cpu.page_pool import CpuStatePool, PagePool
from firelane.backends.cpu.position_tables import PositionTables
from firelane.contract import (
    NOTHING,
    AdapterMemory,
    GivenBack,
    PageMemory,
    SlotState,
    StepInputs,
    StepLimits,
    StepOutputs,
)
from firelane.errors import OutOfMemoryError
from firelane.native.pages import give_back
from firelane.program.values import Weight
from firelane.weights.formats.formats import GROUPINGS, Format
from firelane.weights.packing.check import WeightCheck
from firelane.weights.packing.packed import PackedWeights

DECODE_ONCE_FROM: Mapping[Format, int] = {
    Format.PANEL_CODED4: 4,
    Format.PANEL_CODED3: 2,
    **dict.fromkeys(GROUPINGS, 2),
}
"""Row tiles from which a panel is decoded once into scratch and kept, not once for each tile in registers.
Decoding 12 bits hides behind the products of a tile; 3-bit codes take more than that."""


class CpuExecutor:
    """A contract.Executor on CPUs. All memory is placed here, before the first step."""

    is_pipelined = False

    def __init__(
        self,
        *,
        library: ProgramLibrary,
        layout: Layout,
        weights: PackedWeights,
        threads: int,
        decode_once_from: Mapping[Format, int] = DECODE_ONCE_FROM,
        shared_pages: bool = False,
        check: WeightCheck | None = None,
        link: RankLink | None = None,
        state: SlotState | None = None,
        max_in_flight: int = 1,
    ) -> None:
        """decode_once_from: by exponent-coded format, the number of row tiles from which a panel is decoded
        once into scratch and kept, not once for each tile in registers. shared_pages: the KV cache is a file
        in memory that another process can map. check: of the weights; steps end with CacheError once it has
        failed. link: to the other ranks, of one of several; state: of the slots, where they share it;
        max_in_flight: steps, which run one after the other here, and go on elsewhere."""
        limits, program = layout.limits, layout.program
        self._decode_once_from = decode_once_from
        self._coded: list[tuple[CodedStruct, NDArray[np.uint64]]] = []
        self._library, self._layout, self._weights = library, layout, weights
        self._check = check or WeightCheck()
        self._positions = PositionTables(list(layout.table_index), limits.max_model_len)
        if link:
            self._positions.make(limits.max_model_len)  # other ranks follow in steps that nothing here sees
        self._link = link
        self._state = state or SlotState.allocate(limits, program.vocab_size)
        pages, states = (link.pages, link.states) if link else (None, None)
        self._pool = PagePool(layout, shared=shared_pages, memory=pages)
        self._state_pool = CpuStatePool(layout, shared=shared_pages, memory=states)
        self.states = self._state_pool.memory
        self._parts = op_parts(program)
        self.arena = zeroed(_aligned(layout.placement.nbytes) + layout.integer_rows_bytes)
        self._scratch = zeroed(library.scratch_bytes(limits.max_num_batched_tokens) * threads)
        self.op_seconds = np.zeros(len(program.ops) + 1, np.float64)
        self.max_in_flight = max_in_flight
        self._outputs = [
            StepOutputs.allocate(limits, program.hidden_width, program.features_out)
            for _ in range(max_in_flight + 1)
        ]
        self._has_features = bool(program.features_in or program.features_out)
        assert max_in_flight == 1 or not self._has_features, "one step at a time has places of features"
        asked = layout.adapter_limits
        self._adapters = CpuAdapters(layout.adapters, asked) if asked else None
        self._steps: list[tuple[StepInputs, StepStruct] | None] = [None] * len(self._outputs)
        self._submitted = self._waited = 0
        self._handle: int | None = self._create(threads)

    def _create(self, threads: int) -> int:
        program = self._layout.program
        # The pointer arrays must live until firelane_create has returned, and the tables as long as the
        # executor.
        arena, link = address(self.arena), self._link
        elsewhere = {v: at - arena for v, at in link.places().items()} if link else {}
        places = {**self._layout.placement.offsets, **elsewhere}
        offsets = [places[v] for v in self._layout.value_index]
        offsets.append(_aligned(self._layout.placement.nbytes))  # Layout.integer_rows_index
        if self._has_features or self._adapters:
            # Layout.features_in_index, features_out_index: see _place_features
            offsets += [0, address(self._outputs[0].features) - arena]
        if self._adapters:  # Layout.adapters_index
            held = (self._adapters.heads, self._adapters.factors, self._adapters.tiles)
            offsets += [address(array) - arena for array in (self._state.adapter, *held)]
        self._tables = [
            pointers(offsets),
            pointers([self._weight_address(w.name) for w in program.weights]),
            pointers([address(table) for table in self._positions.arrays]),
        ]
        offsets_table, weights, position_tables = (ct.cast(t, ct.c_void_p) for t in self._tables)
        arguments = CreateStruct(
            limits=limits_struct(self._layout.limits, threads),
            weights=weights,
            pages=address(self.pages),
            position_tables=position_tables,
            arena=arena,
            offsets=offsets_table,
            parts=address(self._parts),
            scratch=address(self._scratch),
            states=address(self.states),
            op_seconds=address(self.op_seconds),
            ranks=1,
            depth=1,
            in_flight=self.max_in_flight,
            mail_in_fd=-1,
            mail_out_fd=-1,
            **state_addresses(self._state),
        )
        self._peers = _connect(arguments, link) if link else None
        handle = self._library.create(ct.byref(arguments))
        if not handle:
            raise OutOfMemoryError(
                f"the system grants no {threads} threads: lower --threads or raise its limits"
            )
        return handle

    def _weight_address(self, name: str) -> int:
        """The argument of the kernels: the packed weight, or a struct that describes its coded form."""
        if name not in self._layout.forms:
            return self._weights.address(name)
        table = self._weights.panel_table(name)
        coded = CodedStruct(
            bytes=self._weights.address(name),
            offsets=address(table),
            decode_once_from=self._decode_once_from[self._layout.forms[name]],
        )
        self._coded.append((coded, table))
        return ct.addressof(coded)

    @property
    def limits(self) -> StepLimits:
        return self._layout.limits

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def state(self) -> SlotState:
        return self._state

    @property
    def vocab_size(self) -> int:
        return self._layout.program.vocab_size

    @property
    def hidden_width(self) -> int:
        return self._layout.program.hidden_width

    @property
    def features_in(self) -> int:
        return self._layout.program.features_in

    @property
    def features_out(self) -> int:
        return self._layout.program.features_out

    @property
    def can_generate(self) -> bool:
        return self._layout.program.can_generate

    @property
    def arithmetic(self) -> str:
        """The CPU target that kernels are compiled for."""
        return self._layout.isa

    @property
    def activation_dtype(self) -> str:
        return "int8" if self._layout.integers else "bf16"

    @property
    def weights_bytes(self) -> int:
        return self._weights.nbytes

    def bytes_of(self, weight: Weight) -> int:
        """Bytes that a weight of the program takes in memory, in its form."""
        return self._weights.bytes_of(weight.name)

    @property
    def pages(self) -> NDArray[np.uint8]:
        """The KV cache: uint8 [num_blocks, page_bytes]."""
        return self._pool.pages

    @property
    def page_memory(self) -> PageMemory | None:
        """None of one of several ranks."""
        return self._pool.as_bytes if self._link is None else None

    @property
    def state_memory(self) -> PageMemory | None:
        """None without recurrent state, and of one of several ranks."""
        return self._state_pool.as_bytes if self._link is None else None

    @property
    def kv_bytes(self) -> int:
        """None of a cache that the first rank of the stage has counted."""
        is_counted = self._link is not None and self._layout.shares_cache and self._link.lane > 0
        return 0 if is_counted else self.pages.nbytes

    @property
    def adapters(self) -> AdapterMemory | None:
        return self._adapters

    def submit(self, inputs: StepInputs) -> None:
        self._positions.make_for(inputs)
        self._check.step_begins()
        step = self._struct(inputs)
        step.num_chunks, step.num_tokens, step.num_rows = (
            inputs.num_chunks,
            inputs.num_tokens,
            inputs.num_rows,
        )
        self._library.submit(self._handle, ct.byref(step))

    def follow(self) -> None:
        """Run the steps that the first rank hands out, until the group ends."""
        assert self._link is not None
        steps = [step_struct(inputs, self._outputs[0]) for inputs in self._link.ring.inputs]
        self._library.follow(self._handle, (StepStruct * len(steps))(*steps))

    def ended_steps(self) -> int:
        """Number of steps that this rank has ended."""
        return int(self.op_seconds[-1])

    def hand_out(self) -> None:
        """Have the other ranks run the step whose inputs were handed to the link last."""
        assert self._link is not None
        self._library.hand_out(self._link.header)

    def end_group(self) -> None:
        """Have no rank wait any longer, from any thread; steps give nothing from then on."""
        if self._link is not None:
            self._library.end_group(self._link.header)

    def _struct(self, inputs: StepInputs) -> StepStruct:
        """That of the last step with the same outputs where the inputs are the same: an engine takes its sets
        of inputs in turns, too."""
        turn = self._submitted % len(self._outputs)
        self._submitted += 1
        last = self._steps[turn]
        if last is None or last[0] is not inputs:
            last = self._steps[turn] = (inputs, step_struct(inputs, self._outputs[turn]))
        if self._has_features:
            self._place_features(inputs, self._outputs[turn])
        return last[1]

    def _place_features(self, inputs: StepInputs, outputs: StepOutputs) -> None:
        """Have the next step read and tell features in its own arrays: no other step runs."""
        assert inputs.features.shape[1] == self.features_in, f"features of {inputs.features.shape[1]} numbers"
        offsets, at = self._tables[0], self._layout.features_in_index
        places = (address(inputs.features), address(outputs.features))
        offsets[at], offsets[at + 1] = (place - address(self.arena) for place in places)

    def wait(self) -> StepOutputs:
        self._library.wait(self._handle)
        self._check.step_ends()
        outputs = self._outputs[self._waited % len(self._outputs)]
        self._waited += 1
        return outputs

    def settle(self) -> None:
        """Wait until nothing works beside the steps: weights lie where they stay, and were checked."""
        self._check.wait()

    @property
    def can_sleep(self) -> bool:
        return True

    def standby(self) -> GivenBack:
        self._pool.standby()
        self._state_pool.standby()
        for memory in (self.arena, self._scratch):
            give_back(memory)
        self._check.standby()
        return NOTHING

    def wake(self) -> None:
        self._check.wake()

    def release(self) -> None:
        if self._handle is not None:
            self._library.destroy(self._handle)
            self._handle = None
            self._check.close()
            self._weights.close()
            self._pool.release()
            self._state_pool.release()


def _connect(arguments: CreateStruct, link: RankLink) -> ct.Array[PeerStruct]:
    """Returns what has to live as long as the executor."""
    arguments.link, arguments.shared, arguments.shared_apart = link.header, link.sums, link.sizes.sum
    arguments.mail_in, arguments.mail_out, arguments.mail_apart = link.mail_in, link.mail_out, link.sizes.mail
    arguments.stage, arguments.lane, arguments.ranks = link.stage, link.lane, link.ranks.lanes
    arguments.depth, arguments.link_spins = link.depth, link.spins
    found = link.peers()
    peers = (PeerStruct * len(found))(*found)
    arguments.peers, arguments.peer_count = ct.addressof(peers), len(found) - 1
    arguments.lanes_here = min(link.hosts.each, link.ranks.lanes)
    arguments.mail_in_fd, arguments.mail_out_fd = link.wires.mail_in, link.wires.mail_out
    return peers


def _aligned(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
