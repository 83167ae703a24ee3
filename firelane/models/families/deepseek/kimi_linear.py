"""Kimi-Linear (Kimi team, "Kimi Linear", 2025): layers that remember by the delta rule, of which each channel
forgets by itself, and some of latent attention, none with positions; experts beside a shared one.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import Layer, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_layers
from firelane.models.blocks.delta import Columns, Delta, delta, project, read_taps
from firelane.models.blocks.expert_config import read_expert_counts, read_groups
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, SharedExpert, moe
from firelane.models.blocks.latent import latent
from firelane.models.blocks.latent_config import read_latent
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import DeltaShape
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import Value

ARCHITECTURES = ("KimiLinearForCausalLM",)
SECTION = "linear_attn_config"
BLOCK, EXPERTS = "self_attn", "block_sparse_moe"
NAMES = ExpertNames(router=f"{EXPERTS}.gate", experts=f"{EXPERTS}.experts", gate="w1", up="w3", down="w2")


def program(config: ConfigReader) -> Program:
    decoder = read_decoder(config, name="kimi_linear", length="model_max_length")
    gate, layers, shape = read_gate(config), read_layers(config), read_latent(config, query_rank=0)
    rule, recurrent = _read_delta(config, layers)
    experts, dense = _read_experts(config), config.count("first_k_dense_replace", 1)
    width = config.integer("intermediate_size")
    config.only("mla_use_nope", True)
    config.ignore("rope_theta", "rope_scaling", "rope_parameters")  # nothing has positions
    config.ignore("max_position_embeddings")  # model_max_length is what is meant
    x = embed(decoder)
    for layer in decoder.layers(layers):
        x = _remember(layer, x, rule) if layer.number in recurrent else latent(layer, x, shape, None)
        x = mlp(layer, x, width, gate=gate) if layer.number < dense else moe(layer, x, experts, gate=gate)
    return decoder.program(head(decoder, x))


def _remember(layer: Layer, x: Value, how: Delta) -> Value:
    """x + the layer's delta rule. What decides how fast it forgets, and its gate, have two matrices each."""
    s, normed = how.shape, layer.read(x, "delta", "input_layernorm")
    parts = {"q": s.key_width, "k": s.key_width, "v": s.value_width, "b": s.heads}
    pieces = tuple(_matrix(layer, part, rows, x.width) for part, rows in parts.items())
    rows = project(layer, normed, "projections", pieces)
    decay, gate = _narrow(layer, normed, "f", s), _narrow(layer, normed, "g", s)
    beta = Columns(rows, s.qkv_width)
    return delta(layer, x, how, qkv=rows, decay=Columns(decay), beta=beta, gate=Columns(gate))


def _narrow(layer: Layer, x: Value, part: str, s: DeltaShape) -> Value:
    """x times two matrices, as wide as one head between."""
    first = project(layer, x, f"{part}_a", (_matrix(layer, f"{part}_a", s.key_dim, x.width),))
    between = layer.read(first, f"{part}_b", None)
    return project(layer, between, f"{part}_b", (_matrix(layer, f"{part}_b", s.key_width, s.key_dim),))


def _matrix(layer: Layer, part: str, rows: int, inputs: int) -> Piece:
    return Piece(tensor=f"{layer.tensor(BLOCK)}.{part}_proj.weight", shape=(rows, inputs))


def _read_delta(config: ConfigReader, layers: int) -> tuple[Delta, frozenset[int]]:
    """The delta rule, and the layers that have it; the config counts layers from 1."""
    section = config.section(SECTION)
    if section is None:
        raise config.refusal(SECTION, None, "an object is needed")
    heads, dim = section.integer("num_heads", 32), section.integer("head_dim", 128)
    taps = read_taps(section, "short_conv_kernel_size")
    recurrent, full = section.integers("kda_layers"), section.integers("full_attn_layers")
    if sorted(recurrent + full) != [*range(1, layers + 1)] or not full:
        why = f"with kda_layers each of {layers} layers is to be named once, and one at least here"
        raise section.refusal("full_attn_layers", full, why)
    section.finish()
    shape = DeltaShape(key_heads=heads, heads=heads, key_dim=dim, value_dim=dim, by_channel=True)
    how = Delta(
        shape=shape,
        taps=taps,
        conv=tuple((f"{BLOCK}.{part}_conv1d", shape.key_width) for part in "qkv"),
        a_log=f"{BLOCK}.A_log",
        a_log_shape=(1, 1, heads, 1),
        dt_bias=f"{BLOCK}.dt_bias",
        norm=f"{BLOCK}.o_norm.weight",
        out=f"{BLOCK}.o_proj",
        gate="sigmoid",
    )
    return how, frozenset(layer - 1 for layer in recurrent)


def _read_experts(config: ConfigReader) -> Experts:
    config.choice("moe_router_activation_func", "sigmoid", among=("sigmoid",))
    config.only("moe_layer_freq", 1)
    config.ignore("use_grouped_topk")
    count, picks = read_expert_counts(config, "num_experts", 256, 8, picks_key="num_experts_per_token")
    width, shared = config.integer("moe_intermediate_size"), config.integer("num_shared_experts", 1)
    routing = Routing(
        score="sigmoid",
        normalise=config.boolean("moe_renormalize", True),
        scale=config.number("routed_scaling_factor", 2.446),
        groups=read_groups(config, count, picks, key="num_expert_group"),
        bias=f"{EXPERTS}.gate.e_score_correction_bias",
    )
    shares = SharedExpert(width=shared * width, tensor=f"{EXPERTS}.shared_experts")
    return Experts(count=count, picks=picks, width=width, routing=routing, names=NAMES, shared=shares)
