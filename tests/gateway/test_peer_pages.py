"""Prompts that another engine has: named to the one that was chosen, and to no other."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

import pytest

from firelane.cli import build_parser
from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.config import ModelConfig
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import TenantLoad
from firelane.gateway.engines.routing.routing import Router, SharedPages
from firelane.options import fields
from firelane.server.options.engine import engine_config, engine_options
from firelane.sources.resolve import EMBEDDED
from firelane.wire.frames import NewRequest, Sampling
from firelane.wire.page_names import PAGE_TOKENS

LONG = 4 * PAGE_TOKENS


@dataclass
class Engine:
    name: str
    prefill_tokens: int = 0
    sequences: int = 0
    kv_tokens: int = 1 << 20
    life: int = field(default_factory=itertools.count(1).__next__)
    step_ms: float = 0.0
    token_ms: float = 0.0
    queued: TenantLoad | None = None
    role: str = "both"
    pages_address: str = ""

    @property
    def engine_id(self) -> str:
        return f"life-{self.life}"


def flight(tokens=LONG, *, first=1, salt=b"", **fields):
    prompt = array("i", range(first, first + tokens)).tobytes()
    return InFlight(NewRequest(id=1, prompt=prompt, sampling=Sampling(), salt=salt, **fields), None)


def sent(pages, one, engine, serving):
    pages.sent(one, engine, serving)
    return one.pages_at, one.cached_tokens


def test_who_has_more_of_a_prompt_gives_it():
    pages, (a, b, c) = SharedPages(), (Engine("a"), Engine("b"), Engine("c"))
    everyone = [a, b, c]
    assert sent(pages, flight(), a, everyone) == ("", 0)
    assert sent(pages, flight(2 * PAGE_TOKENS), b, everyone) == (a.engine_id, 2 * PAGE_TOKENS)
    assert sent(pages, flight(), c, everyone) == (a.engine_id, LONG)
    assert sent(pages, flight(LONG + 9), c, everyone) == ("", 0)  # has it, too


def test_nobody_is_named_who_has_nothing():
    pages, (a, b) = SharedPages(), (Engine("a"), Engine("b"))
    pages.sent(flight(), a, [a, b])
    assert sent(pages, flight(first=7), b, [a, b]) == ("", 0)
    assert sent(pages, flight(salt=b"another tenant"), b, [a, b]) == ("", 0)
    assert sent(pages, flight(PAGE_TOKENS - 1), b, [a, b]) == ("", 0)
    assert sent(pages, flight(pooling="last"), b, [a, b]) == ("", 0)
    assert sent(pages, flight(), b, [b]) == ("", 0)


def test_another_life_has_no_pages():
    pages, (a, b) = SharedPages(), (Engine("a"), Engine("b"))
    pages.sent(flight(), a, [a, b])
    again = Engine("a")
    assert sent(pages, flight(), b, [again, b]) == ("", 0)


def test_a_place_that_the_request_names_stays():
    pages, (a, b) = SharedPages(), (Engine("a"), Engine("b"))
    pages.sent(flight(), a, [a, b])
    one = flight(pages_at="elsewhere")
    pages.sent(one, b, [a, b])
    assert one.continuation().pages_at == "elsewhere"


@pytest.mark.parametrize("shares_pages", [False, True])
def test_the_router_tells_the_engine_that_it_chooses(shares_pages):
    router, engines = Router.of("least-tokens", shares_pages=shares_pages), [Engine("a"), Engine("b")]
    first = router.route(flight(), engines)
    assert first is not None
    first.engine.prefill_tokens = LONG  # has work now
    one = flight()
    second = router.route(one, engines)
    assert second is not None
    assert second.engine is not first.engine
    assert one.continuation().pages_at == (first.engine.engine_id if shares_pages else "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--share-pages"], "of --replicas"),
        (["--share-pages", "--prefill", "1", "--decode", "1"], "of --replicas"),
        (["--share-pages", "--replicas", "2", "--no-prefix-cache"], "--no-prefix-cache beside --share-pages"),
    ],
)
def test_options_that_do_not_go_together(words, said, tmp_path):
    given = vars(build_parser().parse_args(["serve", *words]))
    engine = engine_config(given, EMBEDDED, Environment(cache_dir=tmp_path))
    with pytest.raises(UsageError, match=said):
        engine_options(given, engine, 1)


def test_engines_that_share_pages_have_them_in_shared_memory(tmp_path):
    given = vars(build_parser().parse_args(["serve", "--replicas", "2", "--share-pages"]))
    options = engine_options(given, EngineConfig(model_dir=EMBEDDED, cache_dir=tmp_path), 1)
    assert {config.kv_cache_memory for config in options.configs(shares_pages=True)} == {"shared"}
    assert {config.kv_cache_memory for config in options.configs()} == {"private"}
    assert fields(ModelConfig, given)["shares_pages"]
