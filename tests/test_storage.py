from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from firelane import storage
from firelane.errors import CacheError
from firelane.storage import (
    cache_directory,
    link_whole,
    locked,
    open_regular,
    read_regular,
    remove_leftovers,
    replacing,
    try_lock,
    write_whole,
)

OLD, NEW = b"old" * 1000, b"new" * 5000


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("before", [None, OLD])
def test_a_file_takes_its_place(tmp_path: Path, before: bytes | None, durable: bool) -> None:
    path = tmp_path / "file.json"
    if before is not None:
        path.write_bytes(before)
    write_whole(path, NEW, durable=durable)
    assert path.read_bytes() == NEW
    assert names(tmp_path) == ["file.json"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "whole", b"")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, OLD)
    with contextlib.suppress(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_bytes(NEW)
        raise ZeroDivisionError
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["file"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "file"):
        pass


@pytest.mark.parametrize("durable", [False, True])
def test_bytes_are_synced_before_the_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path, synced = tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, path.exists())))
    write_whole(path, NEW, durable=durable)
    expected = [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    assert synced == (expected if durable else [])


def test_a_drive_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "file"
    write_whole(path, OLD)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        write_whole(path, NEW, durable=True)
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from firelane.storage import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_between_write_and_rename(tmp_path: Path) -> None:
    path, other = tmp_path / "file[1].so", tmp_path / "file[1].so2"
    write_whole(path, OLD)
    for target in (path, path, other):
        done = subprocess.run([sys.executable, "-c", KILLED, str(target)])
        assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == OLD
    assert not other.exists()
    assert len(names(tmp_path)) == 4
    remove_leftovers(path)
    left = names(tmp_path)
    assert len(left) == 2  # of the other file
    assert path.name in left
    assert path.read_bytes() == OLD


def test_concurrent_writers_and_a_reader_that_sees_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([n]) * (10_000 + n) for n in range(6)]
    write_whole(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(50):
            write_whole(path, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


def _count(path: Path, counter: Path) -> None:
    for _ in range(50):
        with locked(path):
            counter.write_text(str(int(counter.read_text()) + 1))


def test_a_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_count, args=(tmp_path / "lock", counter)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert counter.read_text() == "100"


def test_try_lock(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        assert try_lock(first.fileno())
        assert not try_lock(second.fileno())
        first.close()
        assert try_lock(second.fileno())


@pytest.mark.parametrize(("number", "held"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, held: bool
) -> None:
    def flock(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if held:
        with locked(tmp_path / "lock"):
            assert try_lock(0)
    else:
        with pytest.raises(OSError, match="Input/output"), locked(tmp_path / "lock"):
            pass


def test_a_further_name_is_a_link_or_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, link, copy = tmp_path / "source", tmp_path / "link", tmp_path / "copy"
    source.write_bytes(NEW)
    link.write_bytes(OLD)
    link_whole(source, link)
    assert link.samefile(source)

    def refuse(*_: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    link_whole(source, copy)
    assert copy.read_bytes() == NEW
    assert not copy.samefile(source)
    assert names(tmp_path) == ["copy", "link", "source"]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        read_regular(tmp_path / "file", 4)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "absent"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(OSError, match=r"regular file|directory"):
        open_regular(path)


def test_a_cache_directory_is_made(tmp_path: Path) -> None:
    cache_directory(tmp_path / "a" / "b")
    cache_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_cache_directory_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)  # as a volume is mounted into a container
    cache_directory(tmp_path / "kernels")
    (tmp_path / "kernels").chmod(0o777)
    with pytest.raises(CacheError, match="can be written by everybody"):
        cache_directory(tmp_path / "kernels")


@pytest.mark.parametrize(
    ("owner", "me", "refused"), [(0, 1000, False), (1000, 1000, False), (1001, 1000, True)]
)
def test_a_cache_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, me: int, refused: bool
) -> None:
    status = os.stat_result((0o40755, 1, 1, 1, owner, owner, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda _, **__: status)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    refusal = pytest.raises(CacheError, match="belongs to another user")
    with refusal if refused else contextlib.nullcontext():
        cache_directory(tmp_path)


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_whatever_the_umask_others_do_not_write_what_was_replaced(tmp_path: Path) -> None:
    storage.write_whole(tmp_path / "a", b"x")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    with storage.replacing(tmp_path / "b") as temporary:
        temporary.touch(mode=0o775)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o755


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(
    ("rights", "file", "directory"),
    [(storage.WRITTEN_BY_OTHERS, 0o644, 0o755), (storage.USED_BY_OTHERS, 0o600, 0o700)],
)
def test_new_files_are_kept_from_others(tmp_path: Path, rights: int, file: int, directory: int) -> None:
    storage.keep_from_others(rights)
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    assert (tmp_path / "file").stat().st_mode & 0o777 == file
    assert (tmp_path / "directory").stat().st_mode & 0o777 == directory


def test_a_umask_that_keeps_more_stays(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        storage.keep_from_others(storage.WRITTEN_BY_OTHERS)
        (tmp_path / "file").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("mode", "is_read"), [(0o644, True), (0o664, True), (0o646, False), (0o666, False)])
def test_what_everybody_may_write_is_not_read_as_ones_own(tmp_path: Path, mode: int, is_read: bool) -> None:
    path = tmp_path / "kernel"
    path.write_bytes(b"code")
    path.chmod(mode)
    if is_read:
        assert storage.read_own(path, 99) == b"code"
    else:
        with pytest.raises(OSError, match="others may have written it"):
            storage.read_own(path, 99)


def test_what_another_user_owns_is_not_read_as_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernel"
    path.write_bytes(b"code")
    path.chmod(0o600)
    uid = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    if uid == 0:  # what root has written is read by all
        assert storage.read_own(path, 99) == b"code"
        os.chown(path, 4242, -1)
    with pytest.raises(OSError, match="others may have written it"):
        storage.read_own(path, 99)
