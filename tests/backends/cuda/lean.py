"""Whole models in the interpreter, in a fraction of the time: without what kernel tests have tested
already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from triton.runtime.interpreter import interpreter_builder

from firelane.backends.cuda.kernels import rope
from firelane.backends.cuda.kernels.norms import norm


@contextmanager
def lean() -> Iterator[None]:
    """No check of each integer for overflow, and no work for rows that a step does not have."""
    options = interpreter_builder.options
    with (
        mock.patch.object(interpreter_builder, "options", type(options)(sanitize_overflow=False)),
        mock.patch.object(norm, "EAGER_ROWS", 0),
        mock.patch.object(rope, "EAGER_ROWS", 0),
    ):
        yield
