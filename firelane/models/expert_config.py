"""The config keys that families with experts share."""

from __future__ import annotations

from firelane.models.config import ConfigReader
from firelane.program.ops import Groups

TRAINING_KEYS = ("router_aux_loss_coef", "router_jitter_noise", "output_router_logits")


def read_expert_counts(
    config: ConfigReader,
    key: str,
    default: int,
    default_picks: int,
    *,
    picks_key: str = "num_experts_per_tok",
) -> tuple[int, int]:
    """Numbers of experts: of a layer, by the key that this family calls it, and of a token. Raises
    UnsupportedModelError where there are not as many."""
    config.ignore(*TRAINING_KEYS)
    count = config.integer(key, default)
    picks = config.integer(picks_key, default_picks)
    if picks > count:
        raise config.refusal(picks_key, picks, f"there are only {key} = {count}")
    return count, picks


def read_groups(config: ConfigReader, count: int, picks: int) -> Groups | None:
    """Groups of experts, DeepSeek V3's way: as good as their two best. Raises UnsupportedModelError where
    they do not divide the experts, or leave too few to choose from."""
    groups, keep = config.integer("n_group", 1), config.integer("topk_group", 1)
    if groups == keep == 1:
        return None
    if count % groups or count < 2 * groups:
        raise config.refusal("n_group", groups, f"{count} experts cannot be divided in such groups")
    if keep > groups:
        raise config.refusal("topk_group", keep, f"there are only n_group = {groups}")
    if picks > keep * (count // groups):
        size = count // groups
        raise config.refusal("topk_group", keep, f"{keep} x {size} experts, and each token uses {picks}")
    return Groups(count=groups, keep=keep, best=2)


def read_sparse_layers(config: ConfigReader, layers: int) -> list[bool]:
    """Which layers have experts, Qwen's way: every decoder_sparse_step-th, but for mlp_only_layers."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.integers("mlp_only_layers")
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]
