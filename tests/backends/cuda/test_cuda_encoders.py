"""Encoders have no CUDA kernels yet: they are refused by name, each family."""

from __future__ import annotations

import pytest

from firelane.backends.cuda.lowering.supported import check_supported
from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_program
from tests.models.toy_encoders import CLASSIFIERS, ENCODERS


@pytest.mark.parametrize("name", [*ENCODERS, *CLASSIFIERS])
def test_encoders_are_refused(name: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match="no CUDA kernels for encoders yet: serve it with --backend cpu"
    ):
        check_supported(load_program((ENCODERS | CLASSIFIERS)[name]()))
