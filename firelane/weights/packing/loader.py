"""load_packed: weights ready for the kernels, from the cache if they lie there, packed into it if not."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Generator, Mapping
from pathlib import Path

import numpy as np

from firelane.errors import CacheError, CheckpointError
from firelane.program.program import Program
from firelane.storage import cache_directory, locked, remove_leftovers, replacing
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.coded_native import CodedLibrary, coded_library
from firelane.weights.formats.formats import Format
from firelane.weights.packing.layout import lay_out
from firelane.weights.packing.packed import PackedIdentity, PackedWeights, open_packed
from firelane.weights.packing.packer import TASK_BYTES, Packer
from firelane.weights.packing.plan import NO_FORMS, PackedWeight, plain_bytes, plan
from firelane.weights.packing.seal import Seal
from firelane.weights.packing.source import PackedSource
from firelane.weights.progress import Progress, silent
from firelane.weights.storage.digests import PayloadDigests
from firelane.weights.storage.write_behind import WriteBehind

SUFFIX = ".weights"
WITHOUT_LIBRARY_BYTES = 32 << 20


def load_packed(
    program: Program,
    source: Path | Checkpoint,
    cache_dir: Path,
    *,
    forms: Mapping[str, Format] = NO_FORMS,
    progress: Progress = silent,
    threads: int = 2,
    seals_later: bool = False,
) -> PackedWeights:
    """The program's weights, packed, those that `forms` names in a coded format (see plan()). The first call
    for a checkpoint packs them into `cache_dir`, later ones map that file. source: a checkpoint's directory,
    or the checkpoint where it is open and was checked against the program.

    Any number of processes may call it at once: one packs, the others wait for it. seals_later: what was
    packed may be used at once, while it comes to lie on the drive; sealed() of the result tells. Raises
    CheckpointError when checkpoint and program disagree or a weight is not finite, CacheError when the cache
    cannot be written or the disk is full; nothing half written is left.
    """
    checkpoint = source if isinstance(source, Checkpoint) else _open_checkpoint(source, program)
    placed = plan(program, forms)
    identity = PackedIdentity.of(placed, checkpoint.fingerprint)
    path = cache_dir / "weights" / f"{identity.key}{SUFFIX}"
    with _cache_errors(path):
        cache_directory(path.parent)
        packed = _open(path, placed, identity)
        if packed is not None:
            return packed
        with contextlib.ExitStack() as lock:
            lock.enter_context(locked(path.with_suffix(".lock")))
            packed = _open(path, placed, identity)  # another process may have packed it meanwhile
            if packed is None:
                packed_from = _pack(path, checkpoint, placed, identity, progress=progress, threads=threads)
                packed = _sealing(path, placed, identity, packed_from, lock.pop_all())
    if not seals_later:
        packed.sealed()
    return packed


def _open_checkpoint(directory: Path, program: Program) -> Checkpoint:
    checkpoint = Checkpoint.open(directory)
    checkpoint.check_against(program)
    return checkpoint


def _open(path: Path, placed: tuple[PackedWeight, ...], identity: PackedIdentity) -> PackedWeights | None:
    """None without a seal (seal.py)."""
    return None if PackedSource.read(path) is None else open_packed(path, placed, identity)


def _sealing(
    path: Path,
    placed: tuple[PackedWeight, ...],
    identity: PackedIdentity,
    source: PackedSource,
    lock: contextlib.ExitStack,
) -> PackedWeights:
    """The weights that were just packed. Takes the lock."""
    with contextlib.ExitStack() as on_error:
        on_error.push(lock)
        packed = open_packed(path, placed, identity)
        if packed is None:
            raise CacheError(
                f"{path}: cannot be read back; set FIRELANE_CACHE_DIR to a directory on a local disk"
            )
        packed.seal = Seal(path, source, lock)
        on_error.pop_all()
    return packed


def _pack(
    path: Path,
    checkpoint: Checkpoint,
    placed: tuple[PackedWeight, ...],
    identity: PackedIdentity,
    *,
    progress: Progress,
    threads: int,
) -> PackedSource:
    """Pack into a temporary file beside `path`, then rename it; returns what is to seal it. The caller holds
    the lock."""
    remove_leftovers(path)
    PackedSource.remove(path)
    with replacing(path) as temporary, temporary.open("x+b") as file:
        fd = file.fileno()
        _reserve(fd, plain_bytes(placed))
        packer = Packer(checkpoint, fd, library=_library(placed), progress=progress)
        with WriteBehind(fd):
            sizes = packer.run(placed, threads=threads)
        _finish(fd, identity, placed, sizes, threads=threads)
        if not checkpoint.is_unchanged():
            raise CheckpointError(f"{checkpoint.origin}: was changed while it was packed; start again")
    return PackedSource(
        key=identity.key,
        digest=packer.read.hexdigest(),
        task_bytes=TASK_BYTES,
        stamps=[checkpoint.stamps],
        model=str(checkpoint.directory.resolve()),
    )


def _library(placed: tuple[PackedWeight, ...]) -> CodedLibrary | None:
    """None for so few bf16 weights that compiling it takes longer than to do without."""
    is_coded = any(packed.format.is_coded for packed in placed)
    return coded_library() if is_coded or plain_bytes(placed) > WITHOUT_LIBRARY_BYTES else None


def _finish(
    fd: int,
    identity: PackedIdentity,
    placed: tuple[PackedWeight, ...],
    sizes: tuple[int, ...],
    *,
    threads: int,
) -> None:
    """The footer behind the payload, and no reserved space behind that. Weights are hashed as they lie in the
    file: tasks write their parts in any order.
    """
    layout = lay_out(placed, sizes)
    os.ftruncate(fd, layout.payload_bytes)
    payload = np.frombuffer(mmap.mmap(fd, layout.payload_bytes, access=mmap.ACCESS_READ), np.uint8)
    digests = PayloadDigests.of(payload, layout.extent_ends, threads=threads)
    footer = identity.footer(sizes, digests)
    written = os.pwrite(fd, footer, layout.payload_bytes)
    if written != len(footer):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reserve(fd: int, size: int) -> None:
    """Claim the disk space now: a full disk is better met before the work than in the middle of it. Coded
    formats are counted as plain ones: they seldom take more, and give back what they do not take.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


@contextlib.contextmanager
def _cache_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = "no room on this disk for the packed weights; free some space or"
        else:
            what = f"packed weights cannot be written: {error.strerror}; make it writable or"
        raise CacheError(f"{path.parent}: {what} set FIRELANE_CACHE_DIR to another directory") from error
