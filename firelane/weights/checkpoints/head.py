"""Head: the tensor that makes the logits, and the one of the embeddings, where config.json says that both are
one. The tensors decide: two that differ are both used, one alone is used for both.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from firelane.program.ops import Embed, Op
from firelane.program.program import Program
from firelane.program.recipes import widened
from firelane.program.values import Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint

TENSOR = "lm_head.weight"
SLAB_NUMBERS = 1 << 20
log = logging.getLogger(__name__)


def with_stored_head(program: Program, checkpoint: Checkpoint) -> Program:
    """The program with the head that the checkpoint has: its own matrix in place of the embedding table where
    both are stored, whether or not they differ; the one that is stored as both where the table is missing. A
    program with a head of its own that is not stored cannot generate: the table stands in for it, which the
    log says."""
    table = shared_table(program)
    if table is None:
        return _without_head(program, checkpoint)
    if checkpoint.shape(TENSOR) is None:
        return program
    own = Weight.stored("lm_head", table.shape, table.dtype, TENSOR)
    if checkpoint.shape(table.pieces[0].tensor) is None:
        return _with(program, table, head=replace(own, name=table.name), is_table=True)
    return _with(program, table, head=own, is_table=False)


def tied_where_equal(tied: Program, apart: Program, checkpoint: Checkpoint) -> Program:
    """`tied` where the stored head is an equal copy of the embedding table, else `apart`, which the log says.
    apart: of with_stored_head(). Raises CheckpointError where tensors cannot be read."""
    table = shared_table(tied)
    if table is None or apart.head is None or shared_table(apart) is not None:
        return apart
    if _equal(checkpoint, table.pieces[0].tensor, TENSOR):
        return tied
    log.warning(
        "head_untied model=%s: config.json says that embeddings are tied to the head, but the checkpoint's "
        "%s differs from %s: it is used",
        *(checkpoint.directory.name, TENSOR, table.pieces[0].tensor),
    )
    return apart


def shared_table(program: Program) -> Weight | None:
    """The embedding table that is the head, too; None where there is no such."""
    tables = [op.table for op in program.ops if isinstance(op, Embed)]
    return next((table for table in tables if program.head and program.head.weight is table), None)


def _without_head(program: Program, checkpoint: Checkpoint) -> Program:
    """The program with its embedding table as the head that the checkpoint lacks; itself where the checkpoint
    has a part of the head, or no table of the head's shape."""
    table = next((op.table for op in program.ops if isinstance(op, Embed)), None)
    if table is None or program.head is None:
        return program
    own = program.head.weight
    is_stored = any(checkpoint.shape(name) is not None for name in own.tensors)
    has_table = all(checkpoint.shape(name) is not None for name in table.tensors)
    if is_stored or not has_table or (own.shape, own.dtype) != (table.shape, table.dtype):
        return program
    log.warning(
        "head_missing model=%s: the checkpoint has no %s: it serves embeddings, and requests that generate "
        "text are refused; where its embeddings are the head, config.json must say tie_word_embeddings: true",
        *(checkpoint.directory.name, own.tensors[0]),
    )
    return replace(_with(program, table, head=table, is_table=False), can_generate=False)


def _with(program: Program, table: Weight, *, head: Weight, is_table: bool) -> Program:
    """The program with this weight as its head; is_table: and in place of the table."""
    assert program.head is not None
    made = replace(program.head, weight=head)

    def changed(op: Op) -> Op:
        if op is program.head:
            return made
        if is_table and isinstance(op, Embed) and op.table is table:
            return replace(op, table=head)
        return op

    return replace(program, ops=tuple(map(changed, program.ops)), head=made)


def _equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Whether two matrices have the same numbers; read slab by slab up to the first that differs."""
    shape = checkpoint.shape(first)
    if shape is None or len(shape) != 2 or shape != checkpoint.shape(second):
        return False
    step = max(1, SLAB_NUMBERS // max(shape[1], 1))
    for at in range(0, shape[0], step):
        end = min(at + step, shape[0])
        one, other = (widened(checkpoint.rows(name, at, end)) for name in (first, second))
        if not np.array_equal(one, other):
            return False
    return True
