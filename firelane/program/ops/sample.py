"""Sample: penalties, bias, filters and the draw of the next token, and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.values import DType, Rows, Value


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draws one token for each row of logits (F32, OUTPUT rows), as the row's slot asks. Log-probabilities are those of the raw logits.

    Order: raw log-softmax for logprobs; repetition, then frequency and presence penalties; bias; stop tokens banned until
    stop_from; temperature 0 takes the largest (lowest id on a tie); else logits / temperature, softmax, min_p, top_k, top_p,
    and the draw: the first token, in increasing id, at which the kept mass summed so far exceeds u * total kept mass, where u
    comes from Philox4x32-10 (Salmon et al., 2011) with key = seed and counter = (position of the drawn token, 0, 0, 0).
    """

    logits: Value

    def __post_init__(self) -> None:
        assert self.logits.rows is Rows.OUTPUT, "Sample: logits have OUTPUT rows"
        assert self.logits.dtype is DType.F32, "Sample: logits are F32"
