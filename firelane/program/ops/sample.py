"""Sample: penalties, bias, filters and the draw of the next token, and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, Rows, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class Sample(Op):
    """Draws one token for each row of logits (F32, OUTPUT rows), as the row's slot asks. Log-probabilities
    are those of the raw logits: of the token, and of the best ones or of those that the slot names.

    Order: raw log-softmax for logprobs; repetition, then frequency and presence penalties; bias; stop tokens
    banned until stop_from; the mask, where the slot is masked; temperature 0 takes the largest (lowest id on
    a tie); else logits / temperature, softmax, min_p, top_k, top_p, and the draw: the first token, in
    increasing id, at which the kept mass summed so far exceeds u * total kept mass, where
    u = (x0 >> 8) * 2^-24 and x0 is the first word of Philox4x32-10 (Salmon et al., 2011) with key = (seed's
    low 32 bits, its high 32 bits) and counter = (position of the drawn token, 0, 0, 0).

    Repetition: over the tokens of prompt and output, a positive logit is divided by the penalty, another
    multiplied by it.
    Frequency and presence: over the output alone. min_p keeps p >= min_p * max p. top_k keeps the k largest
    of those. top_p keeps, from the largest down, the tokens before which less than top_p of the mass kept so
    far lies (always one at least). Equal logits are ordered by increasing id.
    A masked row whose banned stop tokens are all that its mask allows ignores the ban. Where all that it
    allows is -inf or NaN, the lowest allowed token is taken.
    """

    logits: Value

    def __post_init__(self) -> None:
        assert self.logits.rows is Rows.OUTPUT, "Sample: logits have OUTPUT rows"
        assert self.logits.dtype is DType.F32, "Sample: logits are F32"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=4.0 * shape.outputs * self.logits.width)

    def reference(self, step: ReferenceStep) -> None:
        step.sample(step.read(self.logits))
