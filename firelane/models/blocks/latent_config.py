"""The config keys that families with latent attention share, as DeepSeek names them."""

from __future__ import annotations

from firelane.models.blocks.decoder_config import read_head_count
from firelane.models.blocks.latent import LatentShape
from firelane.models.config.reader import ConfigReader


def read_latent(
    config: ConfigReader, *, query_rank: int, rank: int = 512, nope: int = 128, value: int = 128
) -> LatentShape:
    """Sizes of latent attention, with a family's own where the config does not say. Raises
    UnsupportedModelError."""
    config.ignore("head_dim", "qk_head_dim")  # of other parts of a head, from version to version
    heads = read_head_count(config)
    kv_heads = config.integer("num_key_value_heads", heads)
    if kv_heads != heads:
        why = f"latent attention makes keys for each of num_attention_heads = {heads}"
        raise config.refusal("num_key_value_heads", kv_heads, why)
    config.only("attention_bias", False)
    config.only("index_topk", 0)  # attention to some tokens alone, which an indexer chooses
    shape = LatentShape(
        heads=heads,
        rank=config.integer("kv_lora_rank", rank),
        query_rank=config.integer_or_none("q_lora_rank", query_rank) or 0,
        nope=config.integer("qk_nope_head_dim", nope),
        rope=config.integer("qk_rope_head_dim", 64),
        value=config.integer("v_head_dim", value),
    )
    widths = {"qk_rope_head_dim": shape.rope, "qk_nope_head_dim": shape.nope, "kv_lora_rank": shape.rank}
    for key, width in widths.items():
        if width % 2:
            raise config.refusal(key, width, "an even number is needed")
    return shape
