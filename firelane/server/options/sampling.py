"""Sampling options, the same for each command that generates text, and for /set in a conversation."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from firelane.errors import FirelaneError
from firelane.server.options.shared import real, whole

NUMBERS: dict[str, tuple[Callable[[str], float], str, str]] = {
    "max_tokens": (whole(1), "N", "the longest answer"),
    "temperature": (real(0, 5), "T", "0 takes the likeliest token, more makes unlikely ones likelier"),
    "top_p": (real(0, 1), "P", "share of the probability that may be drawn; 1 is all"),
    "top_k": (whole(-1), "K", "how many tokens may be drawn; 0 is all"),
    "min_p": (real(0, 1), "P", "a token needs this part of the likeliest one's probability; 0 is off"),
    "repetition_penalty": (real(0.01, 10), "X", "above 1, tokens that were there already are less likely"),
    "presence_penalty": (real(-2, 2), "X", "taken from tokens that the answer has"),
    "frequency_penalty": (real(-2, 2), "X", "the same, for each time that it has them"),
    "seed": (whole(-(2**63), 2**63 - 1), "N", "same seed, same text (default: a new one)"),
}
"""By the names of SamplingParams: what reads the value, its name in the help, what it does."""


def add_sampling(parser: argparse.ArgumentParser, *, max_tokens: int | None) -> None:
    """max_tokens: the default, None: what the context has room for."""
    group = parser.add_argument_group(
        "sampling",
        "without these: as the model's author advises, else as llama.cpp does (see `firelane show`)",
    )
    for name, (kind, metavar, text) in NUMBERS.items():
        is_limit = name == "max_tokens"
        default = max_tokens if is_limit else None
        ends = " (default: %(default)s)" if default else " (default: the context's end)" if is_limit else ""
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, default=default, metavar=metavar, help=text + ends)
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before it; may be repeated")


def given_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Values of SamplingParams that the options of `add_sampling` give."""
    given = {name: getattr(arguments, name) for name in (*NUMBERS, "stop")}
    return {name: value for name, value in given.items() if value is not None}


def setting(name: str, text: str) -> float:
    """The value of one of NUMBERS. Raises FirelaneError."""
    if name not in NUMBERS:
        raise FirelaneError(f"there is no setting {name!r}: use one of {', '.join(NUMBERS)}")
    try:
        return NUMBERS[name][0](text)
    except argparse.ArgumentTypeError as error:
        raise FirelaneError(f"{name}: {error}: give a number") from None
