"""The engines of a described device with a model, for simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from firelane.bench.simulation.disagg_clock import DeviceClock
from firelane.bench.simulation.disagg_engine import EngineKind
from firelane.bench.simulation.disagg_transfer import PageLink
from firelane.contract import StepLimits
from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.plan.devices import find_devices
from firelane.plan.estimate import PlanSetup, PlanWorkload, estimate
from firelane.plan.forms import plain_form
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.plan.source import read_model

QWEN_7B: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
)
"""The shape of Qwen2.5 7B, in bf16."""
MAX_MODEL_LEN = 32_768
MAX_NUM_SEQS = 256


@dataclass(frozen=True, kw_only=True)
class DisaggMachine:
    """A device, which each engine has one of, and a model. link_gbps: 10^9 bytes a second between two
    engines."""

    setup: PlanSetup
    clock: DeviceClock
    link_gbps: float

    @classmethod
    def find(cls, device: str, model: str | None, cache_dir: Path, link_gbps: float) -> DisaggMachine:
        """device: as of `firelane plan`; model: None for QWEN_7B. Raises UsageError, ModelError."""
        found, _ = find_devices(device, cache_dir)
        config = QWEN_7B if model is None else read_model(model)[1]
        program = load_program(config, max_model_len=None)
        described = PlannedModel(program=program, form=plain_form(program, "bf16"))
        setup = PlanSetup(model=described, device=found, max_num_seqs=MAX_NUM_SEQS)
        return cls(setup=setup, clock=DeviceClock(found, described), link_gbps=link_gbps)

    @property
    def doubled_chunk(self) -> int:
        """Tokens of a step of engines that decode nothing: nobody waits between two tokens there."""
        return 2 * self.setup.device.kernels.step_tokens

    def kind(self, chunk_tokens: int | None) -> EngineKind:
        """chunk_tokens: of a step, at most; None: the device's default."""
        program, kernels = self.setup.model.program, self.setup.device.kernels
        longest = min(MAX_MODEL_LEN, program.max_model_len)
        chunk = max(chunk_tokens or kernels.step_tokens, MAX_NUM_SEQS)
        budget = estimate(self.setup, ParallelLayout(), PlanWorkload(context=longest)).kv_bytes
        page_bytes = program.kv_bytes_per_token * kernels.block_size
        if budget // page_bytes * kernels.block_size < longest:
            raise UsageError(
                f"--device {self.setup.device.name}: beside the weights of {program.name} is no room for a "
                f"KV cache of {longest} tokens; take a larger device, or a smaller model"
            )
        limits = StepLimits(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=chunk,
            max_output_rows=MAX_NUM_SEQS,
            max_model_len=longest,
            block_size=kernels.block_size,
            num_blocks=budget // page_bytes,
            spans=program.spans,
        )
        return EngineKind(
            limits=limits,
            vocab_size=program.vocab_size,
            clock=self.clock,
            link=PageLink(gbps=self.link_gbps, page_bytes=page_bytes),
        )
