"""The config keys that decoder families share."""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Span, Window
from firelane.models.blocks import Decoder
from firelane.models.config import ConfigReader, read_dtype
from firelane.program.ops import SILU, Gate, HeadShape

MAX_LAYERS = 1024


def read_decoder(config: ConfigReader, *, name: str) -> Decoder:
    """The sizes of a decoder, without ops."""
    return Decoder(
        name=name,
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer("max_position_embeddings"),
        width=config.integer("hidden_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        dtype=read_dtype(config),
        tied=config.boolean("tie_word_embeddings", False),
    )


def read_gate(config: ConfigReader) -> Gate:
    config.choice("hidden_act", "silu", among=("silu", "swish"))
    return SILU


def read_heads(config: ConfigReader, *, default_head_dim: int | None = None) -> HeadShape:
    """Head counts and size. Raises UnsupportedModelError if they do not divide as they have to."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.refusal(
            "num_key_value_heads", kv_heads, f"it has to divide num_attention_heads = {heads}"
        )
    if not (default_head_dim or config.has("head_dim")) and hidden % heads:
        raise config.refusal("num_attention_heads", heads, f"it has to divide hidden_size = {hidden}")
    head_dim = config.integer("head_dim", default_head_dim or hidden // heads)
    if head_dim % 2:
        raise config.refusal("head_dim", head_dim, "an even number is needed")
    return HeadShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def read_layers(config: ConfigReader) -> int:
    layers = config.integer("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise config.refusal("num_hidden_layers", layers, f"at most {MAX_LAYERS} are supported")
    return layers


def read_partial_windows(config: ConfigReader) -> tuple[Span, ...]:
    """A span for each layer, Qwen's way: sliding windows, if switched on, in the layers that layer_types
    names or from max_window_layers on.
    """
    layers = read_layers(config)
    enabled = config.boolean("use_sliding_window", False)
    types = _layer_types(config, layers)
    if not enabled or not config.has("sliding_window"):
        if "sliding_attention" in types:
            raise config.refusal(
                "layer_types", types, "it asks for sliding windows, but use_sliding_window is off"
            )
        config.ignore("sliding_window", "max_window_layers")
        return (CAUSAL,) * layers
    window = Window(config.integer("sliding_window"))
    first = min(config.count("max_window_layers", 28), layers)
    types = types or ["full_attention"] * first + ["sliding_attention"] * (layers - first)
    return tuple(window if kind == "sliding_attention" else CAUSAL for kind in types)


def _layer_types(config: ConfigReader, layers: int) -> list[str]:
    types = config.strings("layer_types")
    if types and (len(types) != layers or not {"full_attention", "sliding_attention"}.issuperset(types)):
        raise config.refusal(
            "layer_types", types, f"{layers} entries, full_attention or sliding_attention, are supported"
        )
    return types
