"""The config keys that families with latent attention share, as DeepSeek names them."""

from __future__ import annotations

from collections.abc import Sequence

from firelane.models.blocks.decoder_config import read_head_count
from firelane.models.blocks.indexer import Indexer
from firelane.models.blocks.latent import LatentShape
from firelane.models.blocks.rope import Rope, widened
from firelane.models.config.reader import ConfigReader


def read_latent(
    config: ConfigReader,
    *,
    query_rank: int,
    rank: int = 512,
    nope: int = 128,
    value: int = 128,
    sparse: bool = False,
) -> LatentShape:
    """Sizes of latent attention, with a family's own where the config does not say. sparse: whether the
    family has an indexer: see read_indexer(). Raises UnsupportedModelError."""
    config.ignore("head_dim", "qk_head_dim")  # of other parts of a head, from version to version
    heads = read_head_count(config)
    kv_heads = config.integer("num_key_value_heads", heads)
    if kv_heads != heads:
        why = f"latent attention makes keys for each of num_attention_heads = {heads}"
        raise config.refusal("num_key_value_heads", kv_heads, why)
    config.only("attention_bias", False)
    if not sparse:
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


def read_indexer(
    config: ConfigReader,
    shape: LatentShape,
    rope: Rope,
    full: Sequence[bool],
    *,
    heads: int,
    interleaved: bool = False,
) -> Indexer:
    """The indexers of a model whose layers with one of their own are `full`, and of the layers behind them
    that predict tokens, each with its own. rope: that of attention; heads:
    where the config does not say; interleaved: whether neighbours in their heads turn as pairs. Raises
    UnsupportedModelError."""
    if not shape.query_rank:
        raise config.refusal("q_lora_rank", None, "an indexer reads the latents of queries")
    config.only("indexer_rope_interleave", interleaved)
    config.ignore("index_share_for_mtp_iteration")  # of layers that predict tokens
    head_dim = config.integer("index_head_dim", 128)
    if head_dim % 2 or head_dim < shape.rope:
        why = f"an even number is needed, of qk_rope_head_dim = {shape.rope} or more"
        raise config.refusal("index_head_dim", head_dim, why)
    return Indexer(
        heads=config.integer("index_n_heads", heads),
        head_dim=head_dim,
        topk=config.integer("index_topk", 2048),
        full=[*full, *[True] * config.count("num_nextn_predict_layers", 0)],
        rope=widened(rope, head_dim, interleaved=interleaved),
    )
