"""Division of a vocabulary among the sampling kernels, and the record by which they know what a row asks for.

A row's logits are cut into blocks, one program each in the scan, and a block into GROUPS groups of
neighbouring tokens whose largest logits ("peaks") tell later where the few that matter lie. All of this
follows from the vocabulary alone.
"""

from __future__ import annotations

import triton.language as tl

from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.contract import MAX_BIAS, MAX_LOGPROBS

GROUPS = 32  # of a block
MAX_BLOCK = 4096
MAX_CHUNK = 1024
BIAS_ROOM = power_of_two(MAX_BIAS)
TOP_ROOM = power_of_two(MAX_LOGPROBS)
RECORD_WORDS = 16
PIVOTS = 8  # parts that a range of logits is cut into at once in the search for a threshold

# Words of a row's record, int32; _F: the bits of a float32.
ROW_WORDS = tl.constexpr(RECORD_WORDS)
WORK = tl.constexpr(0)
"""The work to be done, the bits below; 0 where the row asks for nothing."""
SCALE_F = tl.constexpr(1)
"""log2(e) / temperature."""
TOP_P_F = tl.constexpr(2)
MIN_P_F = tl.constexpr(3)
REPETITION_F = tl.constexpr(4)
PRESENCE_F = tl.constexpr(5)
FREQUENCY_F = tl.constexpr(6)
TOP_K = tl.constexpr(7)
"""0 where it drops nothing."""
ALTERNATIVES = tl.constexpr(8)
UNIFORM = tl.constexpr(9)
"""The random number, in units of 2^-24."""
LAST_RESORT = tl.constexpr(10)
"""The token where no logit is above -inf: the lowest that the mask allows."""
SCORED = tl.constexpr(11)
"""SCORE rows: the token that stands there."""
REPORTED = tl.constexpr(12)
"""The number of tokens that the slot names in place of the best alternatives."""

# Bits of WORK.
DRAWS = tl.constexpr(1)
ADJUSTS = tl.constexpr(2)  # the logits that it draws by are not the raw ones
SCALES = tl.constexpr(4)  # temperature above 0
FILTERS = tl.constexpr(8)  # top_k, top_p or min_p
LOGPROBS = tl.constexpr(16)  # log-probabilities
PENALIZES = tl.constexpr(32)
BIASES = tl.constexpr(64)
BANS = tl.constexpr(128)
MASKS = tl.constexpr(256)

PROMPT = tl.constexpr(1 << 30)
"""Set in a token's tally where the prompt holds it; the bits below count it in the output."""


def block_size(vocab: int) -> int:
    """Tokens of a block: a power of two; eight blocks at least where the vocabulary allows it."""
    return min(MAX_BLOCK, max(GROUPS, power_of_two(-(-vocab // 8))))


def num_blocks(vocab: int) -> int:
    return -(-vocab // block_size(vocab))


def row_size(vocab: int) -> int:
    """Tokens that a row of scratch has room for: whole blocks, so that each begins aligned."""
    return num_blocks(vocab) * block_size(vocab)


def chunk_size(vocab: int) -> int:
    """Tokens of a list that are looked at together."""
    return min(MAX_CHUNK, block_size(vocab))


def bus_read_size(vocab: int) -> int:
    """Words that are read from a slot together: enough that the bus is waited for few times."""
    return 4 * chunk_size(vocab)
