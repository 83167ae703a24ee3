"""The order in which weights are moved to huge pages, and what ends it. The mapped file is a fake one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from firelane.native.pages import HUGE_PAGE_BYTES
from firelane.weights.storage.huge_pages import CHUNK_BYTES, HugePages

NBYTES = 3 * CHUNK_BYTES - 5000


@dataclass
class File:
    """`able`: what the kernel can do. Records the chunks of each step."""

    able: tuple[str, ...]
    nbytes: int = NBYTES
    huge: set[int] = field(default_factory=set[int])
    steps: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])

    def populate(self, start: int, nbytes: int) -> None:
        self._step("populate", start, nbytes)

    def collapse(self, start: int, nbytes: int) -> None:
        self._step("collapse", start, nbytes)
        if "collapse" not in self.able:
            raise OSError(22, "Invalid argument")

    def copy(self, start: int, nbytes: int) -> None:
        self._step("copy", start, nbytes)

    def let_go(self) -> bool:
        """Copies alone are lost."""
        self._step("let_go", 0, self.nbytes)
        had_copies = "copy" in self.able and bool(self.huge)
        if had_copies:
            self.huge.clear()
        return had_copies

    def huge_share(self, start: int, nbytes: int) -> float:
        chunks = range(start // CHUNK_BYTES, -(-(start + nbytes) // CHUNK_BYTES))
        return len(self.huge.intersection(chunks)) / len(chunks)

    def _step(self, name: str, start: int, nbytes: int) -> None:
        self.steps.append((name, start, nbytes))
        if name in self.able:
            self.huge.add(start // CHUNK_BYTES)

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.steps]


def move(file: File, spare: int = 1 << 40) -> float:
    return HugePages(file, spare=lambda: spare).move()


def test_a_file_system_with_huge_pages() -> None:
    file = File(able=("populate",))
    assert move(file) == 1
    assert file.steps == [
        ("populate", 0, CHUNK_BYTES),
        ("populate", CHUNK_BYTES, CHUNK_BYTES),
        ("populate", 2 * CHUNK_BYTES, CHUNK_BYTES - 5000),
    ]


def test_a_kernel_that_gathers_pages_in_place() -> None:
    file = File(able=("collapse",))
    assert move(file) == 1
    assert file.names == ["populate"] * 3 + ["collapse"] * 3


def test_copies_where_the_kernel_can_do_nothing_in_place() -> None:
    file = File(able=("copy",))
    assert move(file) == 1
    assert file.names == ["populate"] * 3 + ["collapse"] + ["copy"] * 3


def test_no_copies_without_memory() -> None:
    file = File(able=("copy",))
    assert move(file, spare=NBYTES - 1) == 0
    assert "copy" not in file.names


def test_copies_end_when_memory_does() -> None:
    file, spares = File(able=("copy",)), iter([NBYTES, NBYTES, CHUNK_BYTES - 5001])
    assert HugePages(file, spare=lambda: next(spares)).move() == pytest.approx(2 / 3)
    assert file.names.count("copy") == 2


def test_one_copy_where_it_gets_no_huge_pages() -> None:
    file = File(able=())
    assert move(file) == 0
    assert file.names.count("copy") == 1


def test_few_weights_have_no_huge_pages() -> None:
    assert HUGE_PAGE_BYTES <= CHUNK_BYTES
    file = File(able=("populate",), nbytes=100)
    assert move(file) == 1
    assert file.steps == [("populate", 0, 100)]


@pytest.mark.parametrize(("able", "asked", "told"), [((), True, 1), (("copy",), True, 0), ((), False, 0)])
def test_who_asked_is_told(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    able: tuple[str, ...],
    asked: bool,
    told: int,
) -> None:
    monkeypatch.setattr(logging.getLogger("firelane"), "propagate", True)
    HugePages(File(able=able), spare=lambda: 1 << 40, asked=asked).move()
    # A record counts once, whichever loggers hand it on.
    told_lines = {id(record) for record in caplog.records if record.levelno == logging.WARNING}
    assert len(told_lines) == told
    assert all(line.startswith("weights_pages = huge: only 0% of the weights") for line in caplog.messages)


@pytest.mark.parametrize("after", range(7))
def test_it_is_stopped_at_any_time(after: int) -> None:
    file = File(able=("copy",))
    HugePages(file, spare=lambda: 1 << 40).move(lambda: len(file.steps) >= after)
    assert len(file.steps) == after


def test_what_was_let_go_is_not_moved_before_it_is_taken_back() -> None:
    file = File(able=("copy",))
    pages = HugePages(file, spare=lambda: 1 << 40)
    assert pages.move() == 1
    pages.let_go()
    assert (file.names[-1], file.huge) == ("let_go", set())
    assert pages.move() == 0
    assert file.names[-1] == "let_go"
    assert pages.take_back()
    assert pages.move() == 1


def test_without_copies_nothing_has_to_move_again() -> None:
    file = File(able=("collapse",))
    pages = HugePages(file, spare=lambda: 0)
    pages.move()
    pages.let_go()
    assert not pages.take_back()
