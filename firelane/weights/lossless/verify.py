"""verify: everything in a packed directory is read and checked, nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

from firelane.errors import CheckpointError
from firelane.storage import read_regular
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.lossless.file import LosslessFile, open_weights
from firelane.weights.lossless.manifest import FileIdentity, Manifest, read_pieces
from firelane.weights.lossless.marks import CONFIG, declared_version
from firelane.weights.lossless.original import original_bytes
from firelane.weights.progress import Progress, silent

WEIGHTS_SUFFIX = ".safetensors"


def verify(directory: Path, *, threads: int, progress: Progress = silent) -> int:
    """Returns how many bytes the original files have. Raises CheckpointError for the first thing that is not
    as it was packed.
    """
    manifest = open_packed(directory)
    total = sum(f.nbytes for f in manifest.files.values())
    done = 0

    def advance(piece: bytes) -> None:
        nonlocal done
        done += len(piece)
        progress("verify", done, total, "B")

    for name, identity in manifest.files.items():
        path = directory / name
        if name.endswith(WEIGHTS_SUFFIX):
            pieces = original_bytes(open_packed_file(path, identity), threads=threads)
        else:
            pieces = read_pieces(path)
        check_identity(path, FileIdentity.of_pieces(pieces, advance), identity)
    return total


def open_packed(directory: Path) -> Manifest:
    """The manifest of a packed directory whose parts belong together. Raises CheckpointError."""
    Checkpoint.open(directory)
    if declared_version(directory) is None:
        raise CheckpointError(f"{directory}: is not a packed model; `firelane pack` makes one")
    manifest = Manifest.read(directory)
    config = json.loads(read_regular(directory / CONFIG))
    if config != json.loads(manifest.packed_config()):
        raise CheckpointError(
            f"{directory / CONFIG}: is not the config that was packed; pack the model again"
        )
    unknown = sorted({p.name for p in directory.glob(f"*{WEIGHTS_SUFFIX}")} - set(manifest.files))
    if unknown:
        raise CheckpointError(f"{directory / unknown[0]}: is not part of the packed model; remove it")
    return manifest


def open_packed_file(path: Path, identity: FileIdentity) -> LosslessFile:
    """A packed weight file of which the manifest says what it was made from. Raises CheckpointError."""
    file = open_weights(path)
    if not isinstance(file, LosslessFile):
        raise CheckpointError(f"{path}: is not packed, but the manifest says so; pack the model again")
    packed = FileIdentity(file.control.original_bytes, file.control.file_digest.hex())
    check_identity(path, packed, identity)
    return file


def check_identity(path: Path, found: FileIdentity, expected: FileIdentity) -> None:
    if found != expected:
        raise CheckpointError(f"{path}: is not the file that was packed; download or pack the model again")
