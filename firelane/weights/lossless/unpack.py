"""unpack: a packed directory to the directory that it was made from, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from firelane.errors import UsageError
from firelane.storage import read_regular
from firelane.weights.lossless.manifest import FileIdentity, Manifest, read_pieces
from firelane.weights.lossless.marks import CONFIG
from firelane.weights.lossless.original import original_bytes
from firelane.weights.lossless.output import OutputDirectory
from firelane.weights.lossless.verify import WEIGHTS_SUFFIX, check_identity, open_packed, open_packed_file
from firelane.weights.progress import Progress, silent

MARKER = "firelane_unpack.unfinished"


def unpack(packed: Path, out: Path, *, threads: int, progress: Progress = silent) -> int:
    """Write the original files of `packed` into `out`, a directory that is new, empty, or was left unfinished
    by the same call; returns their bytes. Every file is checked against the manifest.

    Raises UsageError when both are the same, CheckpointError for a damaged or plain directory, OutputError
    when `out` is not usable or the disk is full.
    """
    if out.resolve() == packed.resolve():
        raise UsageError(f"{out}: is the packed model itself; give another directory to unpack it into")
    manifest = open_packed(packed)
    total = sum(f.nbytes for f in manifest.files.values())
    task = {"unpack": {name: f.xxh3_128 for name, f in manifest.files.items()}}
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("unpack", done, total, "B")

    directory = OutputDirectory(out, marker=MARKER, task=task, is_whole=lambda: _is_whole(out, manifest))
    with directory:
        for name, identity in manifest.files.items():
            if identity.matches(out / name):
                advance(identity.nbytes)
            else:
                _restore(packed / name, identity, directory, advance, threads=threads)
        directory.write(CONFIG, manifest.config.encode())
    return total


def _restore(
    path: Path,
    identity: FileIdentity,
    directory: OutputDirectory,
    advance: Callable[[int], None],
    *,
    threads: int,
) -> None:
    """Write one original file; it gets its name only when it is the file that was packed."""
    if path.name.endswith(WEIGHTS_SUFFIX):
        pieces = original_bytes(open_packed_file(path, identity), threads=threads)
    else:
        pieces = read_pieces(path)
    with directory.writing(path.name) as file:
        file.reserve(identity.nbytes)

        def write(piece: Any) -> None:
            file.write(piece)
            advance(len(piece))

        found = FileIdentity.of_pieces(pieces, write)
        file.finish(found.nbytes)
        check_identity(path, found, identity)


def _is_whole(out: Path, manifest: Manifest) -> bool:
    """Whether `out` is what a finished run leaves: the very config, and all files, whose content is checked
    later.
    """
    config = out / CONFIG
    return (
        config.is_file()
        and read_regular(config) == manifest.config.encode()
        and all((out / name).is_file() for name in manifest.files)
    )
