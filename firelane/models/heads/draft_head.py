"""DraftHead: the program of a head, and what its rows are made of."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True)
class TargetSizes:
    """Sizes of a target that its head has to know. width: of its residual stream; layers: how many it has."""

    vocab_size: int
    width: int
    layers: int
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class DraftHead:
    """A head that drafts the tokens behind those of a text.

    Its row of position t has three parts: the embedding of token t + 1, `width` wide; what the target has
    computed at position t, `target_width` wide; and, behind a drafted token, what the head itself has told at
    position t - 1, `width` wide. Of the last two one is there, and the other zeros, or both are one part:
    own_at is where what the head has told stands. The row's logits are those of token t + 2, and the row
    tells its hidden state.
    """

    program: Program
    further: tuple[Program, ...] = ()
    """Programs of further layers, that of the second token of a draft first, each with rows like the first
    one's. A row of layer k, counted from 0, has the embedding of token t + k + 1, and what layer k - 1 has
    told at position t; its logits are those of token t + k + 2."""
    width: int
    target_width: int
    own_at: int
    streams: tuple[int, ...] = ()
    """The layers before which the target's residual stream is read, the first one first; (): the target's
    hidden state behind its last norm."""
    table: str
    """The tensor of the embeddings."""
    has_table: bool = False
    """Whether that tensor is one of the head's; else one of the target's."""
    token_ids: str = ""
    """The tensor by which a drafted number becomes a token of the target: that of number i is i + its i-th
    entry. "": both are the same."""

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of all layers."""
        return self.program, *self.further

    @property
    def row_width(self) -> int:
        return self.own_at + self.width if self.own_at > self.width else self.width + self.target_width
