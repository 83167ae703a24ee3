"""Trial renders of a chat template, kept in the cache directory: the next start starts no process to render
them again."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import firelane
from firelane.errors import CacheError, RequestError
from firelane.storage import cache_directory, read_own, write_whole
from firelane.text.template_limits import TOO_MUCH_WORK

MOST_BYTES = 4 << 20
KEY_BYTES = 16


class _Trials(msgspec.Struct):
    """variables: what the template asks for. answers: by the hash of a request what was written, None where
    the template refused it."""

    variables: list[str]
    answers: dict[str, str | None]


class KeptTrials:
    """The trial renders of one template. They are those of an earlier start, or this one's, which `keep`
    leaves to the next."""

    def __init__(self, directory: Path | None, source: str, constants: dict[str, str]) -> None:
        """directory: where they are kept; None: nowhere."""
        self._path = None if directory is None else directory / f"{_key(source, constants)}.json"
        self._found = None if self._path is None else _read(self._path)
        self._trials = self._found or _Trials([], {})
        self._is_new = False

    @property
    def variables(self) -> frozenset[str] | None:
        """Variables that the template asks for; None where no earlier start has told."""
        return None if self._found is None else frozenset(self._found.variables)

    def answer(self, request: bytes | bytearray, render: Callable[[], str]) -> str:
        """The text that the template writes. Raises RequestError where it refuses, or `render` fails."""
        key, answers = _hash(request), self._trials.answers
        if key not in answers:
            answers[key] = _written(render)
            self._is_new = True
        text = answers[key]
        if text is None:
            raise RequestError("the template refuses this conversation", param="messages")
        return text

    def keep(self, variables: frozenset[str]) -> None:
        """Leave them to the next start, where it has use for them."""
        if self._path is None or not self._is_new:
            return
        self._is_new = False
        self._trials.variables = sorted(variables)
        with contextlib.suppress(OSError, CacheError):  # they are rendered again then
            cache_directory(self._path.parent)
            write_whole(self._path, msgspec.json.encode(self._trials))


def _written(render: Callable[[], str]) -> str | None:
    """None where the template refuses. One that takes too much time may not do so at the next start."""
    try:
        return render()
    except RequestError as error:
        if str(error) == TOO_MUCH_WORK:
            raise
        return None


def _read(path: Path) -> _Trials | None:
    """None where there is no such file, or nothing that can be used."""
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        return msgspec.json.decode(read_own(path, MOST_BYTES), type=_Trials)
    return None


def _key(source: str, constants: dict[str, str]) -> str:
    """A name for all that decides what is written: the template, and the programs that render it."""
    jinja = importlib.util.find_spec("jinja2")
    changed = 0 if jinja is None or jinja.origin is None else Path(jinja.origin).stat().st_mtime_ns
    return _hash(
        repr((firelane.__version__, sys.version, changed, source, sorted(constants.items()))).encode()
    )


def _hash(content: bytes | bytearray) -> str:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).hexdigest()
