"""Requests for completions of the scripted engine."""

from __future__ import annotations

import array


def completion(service, **fields):
    answer = service.http.post("/v1/completions", json={"prompt": "say", "max_tokens": 40, **fields})
    return answer.json()


def prompt_of(request) -> list[int]:
    return array.array("i", request.prompt).tolist()
