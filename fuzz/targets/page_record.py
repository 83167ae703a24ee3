"""Engines tell anything of their pages: the gateway's record stays whole, holds no more than it may, and is
empty once the engines are gone."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.gateway.engines.routing.page_record import LEAST_PAGES, PageRecord
from firelane.wire.cache_events import numbers_of
from fuzz.draw import Draw
from fuzz.target import Target

NAMES = 40


@dataclass(frozen=True)
class Engine:
    """kv_tokens: of 0 the record makes room for the least."""

    name: str
    life: int
    kv_tokens: int = 0


def run(data: bytes) -> None:
    draw, record = Draw(data), PageRecord()
    lives = [1, 2, 3]
    engines = [Engine(f"e{i}", life) for i, life in enumerate(lives)]
    while not draw.is_over:
        at = draw.below(len(engines))
        kind = draw.below(8)
        if kind < 4:
            told = numbers_of(_names(draw))
            record.tell(engines[at], told, numbers_of(_names(draw)), is_whole=kind == 0)
        elif kind < 6:
            pages = list(dict.fromkeys(numbers_of(_names(draw))))
            record.expect(engines[at], pages, known=draw.below(3))
        elif kind == 6:
            record.lost(engines[at])
            engines[at] = Engine(engines[at].name, engines[at].life + len(engines))
        else:
            _ask(draw, record)
        assert len(record) <= 2 * LEAST_PAGES * len(engines)
    for engine in engines:
        record.lost(engine)
    assert len(record) == 0
    assert not record._masks
    assert not record._tails


def _ask(draw: Draw, record: PageRecord) -> None:
    pages = list(dict.fromkeys(numbers_of(_names(draw))))
    found = record.cached(pages)
    assert sorted(cached.pages for cached in found) == [cached.pages for cached in found]
    assert all(0 < cached.pages <= len(pages) and cached.lives for cached in found)


def _names(draw: Draw) -> bytes:
    """Names of pages as they travel; some few, so that they are met again."""
    return b"".join(bytes([draw.below(NAMES)]) + bytes(7) for _ in range(draw.below(12)))


TARGET = Target(run=run)
