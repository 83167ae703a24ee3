"""A server that is asked in Anthropic's way, and Anthropic's client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from service import PATIENCE_S, Service
from taught_model import taught_service


@pytest.fixture
def taught(make_service: Callable[..., Service], core: Any, tmp_path: Any) -> Service:
    """A model that knows tools and reasoning."""
    return taught_service(make_service, core, tmp_path, "{{ c.function.name }}")


@pytest.fixture
def client() -> Iterator[Callable[..., Any]]:
    """Makes clients of a service."""
    with contextlib.ExitStack() as made:

        def make(service: Service, **changes: Any) -> anthropic.Anthropic:
            fields = {"api_key": "k", "max_retries": 0, "timeout": PATIENCE_S, "base_url": service.url}
            http = anthropic.DefaultHttpxClient(trust_env=False)
            return made.enter_context(anthropic.Anthropic(**{**fields, "http_client": http, **changes}))

        yield make
