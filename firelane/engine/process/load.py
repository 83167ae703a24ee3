"""From an EngineConfig to an Executor: config.json -> Program -> backend."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec

from firelane.backends import AUTO, create_executor, describe, resolve
from firelane.contract import Bidirectional, Executor, ProgressCallback
from firelane.engine.images.load import taking_images
from firelane.engine.process.draft_load import beside_second, read_second
from firelane.engine.process.load_head import telling
from firelane.engine.speculation.choice import spare_states
from firelane.engine_config import QUANTIZING, EngineConfig
from firelane.errors import UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program, warn_of_unknown_keys
from firelane.program.cache_rewrite import with_cache_dtype
from firelane.program.ops import Rotary
from firelane.program.program import Program
from firelane.program.values import DType
from firelane.weights.quantized import settings
from firelane.wire.frames import Loading

if TYPE_CHECKING:
    from firelane.backends.cpu.executor import CpuExecutor


def load_executor(
    config: EngineConfig,
    progress: ProgressCallback,
    on_loading: Callable[[Loading], None] = lambda _: None,
    program: Program | None = None,
) -> Executor:
    """on_loading: called once, before the long part. program: the model's, where it was read already. Raises
    a FirelaneError that says what is wrong with the model, the machine or the sizes."""
    program = program or read_program(config)
    warn_of_unknown_keys(program, config.model_dir.name)
    if config.max_model_len is not None and config.max_model_len > program.max_model_len:
        raise UsageError(
            f"--max-model-len {config.max_model_len}: the model takes {program.max_model_len} tokens; "
            "lower it, or leave it out"
        )
    if config.ranks > 1 and any(isinstance(span, Bidirectional) for span in program.spans):
        raise UsageError(f"{config.ranks_option}: an encoder is computed by one rank; leave it out")
    if not config.prefix_cache:
        config = msgspec.structs.replace(config, state_snapshots=0)
    config = msgspec.structs.replace(config, spare_states=spare_states(config))
    backend = resolve(config.backend)
    form = config.weights if config.weights in QUANTIZING else ""
    device, second = describe(backend, config), read_second(config, program)
    summary = _summary(program, device, form)
    if second:
        config = beside_second(config, second)
        summary = msgspec.structs.replace(summary, draft=_summary_of(second, device, form))
    on_loading(summary)
    return create_executor(backend, program, config.model_dir, config, progress)


def follow(config: EngineConfig, on_loaded: Callable[[Callable[[], None]], None]) -> None:
    """Run the ranks that this host has of a group until it ends. on_loaded: called before the first step,
    with what returns when no weights are read any more. Raises a FirelaneError that says why it has ended."""
    if config.backend not in (AUTO, "cpu"):
        raise UsageError(
            f"--backend {config.backend}: ranks on several hosts run on CPUs; choose --backend cpu"
        )
    from firelane.backends.cpu.ranks.follow import follow_group

    def loaded(executor: CpuExecutor) -> None:
        on_loaded(executor.settle)

    def silent(stage: str, done: float, total: float, unit: str, /) -> None:
        del stage, done, total, unit

    follow_group(read_program(config), config.model_dir, config, silent, loaded)


def read_program(config: EngineConfig) -> Program:
    """The model as `config` asks for it. Raises ModelError, UsageError."""
    dtype = DType.BF16 if config.rounds else None
    program = load_program(read_config(config.model_dir), max_model_len=config.max_model_len, dtype=dtype)
    return taking_images(telling(with_cache_dtype(program, config.kv_cache_dtype), config), config)


def quantization_of(config: EngineConfig) -> str:
    """The quantisation of the model's weights: by the checkpoint, or while they are packed; "" where they are
    not."""
    return config.weights if config.weights in QUANTIZING else settings.quantization_of(config.model_dir)


def rotation_identity(program: Program) -> str:
    """A hash of how the model rotates, which may depend on the longest sequence that is served."""
    rotaries = [str(table) for table in program.position_tables if isinstance(table, Rotary)]
    return hashlib.blake2b("\n".join(rotaries).encode(), digest_size=8).hexdigest()


def _summary_of(programs: Sequence[Program], device: str, form: str) -> Loading:
    """The summary of a second model, which may be several layers."""
    each = [_summary(one, device, form) for one in programs]
    parameters, nbytes = sum(one.parameters for one in each), sum(one.weights_bytes for one in each)
    return msgspec.structs.replace(each[0], parameters=parameters, weights_bytes=nbytes)


def _summary(program: Program, device: str, form: str) -> Loading:
    """form: what weights are quantised to, or ""."""
    weights = program.weights
    bytes_of: dict[str, int] = {}
    for weight in weights:
        bytes_of[weight.dtype.value] = bytes_of.get(weight.dtype.value, 0) + weight.nbytes
    dtype = max(bytes_of, key=lambda dtype: bytes_of[dtype], default="")
    return Loading(
        architecture=program.name,
        parameters=sum(prod(weight.shape) for weight in weights),
        dtype=dtype if not form else f"{dtype} quantised to {form}",
        weights_bytes=program.weights_bytes,
        device=device,
    )
