"""Cached estimates of how far a checkpoint compresses: later starts need not read a sample of its weights."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from firelane.program.program import Program
from firelane.program.values import Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.formats import FORMAT_VERSION, Format
from firelane.weights.packing.census import MOST_BITS, census
from firelane.weights.packing.plan import takes
from firelane.weights.storage import checked_json

VERSION = 1
Bits = dict[str, dict[Format, float]]


class Cached(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An estimate as a file: `bits` as weights.census.census gives them, of the weights that `key` hashes."""

    key: str
    bits: dict[str, dict[str, float]]


def cached_estimate(
    cache_dir: Path, checkpoint: Checkpoint, program: Program, weights: Sequence[Weight]
) -> Bits:
    """weights.census.census(), read from `cache_dir` where it was taken before. Raises CheckpointError."""
    key = _key(checkpoint, weights)
    path = cache_dir / "estimates" / f"{key}.json"
    cached = checked_json.read(path, Cached)
    if cached is not None and cached.key == key and (bits := _checked(cached, weights)) is not None:
        return bits
    taken = census(checkpoint, program, weights)
    named = {name: {form.value: bits for form, bits in forms.items()} for name, forms in taken.items()}
    with contextlib.suppress(OSError):  # it is taken again then
        checked_json.write(path, Cached(key=key, bits=named))
    return taken


def _checked(cached: Cached, weights: Sequence[Weight]) -> Bits | None:
    """None where these cannot be the bits of these weights."""
    able = {w.name: {f for f in Format if f.is_lossless and takes(w, f)} for w in weights}
    if set(cached.bits) != set(able):
        return None
    try:
        bits = {n: {Format(form): b for form, b in forms.items()} for n, forms in cached.bits.items()}
    except ValueError:
        return None
    sound = all(
        set(forms) <= able[n] and all(8 < b < MOST_BITS for b in forms.values()) for n, forms in bits.items()
    )
    return bits if sound else None


def _key(checkpoint: Checkpoint, weights: Sequence[Weight]) -> str:
    parts = [f"{VERSION} {FORMAT_VERSION} {MOST_BITS}", checkpoint.fingerprint]
    parts += [f"{w.name} {w.shape} {w.pieces}" for w in weights]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
