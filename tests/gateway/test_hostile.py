"""Bodies and templates that mean harm. Each file is one; each must give a clear 4xx, quickly, and leave
nothing behind.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from firelane.errors import RequestError, TokenizerError
from firelane.text.template import ChatTemplate

HOSTILE = Path(__file__).parent / "hostile"
BODIES = sorted((HOSTILE / "bodies").iterdir())
TEMPLATES = sorted((HOSTILE / "templates").iterdir())


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_body(service, path):
    for url in ("/v1/completions", "/v1/chat/completions"):
        answer = service.http.post(url, content=path.read_bytes())
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]
        assert len(error["message"]) < 1000
    assert service.gateway.in_flight == 0
    assert service.engine.submitted == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_template(path):
    start_s, start_kib = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((RequestError, TokenizerError)):
        ChatTemplate(path.read_text(), {}).render([{"role": "user", "content": "x"}], {})
    assert time.thread_time() - start_s < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_kib < 512 << 10
