"""Trial renders of an earlier start, in place of a process. What cannot be used of them is asked again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from firelane.errors import RequestError
from firelane.text.rendering import kept_trials
from firelane.text.rendering.template_process import TemplateRenderer, encoded
from firelane.text.template_limits import TOO_MUCH_WORK

SOURCE = "{% if shout %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}{{ mark }}"
HELLO = [{"role": "user", "content": "hello"}]


@contextlib.contextmanager
def renderer(directory: Path, source: str = SOURCE, mark: str = "!") -> Iterator[TemplateRenderer]:
    with contextlib.closing(TemplateRenderer(source, {"mark": mark}, trials_dir=directory)) as made:
        yield made


def has_process(template: TemplateRenderer) -> bool:
    return template._quick.worker.child is not None


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with what one start has left."""
    with renderer(tmp_path / "trials") as template:
        assert has_process(template)
        assert template.trial(HELLO, {}) == "hello!"
        with pytest.raises(RequestError):
            template.trial(HELLO, {"shout": True})
        template.keep_trials()
    return tmp_path / "trials"


def test_a_later_start_asks_no_process(directory: Path) -> None:
    with renderer(directory) as template:
        assert template.trial(HELLO, {}) == "hello!"
        with pytest.raises(RequestError):
            template.trial(HELLO, {"shout": True})
        assert template.variables >= {"messages", "shout"}
        assert not has_process(template)


def test_what_no_start_has_asked_is_asked_and_kept(directory: Path) -> None:
    other = [{"role": "user", "content": "bye"}]
    with renderer(directory) as template:
        assert template.trial(other, {}) == "bye!"
        assert has_process(template)
        template.keep_trials()
    with renderer(directory) as template:
        assert template.trial(other, {}) == "bye!"
        assert template.trial(HELLO, {}) == "hello!"
        assert not has_process(template)


def test_the_process_comes_with_the_first_conversation_or_before_it(directory: Path) -> None:
    with renderer(directory) as template:
        asyncio.run(template.start())
        assert has_process(template)
    with renderer(directory) as template:
        assert template.render_blocking(encoded(HELLO, {})) == "hello!"


@pytest.mark.parametrize(("source", "mark"), [(SOURCE + " ", "!"), (SOURCE, "?")])
def test_another_template_has_trials_of_its_own(directory: Path, source: str, mark: str) -> None:
    with renderer(directory, source, mark) as template:
        assert has_process(template)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"variables": 1, "answers": {}}'])
def test_a_damaged_file_is_as_none(directory: Path, content: bytes) -> None:
    (file,) = directory.iterdir()
    file.write_bytes(content)
    with renderer(directory) as template:
        assert has_process(template)
        assert template.trial(HELLO, {}) == "hello!"


def test_a_file_that_others_may_write_is_not_used(directory: Path) -> None:
    (file,) = directory.iterdir()
    file.chmod(0o666)
    with renderer(directory) as template:
        assert has_process(template)


def test_a_template_that_took_too_much_is_asked_again(tmp_path: Path) -> None:
    def overruns() -> str:
        raise RequestError(TOO_MUCH_WORK)

    trials = kept_trials.KeptTrials(tmp_path, "x", {})
    with pytest.raises(RequestError):
        trials.answer(b"request", overruns)
    assert trials.answer(b"request", lambda: "text") == "text"
