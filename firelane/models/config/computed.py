"""Keys that configs of any family may have, and that a finished program answers: what they ask for is
compared with what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Attention, Embed, GatedLinear, Linear, RopeAndCache, Route
from firelane.program.program import Program


def check_computed(config: ConfigReader, program: Program) -> None:
    """Takes unread keys whose values are what `program` computes. Raises UnsupportedModelError for one that
    asks for another result. Biases are left to be named as unknown then: the checkpoint's tensors tell of
    them.
    """
    for key, value in config.unread().items():
        answer = ANSWERS.get(key) or BY_TENSORS.get(key)
        if answer is None:
            continue
        computed = answer(program)
        if computed is None or value == computed:
            config.ignore(key)
        elif key in ANSWERS:
            raise config.refusal(key, value, f"this family computes {_shown(computed)}")


def _shown(value: bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _has_head_norms(program: Program) -> bool:
    return any(isinstance(op, RopeAndCache) and op.norm is not None for op in program.ops)


def _has_attention_biases(program: Program) -> bool:
    made = {op.out: op for op in program.ops if isinstance(op, Linear)}
    inputs = [made.get(op.qkv) for op in program.ops if isinstance(op, RopeAndCache)]
    return any(op is not None and op.bias is not None for op in inputs)


def _has_mlp_biases(program: Program) -> bool:
    return any(op.bias is not None for op in program.ops if isinstance(op, GatedLinear))


def _cap_of_scores(program: Program) -> float:
    return max((op.softcap for op in program.ops if isinstance(op, Attention)), default=0.0)


def _cap_of_logits(program: Program) -> float:
    return program.head.softcap if program.head else 0.0


def _factor_of_logits(program: Program) -> float:
    return program.head.scale if program.head else 1.0


def _divisor_of_logits(program: Program) -> float:
    return 1.0 / _factor_of_logits(program)


def _factor_of_embeddings(program: Program) -> float:
    return next((op.scale for op in program.ops if isinstance(op, Embed)), 1.0)


def _normalises(program: Program) -> bool | None:
    return next((op.normalise for op in program.ops if isinstance(op, Route)), None)


def _factor_of_experts(program: Program) -> float | None:
    return next((op.scale for op in program.ops if isinstance(op, Route)), None)


Answer = Callable[[Program], bool | float | None]
ANSWERS: Mapping[str, Answer] = {
    **dict.fromkeys(("qk_layernorm", "qk_norm", "use_qk_layernorm", "use_qk_norm"), _has_head_norms),
    "attn_logit_softcapping": _cap_of_scores,
    "final_logit_softcapping": _cap_of_logits,
    "logit_scale": _factor_of_logits,
    "logits_scaling": _divisor_of_logits,
    "embedding_multiplier": _factor_of_embeddings,
    "norm_topk_prob": _normalises,
    "routed_scaling_factor": _factor_of_experts,
    "residual_multiplier": lambda _: 1.0,
    "parallel_attn": lambda _: False,
    "use_parallel_residual": lambda _: False,
}
"""By key, what a program computes of it; None where nothing that it computes depends on it."""
BY_TENSORS: Mapping[str, Answer] = {
    **dict.fromkeys(("attention_bias", "qkv_bias", "use_qkv_bias"), _has_attention_biases),
    "mlp_bias": _has_mlp_biases,
    "use_bias": lambda program: _has_attention_biases(program) or _has_mlp_biases(program),
}
"""The same of keys that say which tensors there are."""
