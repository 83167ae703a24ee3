"""TensorNames: under which names a checkpoint publishes the tensors of its language model.

Families name tensors as a model of text alone does: model.embed_tokens.weight, model.layers.0.…,
lm_head.weight. Multimodal models keep them a level deeper, in one of two ways, and models without a head may
leave the first level out.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from firelane.errors import CheckpointError

ANCHORS = ("embed_tokens.weight", "embeddings.weight")
"""Tensors by which a layout is known: every language model has one of them, once."""
OTHER_PARTS = re.compile(
    r"(?:model\.)?(vision_tower|vision_model|vision_encoder|visual|embed_vision|audio_tower|audio_encoder"
    r"|embed_audio|multi_modal_projector|mm_projector|vision_language_adapter|patch_merger"
    r"|pre_mm_projector_norm|mtp|mtp_layers)\."
)
"""Beginnings of names of what is not the language model: eyes, ears, and predictors of further tokens."""


@dataclass(frozen=True)
class TensorNames:
    """body: what stands in place of `model.`. outer: what stands before `lm_head.`."""

    body: str = "model."
    outer: str = ""

    @classmethod
    def find(cls, published: Collection[str]) -> TensorNames:
        """The names of a checkpoint. Raises CheckpointError where it has two language models; without one,
        names are taken as they are."""
        found = {name: layout for layout in LAYOUTS for name in layout.anchors if name in published}
        if len(found) > 1:
            names = " and ".join(found)
            raise CheckpointError(
                f"{names} are both there: which of them is the language model's is not clear"
            )
        return next(iter(found.values()), cls())

    @property
    def anchors(self) -> tuple[str, ...]:
        """Tensors of which one is there where this is the layout."""
        return tuple(self.body + anchor for anchor in ANCHORS)

    def known(self, published: str) -> str:
        """The name by which families know a tensor."""
        if published.startswith(self.body) and (self.body or not published.startswith(HEAD)):
            return f"model.{published[len(self.body) :]}"
        return published.removeprefix(self.outer)


HEAD = "lm_head."
LAYOUTS = (
    TensorNames(),
    TensorNames("language_model.model.", "language_model."),
    TensorNames("model.language_model."),
    TensorNames("backbone."),
    TensorNames(""),
)


def other_part(name: str, left_out: tuple[str, ...]) -> str:
    """The part of the model, beside its language model, that a tensor is of; "" if it is of none."""
    found = OTHER_PARTS.match(name)
    if found:
        return found[1]
    return next((begin.removesuffix(".") for begin in left_out if name.startswith(begin)), "")
