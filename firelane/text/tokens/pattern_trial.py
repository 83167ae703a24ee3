"""Whether a tokenizer's regular expressions take bounded time: they come with a model, and one that goes back
over a text again and again would hold a server for hours with a short one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import tokenizers

from firelane.errors import TokenizerError

SIZES = (*range(4, 28, 2), 48, 128, 384, 1024)
"""Characters of a trial. They grow slowly, so that what grows fast is found before it takes long."""
MOST_S = 0.03
"""Processor time for one: a search that goes over the rest of the text from each place takes a tenth."""
TRIES = 3
"""Times that a text that took long is tried: a collection of garbage, or a busy machine, delays one of
them."""
USUAL = "aA1 \n.'é中"
"""Characters that are tried beside what the expressions themselves hold."""
MAX_UNITS = 64


def check_patterns(core: tokenizers.Tokenizer) -> None:
    """Raises TokenizerError where a text that repeats one character or word takes too long, or more than the
    library takes.
    """
    for what, step in (("normaliser", core.normalizer), ("pre-tokenizer", core.pre_tokenizer)):
        if step is None:
            continue
        state: Any = step.__getstate__()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        patterns = list(_patterns(json.loads(state)))
        run = step.normalize_str if what == "normaliser" else step.pre_tokenize_str
        if patterns and not _is_quick(run, *_trials(patterns)):
            raise TokenizerError(
                f"the regular expressions of the {what} in tokenizer.json take too long on a short text: "
                "fetch it again"
            )


def _patterns(step: Any) -> Iterator[str]:
    """The regular expressions of a step and those in it."""
    if isinstance(step, dict):
        if isinstance(pattern := step.get("Regex"), str):
            yield pattern
        step = list(step.values())
    if isinstance(step, list):
        for inner in step:
            yield from _patterns(inner)


def _trials(patterns: list[str]) -> tuple[list[str], str]:
    """Texts to repeat, and the end that follows: with all characters of the expressions, so that no search
    ends early for one that is not there."""
    whole = "".join(patterns)
    units = dict.fromkeys([*USUAL, *whole, *re.findall(r"\w{2,8}", whole)])
    return list(units)[:MAX_UNITS], "!\n~" + "".join(dict.fromkeys(whole))


def _is_quick(run: Callable[[str], object], units: list[str], end: str) -> bool:
    texts = (unit * size + end for size in SIZES for unit in units)
    return all(any(_seconds(run, text) <= MOST_S for _ in range(TRIES)) for text in texts)


def _seconds(run: Callable[[str], object], text: str) -> float:
    """Seconds of processor time that `run` takes for a text."""
    began_s = time.thread_time()
    try:
        run(text)
    except BaseException as error:  # the library's own limit, as a panic, which is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return float("inf")
    return time.thread_time() - began_s
