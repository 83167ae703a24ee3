"""Keys of config.json of Gemma's families, from the metadata of a GGUF file; see dense_configs.py."""

from __future__ import annotations

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.dense_configs import slides, windows
from firelane.models.gguf.metadata import Config, Metadata
from firelane.models.gguf.rope import check_unscaled


def gemma2(metadata: Metadata) -> Config:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.integer("attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(metadata, largest=46),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
    }


def _query_scalar(metadata: Metadata, *, largest: int) -> int:
    """The size of a head; in the family's largest model (of so many layers) the hidden size over the number
    of heads. Files do not say it."""
    if metadata.integer("block_count") == largest:
        return metadata.integer("embedding_length") // metadata.same("attention.head_count")
    return metadata.integer("attention.key_length")


def gemma3(metadata: Metadata) -> Config:
    """The rotation of full layers is the file's; that of the others is never stretched."""
    return windows(metadata, 6) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, largest=62),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10000.0),
    }


def gemma4(metadata: Metadata) -> Config:
    """Heads, and rotations, of full layers and of those with windows."""
    sliding = slides(metadata, 6)
    return windows(metadata, 6) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": metadata.size("attention.key_length_swa"),
        "global_head_dim": metadata.size("attention.key_length"),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
        "rope_parameters": _gemma4_rope(metadata),
        **_gemma4_heads(metadata, sliding),
        **_gemma4_widths(metadata),
        **_gemma4_experts(metadata),
    }


def _gemma4_rope(metadata: Metadata) -> Config:
    """The rotation of full layers: the pairs turn whose frequencies are not divided by a huge number."""
    divisors = metadata.vector("rope_freqs.weight") or [1.0]
    check_unscaled(metadata, "rope_freqs.weight")
    return {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": sum(d == 1.0 for d in divisors) / len(divisors),
            "rope_theta": metadata.positive("rope.freq_base"),
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": metadata.positive("rope.freq_base_swa", 10000.0),
        },
    }


def _gemma4_heads(metadata: Metadata, sliding: list[bool]) -> Config:
    """A full layer without values has its keys as such."""
    counts = metadata.of_layers("attention.head_count_kv")
    of_kind = {s: {c for c, other in zip(counts, sliding, strict=True) if other == s} for s in (True, False)}
    if any(len(found) > 1 for found in of_kind.values()):
        raise UnsupportedModelError(
            "metadata gemma4.attention.head_count_kv: layers of one kind that differ are not supported"
        )
    shared = metadata.integer("attention.shared_kv_layers", 0)
    full = [layer for layer, slides in enumerate(sliding) if not slides and layer < metadata.layers - shared]
    return {
        "num_key_value_heads": max(of_kind[True] or of_kind[False]),
        "num_global_key_value_heads": max(of_kind[False], default=None),
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": any(f"blk.{layer}.attn_v.weight" not in metadata.shapes for layer in full),
    }


def _gemma4_widths(metadata: Metadata) -> Config:
    """MLPs of layers without keys of their own may be twice as wide."""
    widths, inputs = metadata.of_layers("feed_forward_length"), "embedding_length_per_layer_input"
    found: Config = {
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": metadata.integer(inputs, 0),
    }
    if "per_layer_token_embd.weight" in metadata.shapes:
        found["vocab_size_per_layer_input"] = metadata.shapes["per_layer_token_embd.weight"][0]
    return found


def _gemma4_experts(metadata: Metadata) -> Config:
    if not metadata.integer("expert_count", 0):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": metadata.experts,
        "top_k_experts": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
    }
