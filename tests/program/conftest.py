"""The draws of a test, which are its own: they do not depend on the tests before it."""

from __future__ import annotations

import pytest
from numpy.random import default_rng

from tests.program.test_reference import RNG


@pytest.fixture(autouse=True)
def draws_of_this_test() -> None:
    RNG.bit_generator.state = default_rng(0).bit_generator.state
