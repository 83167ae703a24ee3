"""Names of the tensors of a GGUF file as families know them, and what the file's writer did to their rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.families import GgufFamily
from firelane.models.gguf.metadata import Metadata
from firelane.models.gguf.orders import AS_STORED, Order, Shape

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
"""By part, and then the suffix is kept, or by part and suffix, and then the name is whole."""
OF_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are part of the config."""
NORMS = (
    *("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"),
    "output_norm",
)
DECAY = "ssm_a"
"""Stored as -exp of the model's numbers."""
NAME = re.compile(
    r"(?:blk\.(?P<layer>\d{1,9})\.)?(?P<part>[a-z0-9_]+(?:\.[a-z0-9_]+)*?)(?:\.(?P<suffix>weight|bias|scale))?"
)
EXPERT = "{e}"
EXACT = re.compile(r"ssm_(?:a|d)|(?:ssm_|shortconv\.)conv\w*|ffn_\w+_exps\.(?:bias|scale)")
"""Tensors of more than one axis that are no matrices: they keep all their bits."""


@dataclass(frozen=True, kw_only=True)
class TensorSource:
    """The place of a tensor of the model: rows first .. last - 1 (of the file's tensor, all of its axes but
    the last taken together), of `shape`. order: of rows and inputs, to undo what was done to them; minus: of
    each number; decay: whether -exp of each is stored; exact: whether it keeps all its bits, where matrices
    are bf16."""

    stored: str
    first: int
    last: int
    shape: Shape
    order: Order = AS_STORED
    minus: float = 0.0
    decay: bool = False
    exact: bool = False


def sources(metadata: Metadata, family: GgufFamily) -> dict[str, TensorSource]:
    """By the names that families know. Raises UnsupportedModelError naming a tensor that is not known."""
    found: dict[str, TensorSource] = {}
    for stored, shape in metadata.shapes.items():
        if stored in OF_CONFIG:
            continue
        match = NAME.fullmatch(stored)
        if match is None:
            raise _unknown(stored)
        if match["layer"] and int(match["layer"]) >= metadata.layers:
            continue  # predictors of further tokens
        name = _name(match, family)
        for number, source in enumerate(_of(stored, match, shape, metadata, family, split=EXPERT in name)):
            known = name.replace(EXPERT, str(number))
            if known in found:
                raise UnsupportedModelError(
                    f"tensors {found[known].stored} and {stored} are both {known} of the model"
                )
            found[known] = source
    return found


def _name(match: re.Match[str], family: GgufFamily) -> str:
    """With EXPERT in the place of an expert's number, where the tensor holds all of them."""
    part, suffix = match["part"], match["suffix"] or ""
    names = LAYER | dict(family.names) if match["layer"] else OUTER | dict(family.names)
    whole, begin = names.get(f"{part}.{suffix}"), names.get(part)
    if whole is None and (begin is None or not suffix):
        raise _unknown(match[0])
    known = whole or f"{begin}.{suffix}"
    return f"model.layers.{match['layer']}.{known}" if match["layer"] else known


def _of(
    stored: str,
    match: re.Match[str],
    shape: Shape,
    metadata: Metadata,
    family: GgufFamily,
    *,
    split: bool,
) -> Iterator[TensorSource]:
    """One, or one for each expert."""
    part, rows = match["part"], prod(shape) if len(shape) == 1 else prod(shape[:-1])
    exact = (
        part in family.float32 or EXACT.fullmatch(stored.removeprefix(f"blk.{match['layer']}.")) is not None
    )
    if split:
        if len(shape) != 3:
            raise UnsupportedModelError(f"tensor {stored} has shape {list(shape)}, not three axes")
        height = shape[1]
        for first in range(0, rows, height):
            yield TensorSource(stored=stored, first=first, last=first + height, shape=shape[1:], exact=exact)
        return
    norm = part in NORMS and match["suffix"] == "weight"
    shape = _shape(part, match["suffix"] or "", shape, family)
    layer = int(match["layer"] or 0)
    yield TensorSource(
        stored=stored,
        first=0,
        last=rows,
        shape=shape,
        order=family.order(part, shape, layer, metadata) if match["layer"] else AS_STORED,
        minus=family.norm_plus if norm else 0.0,
        decay=part == DECAY,
        exact=exact,
    )


def _shape(part: str, suffix: str, stored: Shape, family: GgufFamily) -> Shape:
    """In the model, of a tensor of this shape in the file."""
    size = prod(stored)
    if part in family.shapes:
        return tuple(size if axis < 0 else axis for axis in family.shapes[part])
    if part in ("ssm_norm", "ssm_a", "ssm_d"):
        return (size,)
    if part == "ffn_gate_inp_shexp":
        return (1, size)  # a matrix of one row, stored as a vector
    if "conv" in part.split(".")[-1] and suffix == "weight":
        return (size // stored[-1], 1, stored[-1])
    return stored


def _unknown(stored: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"tensor {stored[:80]} is not known, and may change the result")
