"""The frame in which an engine says that it is ready, and what it serves."""

from __future__ import annotations

import os

import msgspec

from firelane.backends import takes_gpu
from firelane.contract import Executor
from firelane.engine.images.encoder import ImageEncoder
from firelane.engine.process.load import quantization_of
from firelane.engine.speculation.choice import SecondModel
from firelane.engine_config import EngineConfig
from firelane.wire.frames import PROTOCOL_VERSION, Ready


def ready_of(executor: Executor, config: EngineConfig, identity: str, load_s: float, engine_id: str) -> Ready:
    limits = executor.limits
    return Ready(
        protocol=PROTOCOL_VERSION,
        pid=os.getpid(),
        model=config.model_dir.name,
        vocab_size=executor.vocab_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        weights_bytes=executor.weights_bytes,
        kv_bytes=executor.kv_bytes,
        states_bytes=limits.num_states * limits.state_bytes,
        num_snapshots=limits.num_snapshots,
        load_s=load_s,
        embedding_width=executor.hidden_width,
        identity=identity,
        kv_cache_dtype=config.kv_cache_dtype,
        quantization=quantization_of(config),
        can_sleep=can_sleep(executor, config),
        activation_dtype=executor.activation_dtype,
        role=config.role,
        engine_id=engine_id,
        kv_medium="GPU" if takes_gpu(config.backend) else "CPU",
        scheduling_policy=config.scheduling_policy,
        pages_address=config.kv_transfer_address if engine_id else "",
        can_generate=executor.can_generate,
        is_encoder=limits.whole_prompts,
        version=config.version,
    )


def with_second(ready: Ready, second: SecondModel | None) -> Ready:
    """The memory of what drafts is the engine's."""
    if second is None:
        return ready
    weights_bytes, kv_bytes = ready.weights_bytes + second.weights_bytes, ready.kv_bytes + second.kv_bytes
    return msgspec.structs.replace(ready, weights_bytes=weights_bytes, kv_bytes=kv_bytes)


def with_encoder(ready: Ready, encoder: ImageEncoder | None) -> Ready:
    """The memory of what encodes images is the engine's."""
    if encoder is None:
        return ready
    weights_bytes = ready.weights_bytes + encoder.weights_bytes
    return msgspec.structs.replace(ready, weights_bytes=weights_bytes, images=encoder.format)


def can_sleep(executor: Executor, config: EngineConfig) -> bool:
    """The process of NIXL keeps mapped what a standby would give back."""
    return executor.can_sleep and config.kv_transport != "nixl"
