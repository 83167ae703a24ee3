"""The table of hostile requests against a gateway: each has its answer, quickly, and nothing is left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from firelane.gateway.config import HttpLimits
from tests.gateway.hostile_fields import CHAT, GOOD
from tests.gateway.hostile_requests import GROUPS, Case

LONGEST_S = 5.0
"""The longest that a case may take, in seconds of this process' CPU time."""


def complaint(case: Case, answer: httpx.Response, took_s: float) -> str | None:
    """Return what is wrong with an answer, or None."""
    if answer.status_code not in case.right:
        return f"{case.name}: {answer.status_code}, not {sorted(case.right)}: {answer.text[:200]}"
    if took_s > LONGEST_S:
        return f"{case.name}: took {took_s:.1f} s"
    if answer.status_code < 400 or case.method == "HEAD":
        return None
    body: Any = answer.json()
    message = _message(body)
    if not message or "\n" in message or len(message) > 1000:
        return f"{case.name}: {message[:200]!r}"
    return None


def _message(body: Any) -> str:
    """Return the message of an error in any API's form."""
    error = body["errors"][0] if "errors" in body else body["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.fixture
def hostile(make_service: Any, tmp_path: Path) -> Any:
    return make_service(limits=HttpLimits(body_bytes=8 << 20), data_dir=tmp_path, unknown_fields="refuse")


@pytest.mark.parametrize("group", GROUPS)
def test_group(hostile, group):
    service = hostile
    before = service.http.post(CHAT, json=GOOD[CHAT]).json()["choices"]
    wrong: list[str] = []
    for case in GROUPS[group]:
        start_s = time.process_time()
        answer = service.http.request(case.method, case.path, content=case.body, headers=case.headers)
        found = complaint(case, answer, time.process_time() - start_s)
        wrong += [] if found is None else [found]
    assert not wrong, "\n".join(wrong)
    assert service.gateway.in_flight == 0
    assert service.http.post(CHAT, json=GOOD[CHAT]).json()["choices"] == before


def test_there_are_some_hundreds():
    names = [case.name for cases in GROUPS.values() for case in cases]
    assert len(names) > 700
