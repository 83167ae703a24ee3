"""The config keys that families with experts share."""

from __future__ import annotations

from firelane.models.blocks.experts import ExpertNames, Experts, Routing, SharedExpert
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Groups

TRAINING_KEYS = (
    "aux_loss_alpha",
    "ep_size",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
)
MAX_EXPERTS = 1024
MAX_EXPERTS_IN_ALL = 1 << 16
"""The most experts of all layers together: a Program has a recipe for each part of each of them."""
COUNT_NAMES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERT_NAMES = ExpertNames()


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
    count = config.integer(key, default) if config.has(key) else _count_of_another_name(config, key, default)
    picks = config.integer(picks_key, default_picks)
    if count > MAX_EXPERTS:
        raise config.refusal(key, count, f"at most {MAX_EXPERTS} are supported")
    if config.has("num_hidden_layers") and count * config.integer("num_hidden_layers") > MAX_EXPERTS_IN_ALL:
        raise config.refusal(key, count, f"at most {MAX_EXPERTS_IN_ALL} are supported in all layers together")
    if picks > count:
        raise config.refusal(picks_key, picks, f"there are only {key} = {count}")
    return count, picks


def _count_of_another_name(config: ConfigReader, key: str, default: int) -> int:
    """transformers 5 writes one name for all families."""
    found = [name for name in COUNT_NAMES if name != key and config.has(name)]
    return config.integer(found[0]) if found else config.integer(key, default)


def read_groups(
    config: ConfigReader, count: int, picks: int, *, best: int = 2, key: str = "n_group"
) -> Groups | None:
    """Groups of experts, as good as their `best` best. key: of how many there are. Raises
    UnsupportedModelError where they do not divide the experts, or leave too few to choose from."""
    groups, keep = config.integer(key, 1), config.integer("topk_group", 1)
    if groups == keep == 1:
        return None
    if count % groups or count < best * groups:
        raise config.refusal(key, groups, f"{count} experts cannot be divided in such groups")
    if keep > groups:
        raise config.refusal("topk_group", keep, f"there are only {key} = {groups}")
    if picks > keep * (count // groups):
        size = count // groups
        raise config.refusal("topk_group", keep, f"{keep} x {size} experts, and each token uses {picks}")
    return Groups(count=groups, keep=keep, best=best)


def read_deepseek_experts(config: ConfigReader, default: int, default_picks: int) -> Experts:
    """DeepSeek V3's way: scores are sigmoids, and a bias chooses."""
    return read_beside_shared(config, *read_deepseek_routing(config, default, default_picks))


def read_deepseek_routing(
    config: ConfigReader, default: int, default_picks: int, *, in_float32: bool = False
) -> tuple[Routing, int, int]:
    """The same without the experts themselves; and how many there are, of a layer and of a token."""
    config.choice("scoring_func", "sigmoid", among=("sigmoid",))
    config.choice("topk_method", "noaux_tc", among=("noaux_tc",))
    count, picks = read_expert_counts(config, "n_routed_experts", default, default_picks)
    routing = Routing(
        score="sigmoid",
        normalise=config.boolean("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=read_groups(config, count, picks),
        bias="mlp.gate.e_score_correction_bias",
        in_float32=in_float32,
    )
    return routing, count, picks


def read_beside_shared(
    config: ConfigReader, routing: Routing, count: int, picks: int, names: ExpertNames = EXPERT_NAMES
) -> Experts:
    """Experts beside one that all tokens share, as wide as n_shared_experts of them."""
    config.only("moe_layer_freq", 1)
    width, shared = config.integer("moe_intermediate_size"), config.integer("n_shared_experts", 1)
    return Experts(
        count=count,
        picks=picks,
        width=width,
        routing=routing,
        names=names,
        shared=SharedExpert(width=shared * width, tensor="mlp.shared_experts"),
    )


def read_sparse_layers(config: ConfigReader, layers: int) -> list[bool]:
    """Which layers have experts, Qwen's way: every decoder_sparse_step-th, but for mlp_only_layers."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.integers("mlp_only_layers")
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def read_mlp_layer_types(config: ConfigReader, layers: int, *, dense: int) -> list[bool]:
    """Which layers have experts, GLM's way: by mlp_layer_types, or behind the first first_k_dense_replace
    layers, `dense` where the config says neither."""
    key = "mlp_layer_types"
    first, types = config.count("first_k_dense_replace", dense), config.strings(key)
    if not types:
        return [number >= first for number in range(layers)]
    if len(types) != layers or not {"dense", "sparse"}.issuperset(types):
        raise config.refusal(key, types, f"{layers} entries, dense or sparse, are needed")
    return [kind == "sparse" for kind in types]
