"""Embed: one row of the embedding table for each token."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.values import Rows, Value, Weight


@dataclass(frozen=True, kw_only=True)
class Embed:
    """out[t] = table[token id of row t]. table: [vocab, width]; out: TOKEN rows, F32."""

    table: Weight
    out: Value

    def __post_init__(self) -> None:
        assert self.out.rows is Rows.TOKEN, "Embed: out has one row a token"
        assert self.table.shape[1] == self.out.width, f"Embed: table {self.table.shape}, out {self.out.width}"
