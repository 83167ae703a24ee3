"""From the directory of a head, or a model with layers that predict tokens, to the head's executor."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.backends import create_beside
from firelane.contract import CAUSAL, Executor, ProgressCallback, StepLimits
from firelane.engine.speculation.heads.head_rows import HeadRows
from firelane.engine_config import QUANTIZING, EngineConfig
from firelane.errors import CheckpointError, UsageError
from firelane.models.config.reader import read_config
from firelane.models.heads.draft_head import DraftHead, TargetSizes
from firelane.models.heads.eagle3 import eagle3_head
from firelane.models.registry import load_predictor, warn_of_unknown_keys
from firelane.program.features import with_hidden, with_streams
from firelane.program.program import Program
from firelane.program.values import DType
from firelane.weights.checkpoints.checkpoint import Checkpoint

INTEGERS = ("I64", "I32")


@dataclass(frozen=True, kw_only=True)
class HeadSource:
    """A head that is known and not yet loaded. directory: of its weights; target: of its target's."""

    head: DraftHead
    directory: Path
    target: Path

    def told_by(self, program: Program) -> Program:
        """The target's program, telling what the head reads. Raises UnsupportedModelError."""
        streams = self.head.streams
        return with_streams(program, streams) if streams else with_hidden(program)


def read_head(config: EngineConfig, program: Program) -> HeadSource | None:
    """The head that `config` asks for, for the model `program`; None where it asks for none. Raises
    ModelErrors that name what is wrong with it, UsageError where a head cannot draft for this model."""
    directory = config.eagle3_head
    if directory is None and config.speculative != "mtp":
        return None
    if CAUSAL not in program.spans or not program.can_generate:
        lack = "attention over all tokens" if program.can_generate else "head that draws tokens"
        raise UsageError(
            f"--speculative {config.speculative}: {config.model_dir.name} has no {lack}; leave it out"
        )
    return predictor_source(config) if directory is None else eagle3_source(directory, program, config)


def telling(program: Program, config: EngineConfig) -> Program:
    """The model's program, telling what the head reads that `config` asks for. Raises as read_head(), and
    UnsupportedModelError where the program cannot tell it."""
    head = read_head(config, program)
    return program if head is None else head.told_by(program)


def eagle3_source(directory: Path, program: Program, config: EngineConfig) -> HeadSource:
    """The EAGLE-3 head in this directory, for the model `program`. Raises ModelErrors that name what is wrong
    with it."""
    checkpoint = Checkpoint.open(directory)
    sizes = TargetSizes(
        vocab_size=program.vocab_size,
        width=program.hidden_width,
        layers=len(program.streams) - 1,
        max_model_len=config.max_model_len or program.max_model_len,
    )
    head = eagle3_head(read_config(directory), checkpoint.names, sizes)
    warn_of_unknown_keys(head.program, directory.name)
    return HeadSource(head=head, directory=directory, target=config.model_dir)


def predictor_source(config: EngineConfig) -> HeadSource:
    """The head of the layers that predict tokens which the model has. Raises UnsupportedModelError where it
    has none."""
    dtype = DType.BF16 if config.rounds else None
    head = load_predictor(read_config(config.model_dir), max_model_len=config.max_model_len, dtype=dtype)
    return HeadSource(head=head, directory=config.model_dir, target=config.model_dir)


def sized_like(config: EngineConfig, second: Program, limits: StepLimits) -> EngineConfig:
    """The config of an executor of `second` with the sizes of the served model, `limits`: each of its cache
    groups has as many pages. They are in memory of this process, and nothing else reads them. It is one rank,
    with the threads of one."""
    pages = len(second.spans) * limits.num_blocks
    return msgspec.structs.replace(
        config,
        threads=config.threads and max(1, config.threads // config.ranks),
        tensor_parallel_size=1,
        expert_parallel_size=1,
        pipeline_parallel_size=1,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=pages,
        kv_cache_bytes=pages * limits.block_size * second.kv_bytes_per_token,
        kv_cache_memory="private",
        activation_dtype="bf16",
        loras=(),
        max_loras=0,
        tiers=None,
    )


def load_head(
    source: HeadSource, config: EngineConfig, target: Executor, progress: ProgressCallback
) -> tuple[tuple[Executor, ...], HeadRows]:
    """The executors of a head's layers, with slots and pages like the target's, and what its rows are made
    of. Raises ModelErrors that name what is wrong with its files, OutOfMemoryError."""
    rows = _rows(source, target.vocab_size)
    with ExitStack() as stack:
        executors: list[Executor] = []
        for program in source.head.programs:
            executors.append(_load_layer(program, source, config, target, progress))
            stack.callback(executors[-1].release)
        stack.pop_all()
    return tuple(executors), rows


def _load_layer(
    program: Program, source: HeadSource, config: EngineConfig, target: Executor, progress: ProgressCallback
) -> Executor:
    limits = target.limits
    own = msgspec.structs.replace(
        sized_like(config, program, limits),
        kv_cache_dtype="auto",
        weights="bf16" if config.weights in QUANTIZING else config.weights,
    )
    program = replace(program, max_model_len=limits.max_model_len)
    return create_beside(target, config.backend, program, source.directory, own, progress)


def _rows(source: HeadSource, vocab_size: int) -> HeadRows:
    head = source.head
    checkpoint = Checkpoint.open(source.directory if head.has_table else source.target)
    table: NDArray[Any] = checkpoint.tensor(head.table)
    if table.shape != (vocab_size, head.width):
        raise CheckpointError(
            f"{checkpoint.origin}: {head.table} has shape {list(table.shape)}, not {[vocab_size, head.width]}"
        )
    return HeadRows(
        table=table,
        target_width=head.target_width,
        own_at=head.own_at,
        row_width=head.row_width,
        token_ids=_token_ids(source, vocab_size) if head.token_ids else None,
    )


def _token_ids(source: HeadSource, vocab_size: int) -> NDArray[np.int64]:
    """The target's token of each number of the head. Raises CheckpointError for one that is none."""
    name, count = source.head.token_ids, source.head.program.vocab_size
    checkpoint = Checkpoint.open(source.directory)
    if checkpoint.dtype(name) not in INTEGERS or checkpoint.shape(name) != (count,):
        found = f"{checkpoint.dtype(name)} {list(checkpoint.shape(name) or ())}"
        raise CheckpointError(f"{checkpoint.origin}: {name} is {found}, not I64 [{count}]")
    ids = np.arange(count) + checkpoint.tensor(name).astype(np.int64)
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise CheckpointError(
            f"{checkpoint.origin}: {name} leads to tokens {ids.min()} to {ids.max()}: the model has 0 to "
            f"{vocab_size - 1}"
        )
    return ids
