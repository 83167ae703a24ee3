"""benchmarks/routing_policies.py: its prompts, and its table."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from firelane.gateway.config.model import LEAST_TOKENS, ROUTING

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    return importlib.import_module("routing_policies")


@pytest.mark.parametrize("mix", ["agents", "chat"])
def test_prompts_of_a_client_begin_with_those_before(script, mix):
    clients, shape = script.prompts_of(mix, 3), script.MIXES[mix]
    assert [len(prompts) for prompts in clients] == [shape.turns] * shape.clients
    assert all(after[: len(before)] == before for prompts in clients for before, after in pairwise(prompts))
    assert len({tuple(prompts[0][: shape.shared]) for prompts in clients}) == shape.kinds
    assert max(len(prompt) for prompts in clients for prompt in prompts) < 8192 - shape.output


def test_unique_prompts_share_nothing(script):
    prompts = [prompt for prompts in script.prompts_of("unique", 0) for prompt in prompts]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == len(prompts) == 24
    assert {100 <= len(prompt) <= 2000 for prompt in prompts} == {True}


def test_rounds_ask_the_same_of_all_and_each_time_something_else(script):
    assert script.prompts_of("chat", 1) == script.prompts_of("chat", 1)
    assert script.prompts_of("chat", 1) != script.prompts_of("chat", 2)


def test_each_round_begins_with_another_policy(script):
    orders = [script._rotated(ROUTING, number) for number in range(len(ROUTING))]
    assert {order[0] for order in orders} == set(ROUTING)
    assert all(sorted(order) == sorted(ROUTING) for order in orders)


def test_ratios_are_of_turns_of_one_round(script):
    plain = script.Turn(
        mix="chat",
        policy=LEAST_TOKENS,
        number=0,
        hit_ratio=0.5,
        ttft_p50_ms=100.0,
        ttft_p99_ms=1000.0,
        requests_per_s=4.0,
    )
    slow = replace(plain, number=1, ttft_p50_ms=300.0)
    better = replace(plain, policy="page-aware", hit_ratio=0.75, ttft_p50_ms=50.0)
    unpaired = replace(better, number=7, ttft_p50_ms=1.0)
    turns = [plain, slow, better, replace(better, number=1, ttft_p50_ms=90.0), unpaired]
    row = next(line for line in script.report(turns).splitlines() if "page-aware" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][2:5] == ["2", "0.750", "70 (0.40; 0.30-0.50)"]
