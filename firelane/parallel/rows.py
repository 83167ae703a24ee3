"""Data-parallel attention: the program of one of several ranks that divide the rows of a step, where
attention cannot be shared by heads, or where all heads read the same latents (DeepSeek-AI, "DeepSeek-V3
Technical Report", 2024, beside parallel experts).

Each rank computes an attention block, from its norm to the product that it ends with, for the rows of its
tokens, and gathers what the others have made. The ranks have one KV cache in memory that all of them read and
write: no key is kept twice. A row's sums know nothing of other rows, so its bits are those of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from firelane.program.ops import (
    Attention,
    AwaitCache,
    Cast,
    Gated,
    GatedLinear,
    GatherRows,
    HeadLinear,
    LatentCache,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    TakeRows,
    with_values,
)
from firelane.program.program import Program
from firelane.program.values import Rows, Value

ROW_WISE = Attention | Cast | Gated | GatedLinear | HeadLinear | LatentCache | Linear | RMSNorm | RopeAndCache
"""Ops that make a row of that row of their inputs, and of the KV cache."""


def share_rows(program: Program, ranks: int, rank: int) -> Program:
    """The program of rank `rank`, with the rows of attention divided. A block whose values are read elsewhere
    stays whole on every rank."""
    if ranks == 1:
        return program
    return replace(program, ops=tuple(_RowRewrite(program, ranks, rank, _blocks(program)).ops()))


def _blocks(program: Program) -> list[set[int]]:
    """The numbers of the ops of each block; its last op is the product that it ends with."""
    users: dict[Value, set[int]] = {}
    for i, op in enumerate(program.ops):
        for value in op.inputs:
            users.setdefault(value, set()).add(i)
    found, taken = list[set[int]](), set[int]()
    for i, op in enumerate(program.ops):
        if isinstance(op, Attention) and (members := _block(program, i, users, taken)):
            found.append(members)
            taken |= members
    return found


def _block(program: Program, first: int, users: Mapping[Value, Set[int]], taken: Set[int]) -> set[int]:
    """The block of the attention op `first`; none where it has no end, or something else reads of it."""
    members = _behind(program, first)
    end = max(members, default=0)
    for i in reversed(range(end)):
        op = program.ops[i]
        read = set[int]().union(*(users.get(value, set[int]()) for value in op.outputs))
        if i not in members | taken and isinstance(op, ROW_WISE) and read and read <= members:
            members.add(i)
    inside = (value for i in members - {end} for value in program.ops[i].outputs)
    return members if all(users[value] <= members for value in inside) else set()


def _behind(program: Program, first: int) -> set[int]:
    """The attention op, and those behind it up to the product that the block ends with."""
    members, mixed = {first}, {*program.ops[first].outputs}
    for i, op in enumerate(program.ops[first + 1 :], first + 1):
        if mixed.isdisjoint(op.inputs):
            continue
        if not isinstance(op, ROW_WISE):
            break
        members.add(i)
        if isinstance(op, Linear):
            return members
        mixed.update(op.outputs)
    return set()


class _RowRewrite:
    """One pass from the first op to the last."""

    def __init__(self, program: Program, ranks: int, rank: int, blocks: list[set[int]]) -> None:
        self._program, self._ranks, self._rank = program, ranks, rank
        self._members = set[int]().union(*blocks)
        self._ends = {max(members) for members in blocks}
        self._own: dict[Value, Value] = {}
        self._written = set[int]()

    def ops(self) -> Iterator[Op]:
        for i, op in enumerate(self._program.ops):
            if i in self._members:
                yield from self._divided(op, is_end=i in self._ends)
            else:
                yield op

    def _divided(self, op: Op, *, is_end: bool) -> Iterator[Op]:
        """The op for this rank's rows, and what it needs of others."""
        for value in dict.fromkeys(op.inputs):
            if value not in self._own:
                self._own[value] = _own(value, "taken")
                yield TakeRows(x=value, rank=self._rank, ranks=self._ranks, out=self._own[value])
        match op:
            case RopeAndCache(keys=True) | LatentCache():
                self._written.add(op.layer)
            case Attention(layer=layer) if layer in self._written:
                self._written.remove(layer)
                yield AwaitCache(layer=layer, ranks=self._ranks)
            case _:
                pass
        made = {value: _own(value, "own") for value in op.outputs}
        yield with_values(op, self._own | made)
        if not is_end:
            self._own |= made
            return
        for value, own in made.items():
            yield GatherRows(x=own, ranks=self._ranks, out=value)


def _own(value: Value, name: str) -> Value:
    return replace(value, name=f"{value.name}.{name}", rows=Rows.OWN)
