"""Make an EAGLE-3 head for a target, and its loss: several drafting steps on its own outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig

from tools.drafting.eagle import STREAMS, Cache, EagleHead
from tools.drafting.target import Target, autocast, saved_weights
from tools.drafting.text import Tokens

DISCOUNT = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadShape:
    """The sizes of a head that are free to choose; None takes the target's own size."""

    layer_ids: tuple[int, ...]
    draft_vocabulary: int
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None


@dataclass(frozen=True, slots=True)
class Drafts:
    """The result of a head's drafts at each row, place by place.

    ``loss`` is the discounted sum of the cross entropies; ``right`` bool [batch, rows, places] says where
    the likeliest token is the one that follows in the rows.
    """

    loss: Tensor
    right: Tensor


def default_layer_ids(layers: int) -> tuple[int, ...]:
    """The layers whose input streams the head reads: (2, n / 2, n - 3), or even steps in a shallow model.

    Raises SystemExit for fewer than three layers.
    """
    if layers < STREAMS:
        raise SystemExit(f"the target has {layers} layers; a head reads the streams into {STREAMS}")
    usual = (2, layers // 2, layers - 3)
    if usual[0] < usual[1] < usual[2]:
        return usual
    stride = layers // STREAMS
    return (layers - 1 - 2 * stride, layers - 1 - stride, layers - 1)


def frequent_tokens(rows: Tokens, vocabulary: int, size: int) -> Tensor:
    """The ``size`` tokens that occur most often, int64 in the order of their ids; ties go to lower ids."""
    counts = np.bincount(rows.ravel(), minlength=vocabulary)
    picked = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(picked))


def make_head(target: Target, shape: HeadShape, draft_ids: Tensor, seed: int) -> EagleHead:
    """A head that starts from the target's last norm, its output rows, and the last of the streams."""
    torch.manual_seed(seed)
    head = EagleHead(_config(target, shape), draft_ids.to(target.device)).to(target.device)
    size = head.config.hidden_size
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.02)
        head.fc.weight[:, -size:] += torch.eye(size, device=target.device)
        head.norm.weight.copy_(target.final_norm.float())
        head.lm_head.weight.copy_(target.head[head.draft_ids].float())
    return head


def load_head(head: EagleHead, directory: Path) -> None:
    """Give the head the weights that were saved in ``directory``, with the tokens that they draft.

    Raises SystemExit where they are those of a head of other sizes.
    """
    weights = saved_weights(directory)
    ids = weights.pop("d2t", torch.zeros(0, dtype=torch.int64))
    weights.pop("t2d", None)
    own = {name: weight.shape for name, weight in head.state_dict().items()}
    if own != {name: weight.shape for name, weight in weights.items()} or ids.shape != head.draft_ids.shape:
        raise SystemExit(f"{directory} has no head of these sizes: give the options that it was made with")
    head.load_state_dict({name: weight.float() for name, weight in weights.items()})
    head.draft_ids.copy_(ids + torch.arange(len(ids)))


def draft(head: EagleHead, target: Target, rows: Tensor, places: int) -> Drafts:
    """Draft ``places`` tokens at each row of int64 [batch, tokens] but the last ``places`` + 1.

    At place k, row r reads the token at r + k + 1 and drafts the one behind it. The right tokens are fed,
    so a draft counts as it would where those before it were accepted.
    """
    streams, logits = target.streams_and_logits(rows, tuple(head.config.eagle_aux_hidden_state_layer_ids))
    kept = rows.shape[1] - places - 1
    embedded = torch.nn.functional.embedding(rows, target.embedding).float()
    loss, right = torch.zeros((), device=rows.device), []
    with autocast(target.device):
        features = head.fc(streams[:, :kept]).float()
        for place, hidden in enumerate(unroll(head, embedded, features, places)):
            drafted = head.logits(hidden)
            behind = slice(place + 1, place + 1 + kept)
            loss = loss + DISCOUNT**place * _cross_entropy(head, drafted, logits[:, behind])
            following = rows[:, place + 2 : place + 2 + kept]
            right.append(head.draft_ids[drafted.argmax(-1)] == following)
    return Drafts(loss=loss, right=torch.stack(right, dim=-1))


def unroll(head: EagleHead, embedded: Tensor, features: Tensor, places: int) -> list[Tensor]:
    """Run the head ``places`` times, each on its own outputs before (the paper's training-time test).

    Returns the layer's outputs by place, each float32 [batch, rows, hidden]. ``features`` has as many
    rows; ``embedded`` the embeddings of the tokens from the first row on, ``places`` more.
    """
    cache, made, hidden = Cache([], []), [], features
    for place in range(places):
        following = embedded[:, place + 1 : place + 1 + features.shape[1]]
        hidden = head(following, hidden, place, cache).float()
        made.append(hidden)
    return made


def _cross_entropy(head: EagleHead, drafted: Tensor, logits: Tensor) -> Tensor:
    """Against the target's distribution over the draft vocabulary, where its likeliest token is in it."""
    wanted = logits[..., head.draft_ids].softmax(-1)
    held = logits.argmax(-1)[..., None]
    place = torch.searchsorted(head.draft_ids, held).clamp(max=len(head.draft_ids) - 1)
    known = (head.draft_ids[place] == held)[..., 0].float()
    entropy = -(wanted * drafted.log_softmax(-1)).sum(-1)
    return (entropy * known).sum() / known.sum().clamp(min=1)


def check_head(target: Target, shape: HeadShape) -> None:
    """Raises SystemExit where the shape does not fit the target."""
    layers = target.config.num_hidden_layers
    ids = shape.layer_ids
    if len(ids) != STREAMS or len(set(ids)) != STREAMS or not all(0 <= i < layers for i in ids):
        raise SystemExit(f"--layers takes {STREAMS} different numbers from 0 to {layers - 1}, not {ids}")
    rows = len(target.embedding)
    if not 1 < shape.draft_vocabulary <= rows:
        raise SystemExit(f"--draft-vocabulary must be from 2 to the target's {rows}")
    heads, kv_heads = _heads(target, shape)
    if shape.intermediate is not None and shape.intermediate < 1:
        raise SystemExit("--intermediate must be at least 1")
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise SystemExit(f"{heads} heads cannot share {kv_heads} key and value heads")


def _heads(target: Target, shape: HeadShape) -> tuple[int, int]:
    heads = target.config.num_attention_heads if shape.heads is None else shape.heads
    kv_heads = target.config.num_key_value_heads if shape.kv_heads is None else shape.kv_heads
    return heads, kv_heads


def _config(target: Target, shape: HeadShape) -> LlamaConfig:
    """The head's configuration: the target's, but for one layer and the draft vocabulary."""
    own = target.config
    heads, kv_heads = _heads(target, shape)
    return LlamaConfig(
        vocab_size=len(target.embedding),
        draft_vocab_size=shape.draft_vocabulary,
        hidden_size=own.hidden_size,
        intermediate_size=shape.intermediate or own.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads,
        rms_norm_eps=own.rms_norm_eps,
        max_position_embeddings=own.max_position_embeddings,
        rope_parameters=dict(own.rope_parameters),
        eagle_aux_hidden_state_layer_ids=list(shape.layer_ids),
        tie_word_embeddings=False,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
    )
