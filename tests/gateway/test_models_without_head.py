"""A model without a head: the engine's refusal of text reaches the client on every path, streamed or not."""

from __future__ import annotations

import pytest

from firelane.engine.sequences.sequence import NO_HEAD
from tests.gateway.test_constraints_everywhere import BODIES, EVERYWHERE


@EVERYWHERE
@pytest.mark.parametrize("stream", [False, True])
def test_text_is_refused_by_name(service, path, stream):
    service.engine.can_generate = False
    url, body = BODIES[path]
    answer = service.http.post(url, json={**body, "stream": stream})
    assert answer.status_code == 400
    assert NO_HEAD in answer.text


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
def test_embeddings_are_served(service, path):
    service.engine.can_generate = False
    answer = service.http.post(path, json={"model": "toy", "input": "x"})
    assert answer.status_code == 200, answer.text
