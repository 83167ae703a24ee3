"""A real Prometheus scrapes the second port and answers what boards ask: ours, and vLLM's published ones."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_support import RawRequest, wait_until

from firelane.bench.server import ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus")
BOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana.json").read_text())
VARIABLE = re.compile(r"\$\{?\w+\}?")
MODEL = '{model_name="firelane-embedded"}'
QUANTILES = (
    *("e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
    *("iteration_tokens_total", "request_time_per_output_token_seconds", "request_params_max_tokens"),
)
RATES = (
    *("prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum"),
    *("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum", "request_success_total"),
    *("request_inference_time_seconds_sum", "prompt_tokens_cached_total", "num_preemptions_total"),
)
OF_VLLM = [
    *(f"histogram_quantile(0.99, sum by(le) (vllm:{name}_bucket{MODEL}))" for name in QUANTILES),
    *(f"sum by(le) (vllm:{name}_bucket{MODEL})" for name in QUANTILES),
    *(f"rate(vllm:{name}{MODEL}[10s])" for name in RATES),
    f"vllm:num_requests_running{MODEL}",
    f"vllm:num_requests_waiting{MODEL}",
    f"vllm:kv_cache_usage_perc{MODEL}",
    f"sum by(finished_reason) (vllm:request_success_total{MODEL})",
    f"vllm:cache_config_info{MODEL}",
    "vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total",
    'sum by(handler) (http_requests_total{status="2xx", method="POST"})',
    "process_resident_memory_bytes",
    "rate(process_cpu_seconds_total[10s])",
]
"""Queries that vLLM's boards ask of these names, in other words."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Prometheus:
    def __init__(self, target: int, directory: Path) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1/query?query="
        config = directory / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n"
            f'  - {{job_name: firelane, static_configs: [{{targets: ["127.0.0.1:{target}"]}}]}}\n'
        )
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, query: str) -> list[Any]:
        """The series; [] as long as it does not serve."""
        try:
            with urllib.request.urlopen(self._url + urllib.parse.quote(query), timeout=60) as answer:
                return json.loads(answer.read())["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code != 503:  # it says so while it starts
                pytest.fail(f"{query}: {error.read().decode()}")
            return []
        except urllib.error.URLError:
            return []

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    port = free_port()
    with ServerProcess(["--backend", "null", "--metrics-port", str(port)]) as server:
        scraper = Prometheus(port, tmp_path_factory.mktemp("prometheus"))
        try:
            for _ in range(3):
                assert RawRequest(server.url).result()[0] == 200
            wait_until(lambda: len(scraper.ask("vllm:generation_tokens_total > 0")) == 1)
            wait_until(lambda: len(scraper.ask("rate(vllm:generation_tokens_total[10s])")) == 1)
            yield scraper
        finally:
            scraper.close()


@pytest.mark.parametrize("query", OF_VLLM)
def test_what_boards_of_vllm_ask(prometheus: Prometheus, query: str) -> None:
    wait_until(lambda: prometheus.ask(query) != [])  # a scrape that came too late makes all series stale


def test_every_panel_of_our_board(prometheus: Prometheus) -> None:
    queries = [t["expr"] for panel in BOARD["panels"] for t in panel.get("targets", ())]
    assert len(queries) > 20
    for query in queries:
        prometheus.ask(VARIABLE.sub(".*", query.replace("$__rate_interval", "10s")))


def test_the_second_port_has_no_more_than_that(prometheus: Prometheus) -> None:
    wait_until(lambda: prometheus.ask('up{job="firelane"} == 1') != [])
