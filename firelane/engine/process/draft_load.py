"""The draft model of an engine: a second executor, with the sizes of the first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from firelane.backends import create_beside
from firelane.contract import CAUSAL, Executor, ProgressCallback
from firelane.engine.process.load_head import load_head, read_head, sized_like
from firelane.engine.speculation.choice import SecondModel
from firelane.engine_config import Beside, EngineConfig
from firelane.errors import UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program, warn_of_unknown_keys
from firelane.program.cache_rewrite import with_cache_dtype
from firelane.program.program import Program
from firelane.program.values import DType

log = logging.getLogger(__name__)
NEAR_VOCABULARIES = 0.05
"""Part of the ids that vocabularies may differ by: rows that were added for alignment, and special tokens."""


def read_second(config: EngineConfig, program: Program) -> tuple[Program, ...]:
    """The programs of what drafts beside `program`: the layers of a head, or a model; () where there is
    nothing. Raises ModelError, and UsageError where that is none for this model."""
    head = read_head(config, program)
    if head is not None:
        return head.head.programs
    draft = _read_draft(config)
    if draft is not None:
        _check_programs(config, program, draft)
        warn_of_unknown_keys(draft, _directory(config).name)
    return () if draft is None else (draft,)


def beside_second(config: EngineConfig, second: Sequence[Program]) -> EngineConfig:
    """The config of an executor that leaves memory for others, of these programs."""
    beside = Beside(
        weights_bytes=sum(one.weights_bytes for one in second),
        kv_bytes_per_token=sum(one.kv_bytes_per_token * len(one.spans) for one in second),
        executors=len(second),
    )
    return structs.replace(config, beside=beside)


def load_second(
    config: EngineConfig, program: Program, served: Executor, progress: ProgressCallback
) -> SecondModel | None:
    """The drafter beside the executor of `program`, a head or a model; None where there is none. Raises a
    FirelaneError that says what is wrong with it."""
    head = read_head(config, program)
    if head is not None:
        return SecondModel(*load_head(head, config, served, progress))
    draft = _load_draft(config, served, progress)
    return None if draft is None else SecondModel((draft,))


def _load_draft(config: EngineConfig, served: Executor, progress: ProgressCallback) -> Executor | None:
    draft, limits = _read_draft(config), served.limits
    if draft is None:
        return None
    if limits.state_bytes and not limits.num_spares:
        log.warning("%s: the KV cache has no room for spare states, so nothing is drafted", _option(config))
        return None
    if draft.max_model_len < limits.max_model_len:
        raise UsageError(
            f"{_option(config)}: it takes {draft.max_model_len} tokens, and sequences of "
            f"{limits.max_model_len} are served: choose another one, or serve shorter ones with "
            f"--max-model-len {draft.max_model_len}"
        )
    own = sized_like(config, draft, limits)
    executor = create_beside(served, config.backend, draft, _directory(config), own, progress)
    if not executor.can_generate:
        executor.release()
        raise UsageError(f"{_option(config)}: it has no head that draws tokens; choose another one")
    return executor


def _read_draft(config: EngineConfig) -> Program | None:
    if config.draft_model is None:
        return None
    dtype = DType.BF16 if config.rounds else None
    described = read_config(config.draft_model)
    program = load_program(described, max_model_len=config.max_model_len, dtype=dtype)
    return with_cache_dtype(program, config.kv_cache_dtype)


def _check_programs(config: EngineConfig, program: Program, draft: Program) -> None:
    """Raises UsageError where one cannot draft for the other."""
    option = _option(config)
    if CAUSAL not in program.spans:
        raise UsageError(f"{option}: no layer of {config.model_dir.name} sees all tokens; leave it out")
    if draft.state_bytes:
        raise UsageError(
            f"{option}: it keeps recurrent state, and cannot take back a token that was not accepted; choose "
            "a model without"
        )
    most, least = max(program.vocab_size, draft.vocab_size), min(program.vocab_size, draft.vocab_size)
    if most - least > NEAR_VOCABULARIES * most:
        raise UsageError(
            f"{option}: it has {draft.vocab_size} tokens and {config.model_dir.name} {program.vocab_size}: "
            "choose a draft model of the same vocabulary"
        )


def _directory(config: EngineConfig) -> Path:
    assert config.draft_model is not None
    return config.draft_model


def _option(config: EngineConfig) -> str:
    return f"--speculative {config.speculative}"
