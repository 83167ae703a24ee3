"""Copies of adapters in the cache of a server that serves them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firelane.errors import CacheError, RequestError
from firelane.server.adapter_copies import FILES, AdapterCopies


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    for name in FILES:
        (directory / name).write_bytes(name.encode() * 1000)
    return directory


def test_a_copy_stays_what_it_is(adapter: Path, tmp_path: Path) -> None:
    copies = AdapterCopies(tmp_path / "cache")
    one = copies.make(adapter)
    (adapter / FILES[1]).write_bytes(b"other")
    two = copies.make(adapter)
    assert (one / FILES[1]).read_bytes() == FILES[1].encode() * 1000
    assert (two / FILES[1]).read_bytes() == b"other"
    copies.remove(one)
    assert not one.exists()
    assert two.exists()
    copies.remove(adapter)
    assert adapter.exists()


def test_links_of_a_hub_are_followed(adapter: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in FILES:
        (linked / name).symlink_to(adapter / name)
    copy = AdapterCopies(tmp_path / "cache").make(linked)
    assert not any((copy / name).is_symlink() for name in FILES)


def test_what_is_no_file_is_refused(adapter: Path, tmp_path: Path) -> None:
    copies = AdapterCopies(tmp_path / "cache")
    (adapter / FILES[1]).unlink()
    with pytest.raises(RequestError, match="No such file"):
        copies.make(adapter)
    (adapter / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(RequestError, match="may run code"):
        copies.make(adapter)
    os.mkfifo(adapter / FILES[1])
    with pytest.raises(RequestError):
        copies.make(adapter)
    assert not [path for path in (tmp_path / "cache" / "adapters").glob("*/*")]


def test_a_cache_that_others_may_write_to(adapter: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "adapters"
    root.mkdir(parents=True)
    root.chmod(0o777)
    with pytest.raises(CacheError, match="written by everybody"):
        AdapterCopies(tmp_path / "cache").make(adapter)


def test_copies_end_with_their_server(adapter: Path, tmp_path: Path) -> None:
    copies = AdapterCopies(tmp_path / "cache")
    copies.make(adapter)
    del copies
    gc.collect()
    assert list((tmp_path / "cache" / "adapters").iterdir()) == []


def test_those_of_a_killed_server_go_and_others_stay(adapter: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from firelane.server.adapter_copies import AdapterCopies\n"
        "copies = AdapterCopies(Path(sys.argv[1]))\n"
        "copies.make(Path(sys.argv[2]))\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(cache), str(adapter)], check=True)
    (left,) = [path for path in (cache / "adapters").iterdir() if path.is_dir()]
    first = AdapterCopies(cache)
    own = first.make(adapter)
    assert not left.exists()
    second = AdapterCopies(cache)
    second.make(adapter)
    assert own.exists()
