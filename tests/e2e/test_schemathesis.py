"""Requests drawn from the published OpenAPI document: no answer is a 5xx but 503, all are as documented."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from e2e_support import MODEL
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from firelane.bench.server import ServerProcess
from tests.gateway.hostile_fields import GOOD, RUN

EXAMPLES = 16
SECONDS_EACH = 4.0
LIMIT_S = 60.0
KEPT = st.none() | st.lists(st.integers(0, 99), max_size=3)
GREEDY = {"prompt": "def main():", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = ["--data-dir", str(tmp_path_factory.mktemp("data"))]
    with ServerProcess(["--max-num-seqs", "16", "--max-model-len", "256", *data], environ=environ) as server:
        yield server


def check(case: Any, answer: Any) -> None:
    checks = [response_schema_conformance, content_type_conformance]
    if answer.status_code != 503:
        checks.append(not_a_server_error)
    case.validate_response(answer, checks=checks)


def test_document(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=LIMIT_S, trust_env=False) as http:
        before = http.post("/v1/completions", json=GREEDY).json()["choices"]
        schema = schemathesis.openapi.from_dict(http.get("/openapi.json").json())
        for result in schema.get_all_operations():
            run(result.ok(), server.url)
        assert http.post("/v1/completions", json=GREEDY).json()["choices"] == before


def mostly_good(body: dict[str, Any], path: str, keep: list[int]) -> dict[str, Any]:
    """A good request with a few fields of the drawn one, so that not all requests fail on one of many."""
    plain = path.removeprefix("/client/v4/accounts/{account}/ai").removesuffix("/input_tokens")
    good = GOOD.get(RUN if plain == "/run/{model}" else plain, {})
    names = sorted(body)
    return good | {names[i % len(names)]: body[names[i % len(names)]] for i in keep if names}


def run(operation: Any, url: str) -> None:
    """The same requests each time, for at most SECONDS_EACH."""
    deadline_s = time.monotonic() + SECONDS_EACH

    @settings(
        max_examples=EXAMPLES if operation.body else EXAMPLES // 4,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), keep=KEPT if operation.body else st.none())
    def ask(case: Any, keep: list[int] | None) -> None:
        if keep is not None and isinstance(case.body, dict):
            case.body = mostly_good(case.body, operation.path, keep)
            if "model" in case.path_parameters:
                case.path_parameters["model"] = MODEL
        if time.monotonic() < deadline_s:
            check(case, case.call(base_url=url, timeout=LIMIT_S))

    ask()
