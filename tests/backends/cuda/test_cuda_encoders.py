"""Encoders have no CUDA kernels yet: they are refused by name, each family."""

from __future__ import annotations

import pytest

from firelane.backends.cuda.lowering.supported import check_supported
from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_program
from firelane.program.images import ImageRows, with_images
from firelane.program.ops import Rotary
from tests.models.families import FAMILIES
from tests.models.toy_encoders import CLASSIFIERS, ENCODERS


@pytest.mark.parametrize("name", [*ENCODERS, *CLASSIFIERS])
def test_encoders_are_refused(name: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match="no CUDA kernels for encoders yet: serve it with --backend cpu"
    ):
        check_supported(load_program((ENCODERS | CLASSIFIERS)[name]()))


def test_rows_of_images_are_refused() -> None:
    plain = load_program(FAMILIES["qwen3"]())
    width = plain.streams[0].width
    half = next(len(t.inverse_frequencies) for t in plain.position_tables if isinstance(t, Rotary))
    program = with_images(plain, ImageRows(width=width, deep=1, axes=(0,) * half))
    with pytest.raises(UnsupportedModelError, match="no CUDA kernels for rows of images yet"):
        check_supported(program)
