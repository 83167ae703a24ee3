"""The config keys that encoders share."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder
from firelane.models.config.reader import ConfigReader, read_dtype
from firelane.models.config.sentence_files import KEY
from firelane.program.ops import PoolKind

WITHOUT_EFFECT = (
    *("attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing", "hidden_dropout_prob"),
    *("sbert_ce_default_activation_function", "tie_word_embeddings"),
)
POOLS: dict[str, PoolKind] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
FLAGS: dict[str, PoolKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Older files have a flag a kind."""


def read_pool(config: ConfigReader) -> PoolKind:
    """The way in which an encoder's rows become one; the mean where nobody says, as in
    sentence-transformers. Raises UnsupportedModelError for another kind, and for modules that are not
    computed."""
    files = config.section(KEY)
    if files is None:
        return "mean"
    modules = files.strings("modules")
    if modules:
        raise files.refusal(
            "modules", ", ".join(modules), "only Transformer, Pooling and Normalize are supported"
        )
    files.ignore("max_seq_length")
    pooling = files.section("pooling")
    return "mean" if pooling is None else _pool_kind(pooling)


def read_longest(config: ConfigReader, positions: int) -> int:
    """The longest text in tokens, of a model with so many positions: no longer than it was made for."""
    files = config.section(KEY)
    return positions if files is None else min(positions, files.integer("max_seq_length", positions))


def read_encoder(
    config: ConfigReader, *, name: str, eps: float, embeddings: str, eps_key: str = "layer_norm_eps"
) -> Decoder:
    """The sizes of an encoder, without ops. eps: where the config does not say. embeddings: the tensor of the
    table of words."""
    config.only("is_decoder", False)
    config.only("add_cross_attention", False)
    if name == "bert":
        config.choice("hidden_act", "gelu", among=("gelu",))
    config.ignore(*WITHOUT_EFFECT)
    return Decoder(
        name=name,
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer("max_position_embeddings"),
        width=config.integer("hidden_size"),
        eps=config.number(eps_key, eps),
        dtype=read_dtype(config),
        embeddings=embeddings,
    )


def count_labels(config: ConfigReader) -> int:
    """Numbers that a head of classes makes: as transformers counts them."""
    names = config.value("id2label")
    return len(names) if isinstance(names, dict) and names else config.integer("num_labels", 2)


def _pool_kind(pooling: ConfigReader) -> PoolKind:
    pooling.only("include_prompt", True)
    pooling.ignore("word_embedding_dimension", "embedding_dimension")
    if pooling.has("pooling_mode"):
        return POOLS[pooling.choice("pooling_mode", None, among=tuple(POOLS))]
    on = [key for key, value in pooling.unread().items() if key.startswith("pooling_mode_") and value]
    if len(on) != 1 or on[0] not in FLAGS:
        raise pooling.refusal("pooling_mode", ", ".join(on), f"one is needed, of {', '.join(FLAGS)}")
    pooling.ignore(*pooling.unread())
    return FLAGS[on[0]]
