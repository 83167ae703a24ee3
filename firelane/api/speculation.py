"""Fields about speculative decoding: whether tokens are drafted, and the answer that a client expects."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firelane.request_limits import MOST_DRAFTED

AS_MANY_AS_PAY = -1


class DraftLimit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """num_speculative_tokens: tokens that are drafted at a time at most; 0: none."""

    num_speculative_tokens: Annotated[int, Meta(ge=0, le=MOST_DRAFTED)]


Speculative = bool | Literal["auto", "off"] | DraftLimit
"""Whether tokens may be drafted, or how many at a time. The answer is the same."""


def most_drafted(speculative: Speculative | None) -> int:
    """The same as NewRequest.most_drafted says it."""
    if isinstance(speculative, DraftLimit):
        return speculative.num_speculative_tokens
    return 0 if speculative is False or speculative == "off" else AS_MANY_AS_PAY


class PredictedText(msgspec.Struct, kw_only=True):
    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The answer as its client expects it. content: a text, or parts that follow each other."""

    type: Literal["content"]
    content: str | list[PredictedText]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
