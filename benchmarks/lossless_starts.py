"""Cold starts: from the start of the process to the first token, with nothing in the page cache.

Two cases, in turns. "first load": the weight cache is empty, so that weights are read, packed and cached;
kernels are compiled and the choice of forms is cached, as a fleet ships those with the program. "later load":
the cached form lies on the drive.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lossless_figures import Conditions, Starts, rotated

from firelane import env
from firelane.weights.storage.files import weight_files

DROP = Path("/proc/sys/vm/drop_caches")
FIRST, LATER = "first load", "later load"
WEIGHTS = "weights"  # the weights' folder in the cache directory
READ_BYTES = 1 << 30
PIECE_BYTES = 4 << 20
READERS = 4


@dataclass(frozen=True)
class Variant:
    """A directory to start from, and --weights."""

    name: str
    model_dir: Path
    weights: str


def measure_starts(variants: Sequence[Variant], scratch: Path, *, rounds: int) -> Starts:
    """`scratch`: a folder on the drive where the models lie; gets the cache directory of each variant."""
    caches = {v.name: scratch / f"cache-{i}" for i, v in enumerate(variants)}
    for variant in variants:
        _seed(caches[variant.name])
        _say(f"{variant.name}: warm-up {first_token_s(variant, caches[variant.name]):.1f} s")
    seconds: dict[str, dict[str, list[float]]] = {c: {v.name: [] for v in variants} for c in (LATER, FIRST)}
    read_bytes = {
        LATER: {v.name: folder_bytes(caches[v.name] / WEIGHTS) for v in variants},
        FIRST: {v.name: sum(p.stat().st_size for p in weight_files(v.model_dir)) for v in variants},
    }
    limits, dropped = [], ""
    for case, by_variant in seconds.items():
        for turn in range(rounds):
            for variant in rotated(variants, turn):
                cache = caches[variant.name]
                if case == FIRST:
                    shutil.rmtree(cache / WEIGHTS, ignore_errors=True)
                dropped = drop_page_cache([variant.model_dir, cache])
                by_variant[variant.name].append(first_token_s(variant, cache))
                _say(f"{case}, {variant.name}: {by_variant[variant.name][-1]:.2f} s")
            limits.append(drive_gbps(largest_file(variants[0].model_dir)))
    return Starts(
        conditions=Conditions.now(),
        dropped=dropped,
        drive_gbps=limits,
        read_bytes=read_bytes,
        seconds=seconds,
    )


def first_token_s(variant: Variant, cache_dir: Path) -> float:
    """Seconds from the start of `firelane generate` to the first byte that it prints."""
    words = ["--prompt", "def main():", "--max-tokens", "1", "--temperature", "0"]
    command = [sys.executable, "-m", "firelane", "generate", str(variant.model_dir), *words]
    with tempfile.TemporaryFile() as log:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--weights", variant.weights],
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env.for_child(FIRELANE_CACHE_DIR=str(cache_dir)),
        )
        assert process.stdout is not None
        said = process.stdout.read(1)
        elapsed_s = time.perf_counter() - began_s
        process.communicate()
        if process.returncode or not said:
            log.seek(0)
            raise SystemExit(f"{variant.name}: {log.read().decode(errors='replace').strip()[-500:]}")
    return elapsed_s


def drop_page_cache(folders: Sequence[Path]) -> str:
    """Returns how: all of it where this process may, else that of the files in `folders`."""
    os.sync()  # pages that wait to be written stay otherwise
    try:
        DROP.write_text("1")
    except OSError:
        for path in (p for folder in folders for p in folder.rglob("*") if p.is_file()):
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        return "of the model's and the cache's files (posix_fadvise)"
    return "all of it (drop_caches)"


def drive_gbps(path: Path) -> float:
    """The drive's speed: direct reads by one reader and by several at once, whichever is faster."""
    size = min(path.stat().st_size, READ_BYTES)
    pieces = range(0, size - PIECE_BYTES + 1, PIECE_BYTES)
    if not pieces:
        return float("nan")
    return max(len(pieces) * PIECE_BYTES / _read_s(path, pieces, n) for n in (1, READERS)) / 1e9


def _read_s(path: Path, pieces: range, readers: int) -> float:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(first: int) -> None:
        buffer = mmap.mmap(-1, PIECE_BYTES)  # aligned to a page, as direct reads need
        for offset in pieces[first::readers]:
            os.preadv(fd, [buffer], offset)

    try:
        began_s = time.perf_counter()
        with ThreadPoolExecutor(readers) as pool:
            list(pool.map(read, range(readers)))
        return time.perf_counter() - began_s
    finally:
        os.close(fd)


def largest_file(folder: Path) -> Path:
    return max(weight_files(folder), key=lambda p: p.stat().st_size)


def folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _seed(cache_dir: Path) -> None:
    """All that the user's cache holds but weights: kernels, measurements."""
    source = env.read().cache_dir
    if source.exists():
        shutil.copytree(source, cache_dir, ignore=shutil.ignore_patterns(WEIGHTS, "*.tmp", "*.log"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
