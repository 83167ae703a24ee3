"""All tiers hold to one contract; the tier on a drive also leaves files that are not its own, and takes no
damaged ones."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from firelane.kv.tiers import HostTier
from firelane.kv.tiers.disk import MOST_ERRORS
from firelane.kv.tiers.foreign import ForeignSegments
from firelane.kv.tiers.records import HEADER_BYTES, RECORD
from firelane.kv.tiers.segment import TierSegment, kind_directory
from tests.kv.tiers.pages_of_tiers import CIPHERS, KIND, PAGE_BYTES, disk, key, page, put, read

TIERS = {
    "host": lambda _, **sizes: HostTier(sizes.pop("num_slots", 8), PAGE_BYTES, **sizes),
    "disk": disk,
}


@pytest.fixture(params=TIERS)
def open_tier(request, tmp_path):
    opened = []

    def make(**sizes):
        opened.append(TIERS[request.param](tmp_path, **sizes))
        return opened[-1]

    yield make
    for tier in opened:
        tier.close()


def test_a_page_comes_back(open_tier):
    tier = open_tier()
    put(tier, 1)
    assert tier.contains(key(1))
    assert (read(tier, key(1)) == page(1)).all()
    assert not tier.contains(key(2))
    assert read(tier, key(2)) is None
    assert read(tier, key(1, group=1)) is None
    stats = tier.stats()
    assert (stats.pages, stats.read, stats.written) == (1, 1, 1)


def test_a_copy_of_what_was_written_to_meanwhile_is_no_page(open_tier):
    tier = open_tier(num_slots=2)
    put(tier, 1)
    tier.put(key(2), b"a" * 16, page(2), lambda: False)
    assert not tier.contains(key(2))
    assert read(tier, key(2)) is None
    assert (tier.stats().pages, tier.stats().written) == (1, 1)
    tier.index.check_integrity()
    put(tier, 3)
    assert (read(tier, key(1)) == page(1)).all()  # it had a slot of its own
    assert (read(tier, key(3)) == page(3)).all()


def test_the_page_is_asked_for_behind_its_copy(open_tier):
    tier, source = open_tier(), page(1)

    def overwrite():
        source[:] = 0
        return True

    tier.put(key(1), b"a" * 16, source, overwrite)
    assert (read(tier, key(1)) == page(1)).all()


def test_a_full_tier_keeps_what_was_asked_for(open_tier):
    tier = open_tier()
    put(tier, 1)
    tier.touch(key(1))
    put(tier, *range(2, 30))
    assert (read(tier, key(1)) == page(1)).all()
    assert not tier.contains(key(2))
    assert tier.stats()[0] == 8
    assert tier.stats().evicted == 21


def test_a_tenants_pages_are_erased(open_tier):
    tier = open_tier()
    put(tier, 1, 2, tenant=b"a" * 16)
    put(tier, 3, tenant=b"b" * 16)
    assert tier.forget(b"a" * 16) == 2
    assert not tier.contains(key(1))
    assert tier.contains(key(3))
    assert tier.forget(b"a" * 16) == 0


def test_a_tenants_limit(open_tier):
    tier = open_tier(tenant_slots=2)
    put(tier, 1, tenant=b"b" * 16)
    put(tier, 2, 3, 4)
    assert [tier.contains(key(number)) for number in (1, 2, 3, 4)] == [True, False, True, True]


def test_reads_beside_writes_are_whole(open_tier):
    """Slots are given out again all the time; what is read is the page or nothing."""
    tier = open_tier(num_slots=3)
    wrong, done = [], threading.Event()

    def reads():
        while not done.is_set():
            for number in range(6):
                found = read(tier, key(number))
                if found is not None and not (found == page_of[number]).all():
                    wrong.append(number)

    page_of = {number: page(number) for number in range(6)}
    threads = [threading.Thread(target=reads) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(150):
        put(tier, turn * 7 % 6)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    tier.index.check_integrity()


@pytest.mark.parametrize("cipher", CIPHERS)
def test_the_next_engine_has_the_pages(tmp_path, cipher):
    first = disk(tmp_path, cipher=cipher)
    put(first, *range(10))
    first.close()
    second = disk(tmp_path, cipher=cipher)
    second.index.check_integrity()
    assert second.stats().pages == 8
    for number in range(2, 10):
        assert (read(second, key(number)) == page(number)).all()
    put(second, 11)  # the least recently stored makes room
    assert not second.contains(key(2)) or second.contains(key(3))
    second.close()


@pytest.mark.parametrize("num_slots", [3, 12])
def test_another_size_keeps_what_has_room(tmp_path, num_slots):
    first = disk(tmp_path)
    put(first, *range(8))
    first.close()
    second = disk(tmp_path, num_slots=num_slots)
    assert second.stats().pages == min(8, num_slots)
    found = [number for number in range(8) if second.contains(key(number))]
    assert all((read(second, key(number)) == page(number)).all() for number in found)
    second.close()
    pages = next(kind_directory(tmp_path, KIND).glob("*.pages"))
    assert pages.stat().st_size == num_slots * 8192


def test_two_engines_share_what_they_read(tmp_path):
    first, second = disk(tmp_path, engines=2), disk(tmp_path, engines=2)
    put(first, 1)
    put(second, 2)
    second.refresh()
    first.refresh()
    assert (read(second, key(1)) == page(1)).all()
    assert (read(first, key(2)) == page(2)).all()
    put(first, *range(3, 12))  # page 1 made room, which the second one does not know yet
    assert second.contains(key(1))
    assert read(second, key(1)) is None
    second.refresh()
    assert not second.contains(key(1))
    assert (read(second, key(11)) == page(11)).all()
    first.close()
    second.close()


def test_fewer_engines_leave_no_files_behind(tmp_path):
    first, second = disk(tmp_path, engines=2), disk(tmp_path, engines=2)
    first.close()
    second.close()
    assert len(list(kind_directory(tmp_path, KIND).iterdir())) == 4
    disk(tmp_path).close()
    assert len(list(kind_directory(tmp_path, KIND).iterdir())) == 2


@pytest.mark.parametrize(
    "changes",
    [{"identity": "another"}, {"layout_id": "another"}, {"page_bytes": 100}, {"num_groups": 1}],
    ids=lambda changes: next(iter(changes)),
)
def test_pages_of_another_kind_are_not_found(tmp_path, changes):
    first = disk(tmp_path)
    put(first, 1)
    second = disk(tmp_path, KIND._replace(**changes))
    assert second.stats().pages == 0
    first.close()
    second.close()


def files(directory, suffix):
    return next(kind_directory(directory, KIND).glob(f"*{suffix}"))


def change(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_damaged_page_is_computed(tmp_path, caplog):
    first = disk(tmp_path)
    put(first, 1, 2)
    change(files(tmp_path, ".pages"), 100, b"damaged")
    assert read(first, key(1)) is None
    assert not first.contains(key(1))
    assert first.stats().damaged == 1
    assert (read(first, key(2)) == page(2)).all()
    assert "kv_disk_damaged" in caplog.text
    first.close()
    assert disk(tmp_path).stats().pages == 1


def test_pages_that_have_changed_places_are_computed(tmp_path):
    first = disk(tmp_path)
    put(first, 1, 2)
    path = files(tmp_path, ".pages")
    data = path.read_bytes()
    change(path, 0, data[8192:16384])
    assert read(first, key(1)) is None
    first.close()


HOSTILE = {
    "another header": lambda index: change(index, 0, b"something else entirely"),
    "a header of more slots": lambda index: change(index, 100, b"9"),
    "no header": lambda index: index.write_bytes(b""),
    "half a header": lambda index: index.write_bytes(index.read_bytes()[:1000]),
    "random bytes": lambda index: index.write_bytes(np.random.default_rng(1).bytes(9000)),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_an_index_that_is_not_ours_is_made_anew(tmp_path, make):
    first = disk(tmp_path)
    put(first, 1)
    first.close()
    make(files(tmp_path, ".index"))
    second = disk(tmp_path)
    assert second.stats().pages == 0
    put(second, 2)
    assert (read(second, key(2)) == page(2)).all()
    second.close()


def test_records_that_are_not_whole_are_left_out(tmp_path):
    first = disk(tmp_path)
    put(first, *range(4))
    first.close()
    index = files(tmp_path, ".index")
    size = RECORD.itemsize
    records = index.read_bytes()[HEADER_BYTES:]
    change(index, HEADER_BYTES + 20, b"another name")
    change(index, HEADER_BYTES + size, b"\xff" * size)
    change(index, HEADER_BYTES + 2 * size, records[3 * size : 4 * size])  # of another slot
    second = disk(tmp_path)
    assert second.stats().pages == 1
    assert (read(second, key(3)) == page(3)).all()
    second.close()


def test_a_page_file_that_is_too_short(tmp_path):
    first = disk(tmp_path)
    put(first, *range(4))
    first.close()
    os.truncate(files(tmp_path, ".pages"), 5000)
    second = disk(tmp_path)
    assert all(read(second, key(number)) is None for number in range(1, 4))
    second.close()


@pytest.mark.parametrize("suffix", [".index", ".pages"])
def test_links_are_not_followed(tmp_path, suffix):
    disk(tmp_path).close()
    path, target = files(tmp_path, suffix), tmp_path / "of others"
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(OSError):
        disk(tmp_path)


@pytest.mark.parametrize("suffix", [".index", ".pages"])
def test_a_file_with_a_second_name_is_not_written_to(tmp_path, suffix):
    first = disk(tmp_path)
    put(first, *range(4))
    first.close()
    path, other = files(tmp_path, suffix), tmp_path / "of others"
    os.link(path, other)
    before = other.read_bytes()
    with pytest.raises(OSError, match="second name"):
        disk(tmp_path)
    assert other.read_bytes() == before
    other.unlink()
    second = disk(tmp_path)
    assert read(second, key(1)) is not None
    second.close()


class FailingSegment(TierSegment):
    """A drive that fails from some moment on."""

    error: int = 0

    def read(self, slot, into):
        self._fail()
        super().read(slot, into)

    def write(self, slot, page):
        self._fail()
        super().write(slot, page)

    def _fail(self):
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failing_drive_is_left_alone(tmp_path, monkeypatch, caplog, error):
    monkeypatch.setattr("firelane.kv.tiers.segment.TierSegment", FailingSegment)
    tier = disk(tmp_path)
    put(tier, 1, 2)
    monkeypatch.setattr(FailingSegment, "error", error)
    put(tier, *range(3, 3 + MOST_ERRORS))
    assert not tier.contains(key(1))
    put(tier, 9)
    assert read(tier, key(1)) is None
    tier.index.check_integrity()
    assert caplog.text.count("kv_disk_failed") == 1
    assert os.strerror(error) in caplog.text
    tier.close()
    monkeypatch.setattr(FailingSegment, "error", 0)
    again = disk(tmp_path)
    assert (read(again, key(2)) == page(2)).all()
    again.close()


def test_a_page_that_cannot_be_read_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("firelane.kv.tiers.segment.TierSegment", FailingSegment)
    tier = disk(tmp_path)
    put(tier, 1, 2)
    monkeypatch.setattr(FailingSegment, "error", errno.EIO)
    assert read(tier, key(1)) is None
    monkeypatch.setattr(FailingSegment, "error", 0)
    assert (read(tier, key(2)) == page(2)).all()
    tier.close()


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        disk(Path(tmp_path / "file"))


def test_others_that_come_and_go_are_found(tmp_path):
    first = disk(tmp_path, engines=2)
    others = ForeignSegments(tmp_path, KIND, first._segment)
    second = disk(tmp_path, engines=2)
    put(second, 1)
    others.refresh()
    assert key(1) in others
    others.close()
    second.close()
    first.close()


def test_others_files_that_have_got_shorter_are_no_fault_of_the_drive(tmp_path):
    first = disk(tmp_path, engines=2)
    put(first, *range(1, 1 + MOST_ERRORS))
    second = disk(tmp_path, engines=2)
    put(second, 9)
    os.truncate(first._segment.stem.with_suffix(".pages"), 0)
    for number in range(1, 1 + MOST_ERRORS):
        assert read(second, key(number)) is None
    assert (read(second, key(9)) == page(9)).all()
    first.close()
    second.close()
