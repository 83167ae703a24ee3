"""docs/observability.md names every metric that there is, and no other; the Grafana board asks for such."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.server import Gateway

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "observability.md").read_text()
BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
NAME = re.compile(r"\b((?:vllm|firelane):\w+|\b(?:process|http)_\w+_(?:total|bytes|fds|seconds))")
SUFFIXES = {"counter": "_total", "gauge": "", "histogram": ""}


@pytest.fixture(scope="module")
def metrics() -> dict[str, str]:
    """Names as they are scraped, to their kinds."""

    async def render() -> str:
        model = ModelConfig(model_dir=ROOT / "firelane/models/embedded", names=("m",))
        gateway = Gateway(GatewayConfig(models=(model,)), [ReplicaSet()])
        return gateway.services.metrics.registry.render().decode()

    families = text_string_to_metric_families(asyncio.run(render()))
    return {family.name + SUFFIXES[family.type]: family.type for family in families}


@pytest.mark.parametrize("kind", SUFFIXES)
def test_every_metric_is_in_the_table_of_its_kind(metrics, kind):
    table = PAGE.split(f"| {kind} |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(name for name, its in metrics.items() if its == kind)


def test_the_page_names_no_others(metrics):
    assert set(NAME.findall(PAGE)) <= set(metrics)


def test_the_board_asks_for_metrics_that_exist(metrics):
    asked = set(NAME.findall(json.dumps(BOARD["panels"])))
    known = set(metrics) | {f"{name}_bucket" for name, kind in metrics.items() if kind == "histogram"}
    assert asked <= known
    assert len(asked) > 20


def test_the_boards_panels_do_not_overlap():
    seen: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & seen, panel["title"]
        assert place["x"] + place["w"] <= 24
        seen |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
