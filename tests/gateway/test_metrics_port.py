"""The second port: metrics and health alone, for those who have no key; and what is counted of requests."""

from __future__ import annotations

import errno
from pathlib import Path

import httpx
from service import PATIENCE_S

from firelane.gateway.http.listener import listen_error
from firelane.gateway.tenants.keyfile import hashed


def fetch(service, path: str) -> httpx.Response:
    return httpx.get(
        f"http://127.0.0.1:{service.gateway.metrics.port}{path}", timeout=PATIENCE_S, trust_env=False
    )


def test_it_needs_no_key_and_has_no_more(make_service, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenants.acme]\nkeys = ["{hashed("fl-acme-0123456789abcdef")}"]\n')
    service = make_service(metrics_port=0, api_keys=keys)
    assert service.http.get("/metrics").status_code == 401
    assert "vllm:num_requests_running" in fetch(service, "/metrics").text
    assert fetch(service, "/health").json() == {"status": "ready"}
    for path in ("/v1/models", "/stats", "/"):
        assert fetch(service, path).status_code == 404


def test_a_port_that_is_taken_is_told_by_its_option() -> None:
    taken = OSError(errno.EADDRINUSE, "address already in use")
    assert "choose another --metrics-port" in str(listen_error(taken, "127.0.0.1", 1, "--metrics-port"))


def test_what_boards_of_others_ask(service) -> None:
    for body in ({"prompt": "say"}, {"prompt": 5}):
        service.http.post("/v1/completions", json=body)
    service.http.get("/nowhere")
    page = service.http.get("/metrics").text
    for line in (
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0',
        'http_requests_total{handler="none",method="GET",status="4xx"} 1.0',
        'vllm:request_max_num_generation_tokens_count{model_name="toy"} 1.0',
        'vllm:prompt_tokens_cached_total{model_name="toy"} 0.0',
        'vllm:cache_config_info{block_size="16",',
    ):
        assert line in page, line
    assert "\nprocess_resident_memory_bytes " in page
    assert "vllm:iteration_tokens_total_bucket" in page
