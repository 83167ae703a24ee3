"""Keys of config.json of dense families, from the metadata of a GGUF file.

After llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py): which keys it writes, and
what it leaves to be known.
"""

from __future__ import annotations

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.metadata import Config, Metadata
from firelane.models.gguf.rope import YARN_LOG, yarn


def attention_bias(metadata: Metadata) -> Config:
    return {"attention_bias": metadata.layer_has("attn_q.bias")}


def windows(metadata: Metadata, default_each: int) -> Config:
    """Windows of layers of which all but each n-th have one."""
    return {
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if s else "full_attention" for s in slides(metadata, default_each)
        ],
    }


def slides(metadata: Metadata, default_each: int) -> list[bool]:
    """Whether each layer has a window."""
    flags, layers = metadata.flags("attention.sliding_window_pattern"), metadata.layers
    return flags or [(layer + 1) % default_each != 0 for layer in range(layers)]


def llama(metadata: Metadata) -> Config:
    return attention_bias(metadata) | {"mlp_bias": metadata.layer_has("ffn_gate.bias")}


def ernie4_5(metadata: Metadata) -> Config:
    return {"use_bias": metadata.layer_has("attn_q.bias")}


def phi3(metadata: Metadata) -> Config:
    found: Config = {}
    if metadata.has("attention.sliding_window"):
        window = metadata.integer("attention.sliding_window")
        found["sliding_window"] = window or None
    if metadata.has("rope.scaling.original_context_length"):
        found["original_max_position_embeddings"] = metadata.integer("rope.scaling.original_context_length")
    return found


def granite(metadata: Metadata) -> Config:
    return llama(metadata) | granite_factors(metadata)


def granite_factors(metadata: Metadata) -> Config:
    return {
        "attention_multiplier": metadata.number("attention.scale"),
        "embedding_multiplier": metadata.number("embedding_scale"),
        "residual_multiplier": metadata.number("residual_scale"),
        "logits_scaling": metadata.number("logit_scale"),
    }


def exaone4(metadata: Metadata) -> Config:
    return windows(metadata, 4) if metadata.has("attention.sliding_window") else {"sliding_window": None}


def seed_oss(metadata: Metadata) -> Config:
    return attention_bias(metadata) | {"attention_out_bias": metadata.layer_has("attn_output.bias")}


def mistral(metadata: Metadata) -> Config:
    return llama(metadata) | {"sliding_window": None}


def mistral3(metadata: Metadata) -> Config:
    """With queries whose temperature grows; the log multiplier of yarn is that of scores."""
    rope = {"rope_theta": metadata.positive("rope.freq_base", 10000.0), **yarn(metadata)}
    rope["llama_4_scaling_beta"] = metadata.number("attention.temperature_scale")
    if metadata.has(YARN_LOG):
        of_scores = metadata.number(YARN_LOG)
        rope |= {"mscale": of_scores, "mscale_all_dim": of_scores}
    return {"rope_parameters": rope}


def deci(metadata: Metadata) -> Config:
    """Layers have heads and widths of their own, or none."""
    heads = metadata.of_layers("attention.head_count")
    kv_heads, widths = (metadata.of_layers(key) for key in ("attention.head_count_kv", "feed_forward_length"))
    if any(bool(of_queries) != bool(of_keys) for of_queries, of_keys in zip(heads, kv_heads, strict=True)):
        raise UnsupportedModelError(
            "metadata deci.attention.head_count_kv: layers whose attention was replaced are not supported"
        )
    return {
        "num_attention_heads": metadata.present("attention.head_count"),
        "num_key_value_heads": None,
        "intermediate_size": None,
        "block_configs": [
            {
                "attention": {"n_heads_in_group": of_queries // of_keys, "no_op": False}
                if of_keys
                else {"n_heads_in_group": None, "no_op": True},
                "ffn": {"intermediate_size": width, "no_op": not width},
            }
            for of_queries, of_keys, width in zip(heads, kv_heads, widths, strict=True)
        ],
        **llama(metadata),
    }
