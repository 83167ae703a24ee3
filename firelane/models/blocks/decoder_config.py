"""The config keys that decoder families share."""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Span, Window
from firelane.models.blocks.blocks import Decoder
from firelane.models.config.reader import ConfigReader, read_dtype
from firelane.program.ops import SILU, Gate, HeadShape

MAX_LAYERS = MAX_HEADS = 1024
FULL, SLIDING = "full_attention", "sliding_attention"


def read_decoder(
    config: ConfigReader, *, name: str, tied: bool = False, length: str = "max_position_embeddings"
) -> Decoder:
    """The sizes of a decoder, without ops. tied: where the config does not say. length: the key of the
    longest sequence's."""
    return Decoder(
        name=name,
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer(length),
        width=config.integer("hidden_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        dtype=read_dtype(config),
        tied=config.boolean("tie_word_embeddings", tied),
    )


def read_gate(config: ConfigReader) -> Gate:
    config.choice("hidden_act", "silu", among=("silu", "swish"))
    return SILU


def read_cap(config: ConfigReader, key: str, default: float | None) -> float:
    """A positive number; 0 where the config says null, or does not say and there is no default."""
    if default is None and not config.has(key):
        config.ignore(key)
        return 0.0
    return config.number_or_none(key, default) or 0.0


def read_heads(config: ConfigReader, *, default_head_dim: int | None = None) -> HeadShape:
    """Head counts and size. Raises UnsupportedModelError if they do not divide as they have to."""
    heads, hidden = read_head_count(config), config.integer("hidden_size")
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


def read_head_count(config: ConfigReader) -> int:
    """The number of query heads."""
    heads = config.integer("num_attention_heads")
    if heads > MAX_HEADS:
        raise config.refusal("num_attention_heads", heads, f"at most {MAX_HEADS} are supported")
    return heads


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
    types = read_layer_types(config, layers)
    if not enabled or not config.has("sliding_window"):
        if SLIDING in types:
            raise config.refusal(
                "layer_types", types, "it asks for sliding windows, but use_sliding_window is off"
            )
        config.ignore("sliding_window", "max_window_layers")
        return (CAUSAL,) * layers
    window = Window(config.integer("sliding_window"))
    first = min(config.count("max_window_layers", 28), layers)
    types = types or [FULL] * first + [SLIDING] * (layers - first)
    return tuple(window if kind == SLIDING else CAUSAL for kind in types)


def read_pattern(config: ConfigReader, *, default: int) -> tuple[bool, ...]:
    """Whether each layer attends to a window: as layer_types says, or all but each n-th layer, where n is
    sliding_window_pattern."""
    layers = read_layers(config)
    types = read_layer_types(config, layers)
    if types:
        config.ignore("sliding_window_pattern")
        return tuple(kind == SLIDING for kind in types)
    each = config.integer("sliding_window_pattern", default)
    return tuple((number + 1) % each != 0 for number in range(layers))


def read_layer_types(config: ConfigReader, layers: int, *, other: str = SLIDING) -> list[str]:
    """The type of each layer, full or `other`; [] where the config does not say."""
    types = config.strings("layer_types")
    if types and (len(types) != layers or not {FULL, other}.issuperset(types)):
        raise config.refusal("layer_types", types, f"{layers} entries, {FULL} or {other}, are supported")
    return types


def read_turned(config: ConfigReader, layers: int) -> list[bool]:
    """Whether each layer has positions; no_rope_layers says 1 where it has."""
    each = config.integer("no_rope_layer_interval", 4)
    flags = config.flags("no_rope_layers") or [(number + 1) % each != 0 for number in range(layers)]
    if len(flags) != layers:
        raise config.refusal("no_rope_layers", len(flags), f"an entry for each of {layers} layers is needed")
    return flags
