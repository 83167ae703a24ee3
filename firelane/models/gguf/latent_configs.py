"""Keys of config.json of families with latent attention, from the metadata of a GGUF file; see
expert_configs.py.

Older files have the matrix that makes keys and values of latents as one, newer ones as two; these call all
heads' latents one key head, and have the sizes of a head under other names.
"""

from __future__ import annotations

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.expert_configs import experts
from firelane.models.gguf.metadata import Config, Metadata
from firelane.models.gguf.rope import YARN_LOG, yarn

SOFTMAX, SIGMOID = 1, 2
GROUPS = {160: (8, 3), 256: (8, 4)}
"""Groups of so many experts, and how many of them are kept: of DeepSeek V2 and V3, whose older files do not
say it."""
GLM_FLASH_TOKENS = 154880


def has_sigmoids(metadata: Metadata) -> bool:
    """Whether scores of experts are sigmoids, as in DeepSeek V3, and no softmax."""
    kind = metadata.integer("expert_gating_func", 0)
    if kind not in (0, SOFTMAX, SIGMOID):
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.expert_gating_func = {kind}: 1 (softmax) and 2 (sigmoid) are "
            "supported"
        )
    return kind == SIGMOID or (not kind and metadata.layer_has("exp_probs_b.bias"))


def latent(metadata: Metadata, heads: int) -> Config:
    """Sizes of latent attention."""
    rotated = metadata.size("rope.dimension_count")
    keys, values = (
        metadata.size(f"attention.{part}_length_mla", metadata.integer(f"attention.{part}_length"))
        for part in ("key", "value")
    )
    if keys <= rotated:
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.attention.key_length_mla = {keys}: of these {rotated} have a "
            "position, and some without are needed"
        )
    query_rank = "attention.q_lora_rank"
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": rotated,
        "q_lora_rank": metadata.size(query_rank) if metadata.has(query_rank) else None,
        "kv_lora_rank": metadata.size("attention.kv_lora_rank"),
        "qk_nope_head_dim": keys - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": values,
    }


def deepseek2(metadata: Metadata) -> Config:
    """DeepSeek V2: shares of a softmax, never normalised."""
    groups, _ = found = _groups(metadata)
    method = "group_limited_greedy" if groups > 1 else "greedy"
    return _deepseek(metadata, found) | {"topk_method": method, "norm_topk_prob": False}


def deepseek3(metadata: Metadata) -> Config:
    """DeepSeek V3, and what has its shape: sigmoids, and a bias that chooses."""
    normalised = metadata.flag("expert_weights_norm", default=True)
    return _deepseek(metadata, _groups(metadata)) | {"norm_topk_prob": normalised}


def _groups(metadata: Metadata) -> tuple[int, int]:
    if metadata.has("expert_group_count"):
        return metadata.size("expert_group_count"), metadata.size("expert_group_used_count")
    return GROUPS.get(metadata.experts, (1, 1))


def _deepseek(metadata: Metadata, groups: tuple[int, int]) -> Config:
    return {
        **experts(metadata, "n_routed_experts"),
        **latent(metadata, metadata.same("attention.head_count")),
        "n_group": groups[0],
        "topk_group": groups[1],
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "n_shared_experts": metadata.integer("expert_shared_count"),
        "first_k_dense_replace": metadata.integer("leading_dense_block_count"),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        **_yarn(metadata),
    }


def _yarn(metadata: Metadata) -> Config:
    """Files have a tenth of the factor of scores; that of cosines is equal to it in all models."""
    if metadata.string("rope.scaling.type", "none") != "yarn":
        return {}
    scaling = yarn(metadata)
    if metadata.has(YARN_LOG):
        of_scores = round(10 * metadata.number(YARN_LOG), 6)
        scaling |= {"mscale": of_scores, "mscale_all_dim": of_scores}
    return {"rope_scaling": scaling}
