"""Reference of the Sample op: see ops/sample.py for the rules. Sums are float64, logits float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.request_limits import MAX_LOGPROBS

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
MASK = 0xFFFFFFFF
PHILOX_M = (0xD2511F53, 0xCD9E8D57)
PHILOX_W = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class RowSampling:
    """One output row: the token of `position` is drawn (or scored, where it stands in `tokens` already).

    tokens: int32 [max_len + 1], the slot's prompt and output; params: one SAMPLING_DTYPE record; mask: the
    slot's row of `masks`, read where params["masked"].
    """

    position: int
    draws: bool
    tokens: NDArray[np.int32]
    params: Any
    bias_ids: NDArray[np.int32]
    bias_values: F32
    stop_ids: NDArray[np.int32]
    mask: NDArray[np.uint32]


@dataclass(frozen=True)
class RowResult:
    """logprob and top_logprobs are of the raw distribution; top_ids: best first, at most MAX_LOGPROBS, or the
    tokens that the slot names."""

    token: int
    logprob: float
    top_ids: NDArray[np.int64]
    top_logprobs: F64


def sample_row(logits: F32, row: RowSampling) -> RowResult:
    """logits: float32 [vocab]."""
    logprobs = log_softmax(logits)
    token = draw(logits, row) if row.draws else int(row.tokens[row.position])
    reported = int(row.params["num_reported"])
    top = row.bias_ids[:reported].astype(np.int64) if reported else descending(logits)[:MAX_LOGPROBS]
    return RowResult(token, float(logprobs[token]), top, logprobs[top])


def draw(logits: F32, row: RowSampling) -> int:
    """The row's next token."""
    adjusted = adjust(logits, row)
    if row.params["masked"] and adjusted.max() == -np.inf:
        return int(allowed(row, len(logits)).argmax())
    temperature = np.float32(row.params["temperature"])
    if temperature == 0:
        return int(np.argmax(adjusted))
    scaled = adjusted / temperature
    mass = np.exp(scaled.astype(np.float64) - float(scaled.max()))
    mass[~kept(scaled, mass, row.params)] = 0.0
    u = uniform(int(row.params["seed"]), row.position)
    cumulative = np.cumsum(mass)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def adjust(logits: F32, row: RowSampling) -> F32:
    """Penalties, bias, banned stop tokens and mask."""
    params, out = row.params, logits.copy()
    seen = np.unique(row.tokens[: row.position])
    penalty = np.float32(params["repetition_penalty"])
    out[seen] = np.where(out[seen] > 0, out[seen] / penalty, out[seen] * penalty)
    counts = np.bincount(row.tokens[int(params["prompt_len"]) : row.position], minlength=len(out)).astype(
        np.float32
    )
    out -= np.float32(params["frequency_penalty"]) * counts
    out -= np.float32(params["presence_penalty"]) * (counts > 0)
    biased = int(params["num_bias"])
    np.add.at(out, row.bias_ids[:biased], row.bias_values[:biased])
    if row.position < int(params["stop_from"]):
        out = without_stops(out, row)
    if params["masked"]:
        out[~allowed(row, len(out))] = -np.inf
    return out


def without_stops(logits: F32, row: RowSampling) -> F32:
    """The stop tokens banned, unless a masked row would then have nothing left."""
    banned = np.zeros(len(logits), np.bool_)
    banned[row.stop_ids[: int(row.params["num_stop_ids"])]] = True
    if row.params["masked"] and not (allowed(row, len(logits)) & ~banned).any():
        return logits
    return np.where(banned, np.float32(-np.inf), logits)


def allowed(row: RowSampling, vocab_size: int) -> NDArray[np.bool_]:
    """Which tokens the row's mask lets through: bit t % 32 of word t // 32."""
    tokens = np.arange(vocab_size)
    return (row.mask[tokens // 32] >> (tokens % 32).astype(np.uint32) & 1).astype(np.bool_)


def kept(scaled: F32, mass: F64, params: Any) -> NDArray[np.bool_]:
    """Which tokens min_p, top_k and top_p leave; mass = exp(scaled - max)."""
    keep = mass >= float(params["min_p"])
    order = descending(scaled)
    top_k = int(params["top_k"])
    if top_k > 0:
        keep[order[top_k:]] = False
    top_p = float(params["top_p"])
    if top_p < 1.0:
        ordered = np.where(keep[order], mass[order], 0.0)
        before = np.cumsum(ordered) - ordered
        keep[order[1:]] &= before[1:] < top_p * ordered.sum()
    return keep


def descending(logits: F32) -> NDArray[np.int64]:
    """Token ids from the largest logit down, equal ones by increasing id."""
    return np.argsort(-logits, kind="stable")


def log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - float(logits.max())
    return shifted - np.log(np.exp(shifted).sum())


def uniform(seed: int, position: int) -> float:
    """In [0, 1), a multiple of 2^-24."""
    x0 = philox4x32((position & MASK, 0, 0, 0), (seed & MASK, (seed >> 32) & MASK))[0]
    return (x0 >> 8) * 2.0**-24


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011); 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = PHILOX_M[0] * c0, PHILOX_M[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + PHILOX_W[0]) & MASK, (k1 + PHILOX_W[1]) & MASK
    return c0, c1, c2, c3
