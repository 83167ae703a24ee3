"""Names of the tensors of a GGUF file as families know them, and what the file's writer did to their rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.families import NORMS, Family
from firelane.models.gguf.metadata import Metadata

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
OF_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are part of the config."""
ONE_ROW = ("ffn_gate_inp_shexp",)
"""Matrices of one row, stored as vectors."""
NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>[a-z0-9_]+)\.(?P<suffix>weight|bias)")
EXPERT = "{e}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The place of a tensor of the model: rows first .. last - 1 (of the file's tensor, all of its axes but
    the last taken together), of `shape`. view and order: of these rows, to undo what was done to them; minus:
    of each number."""

    stored: str
    first: int
    last: int
    shape: tuple[int, ...]
    view: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    minus: float = 0.0


def sources(metadata: Metadata, family: Family) -> dict[str, Source]:
    """By the names that families know. Raises UnsupportedModelError naming a tensor that is not known."""
    found: dict[str, Source] = {}
    predictors = metadata.integer("nextn_predict_layers", 0)
    last = metadata.integer("block_count") - predictors
    for stored, shape in metadata.shapes.items():
        if stored in OF_CONFIG:
            continue
        match = NAME.fullmatch(stored)
        if match is None:
            raise _unknown(stored)
        if match["layer"] and int(match["layer"]) >= last:
            continue  # predictors of further tokens
        name = _name(match, family)
        for number, source in enumerate(_of(stored, match, shape, metadata, family, split=EXPERT in name)):
            found[name.replace(EXPERT, str(number))] = source
    return found


def _name(match: re.Match[str], family: Family) -> str:
    """With EXPERT in the place of an expert's number, where the tensor holds all of them."""
    part, suffix = match["part"], f".{match['suffix']}"
    if not match["layer"]:
        if part not in OUTER:
            raise _unknown(match[0])
        return OUTER[part] + suffix
    known = family.names.get(part) or LAYER.get(part)
    if known is None:
        raise _unknown(match[0])
    suffix = "" if known.endswith("_bias") else suffix
    return f"model.layers.{match['layer']}.{known}{suffix}"


def _of(
    stored: str,
    match: re.Match[str],
    shape: tuple[int, ...],
    metadata: Metadata,
    family: Family,
    *,
    split: bool,
) -> Iterator[Source]:
    """One, or one for each expert."""
    rows = _rows(shape)
    if split:
        count, height = shape[0], rows // shape[0]
        for number in range(count):
            first = number * height
            yield Source(stored=stored, first=first, last=first + height, shape=shape[1:])
        return
    part = match["part"]
    if part in ONE_ROW:
        shape = (1, *shape)
    norm = part in (*NORMS, "output_norm") and match["suffix"] == "weight"
    view, order = _undone(part, shape, metadata) if family.heads_in_pairs else ((), ())
    minus = family.norm_plus if norm else 0.0
    yield Source(stored=stored, first=0, last=rows, shape=shape, view=view, order=order, minus=minus)


def _undone(part: str, shape: tuple[int, ...], metadata: Metadata) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of q and k the rows of a head, stored as pairs of neighbours, as two halves again."""
    if part not in ("attn_q", "attn_k"):
        return (), ()
    key = "attention.head_count" if part == "attn_q" else "attention.head_count_kv"
    heads = metadata.same(key, metadata.same("attention.head_count"))
    rows = shape[0]
    if heads < 1 or rows % (2 * heads):
        raise UnsupportedModelError(f"{part} of {rows} rows cannot be that of {heads} heads")
    return (heads, rows // heads // 2, 2), (0, 2, 1)


def _rows(shape: tuple[int, ...]) -> int:
    """Of a vector, one for each number."""
    rows = shape[0]
    for size in shape[1:-1]:
        rows *= size
    return rows


def _unknown(stored: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"tensor {stored[:80]} is not known, and may change the result")
