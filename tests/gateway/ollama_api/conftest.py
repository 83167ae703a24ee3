"""A server that is asked in Ollama's way, and Ollama's client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ollama
import pytest
from service import PATIENCE_S, Service
from taught_model import taught_service


@pytest.fixture
def taught(make_service: Callable[..., Service], core: Any, tmp_path: Any) -> Service:
    """A model that knows tools and reasoning."""
    return taught_service(make_service, core, tmp_path, "{{ c.id }}")


@pytest.fixture
def client() -> Iterator[Callable[..., Any]]:
    """Makes clients of a service."""
    with contextlib.ExitStack() as made:

        def make(service: Service) -> ollama.Client:
            return made.enter_context(ollama.Client(host=service.url, timeout=PATIENCE_S, trust_env=False))

        yield make
