"""An engine that is stepped by hand, on a model whose tokens depend on every token before them."""

from __future__ import annotations

import contextlib

import pytest

from tests.engine.chain_model import embedded, expected
from tests.engine.driver import Driver, make_request


@contextlib.contextmanager
def small_tiles(tokens: int):
    """Kernels as if they read so many positions at once, so that short sequences release pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firelane.contract.span.KEY_TILE", tokens)
        patch.setattr("firelane.contract.limits.KEY_TILE", tokens)
        yield


@pytest.fixture(scope="session")
def driver():
    return Driver


@pytest.fixture(scope="session")
def request_of():
    return make_request


@pytest.fixture(scope="session")
def alone():
    return expected


@pytest.fixture(scope="session")
def embedding_of():
    return embedded


@pytest.fixture(scope="session")
def tiles():
    return small_tiles
