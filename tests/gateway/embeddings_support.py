"""Requests for embeddings, and the vectors of their answers."""

from __future__ import annotations

import array

import numpy as np


def embed(service, **fields):
    return service.http.post("/v1/embeddings", json={"input": "hey", **fields})


def vectors(answer) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float64)


def prompts(service) -> list[list[int]]:
    return [array.array("i", request.prompt).tolist() for request in service.engine.submitted]


def unit(*values: float) -> np.ndarray:
    vector = np.array(values)
    return vector / np.linalg.norm(vector)
