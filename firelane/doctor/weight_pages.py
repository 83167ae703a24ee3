"""Memory pages that packed weights get on this machine, tried with a small file in the cache directory."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from firelane.native.pages import HUGE_PAGE_BYTES, MappedFile, PageCacheFile, private_huge_pages


def examine_weight_pages(cache_dir: Path) -> str:
    """Whether they are huge, and by what means."""
    if sys.platform != "linux":
        return "pages as the system gives them"
    if mapped_files_are_huge(existing_parent(cache_dir)):
        return "huge pages, shared by replicas"
    if private_huge_pages():
        return "huge pages by private copies (weights_pages): files in the cache directory have small ones"
    return (
        "small pages, and decoding waits for them: write madvise to "
        "/sys/kernel/mm/transparent_hugepage/enabled"
    )


def mapped_files_are_huge(directory: Path) -> bool:
    """Whether files written there as packed weights are get huge pages in the page cache."""
    size = 2 * HUGE_PAGE_BYTES
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(size)
            PageCacheFile(file.fileno()).prepare(0, size)
            file.write(bytes(size))
            file.flush()
            mapped = MappedFile(file.fileno(), size)
            mapped.populate(0, size)
    except OSError:
        return False
    share = mapped.huge_share(0, size)
    mapped.close()
    return share > 0


def existing_parent(directory: Path) -> Path:
    """The directory, or the first one above it that is there."""
    return next(path for path in (directory, *directory.parents) if path.exists())
