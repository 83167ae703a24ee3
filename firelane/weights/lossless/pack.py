"""pack: a model directory to a packed one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import CheckpointError, UsageError
from firelane.storage import read_regular
from firelane.weights.lossless.control import ControlBlock
from firelane.weights.lossless.file import LosslessFile, open_weights
from firelane.weights.lossless.manifest import MANIFEST, FileIdentity, Manifest, read_pieces
from firelane.weights.lossless.marks import CONFIG, declared_version, is_packed
from firelane.weights.lossless.original import original_bytes
from firelane.weights.lossless.output import OutputDirectory
from firelane.weights.lossless.writer import FilePacker, FileSink, NullSink, Rule
from firelane.weights.progress import Progress, silent
from firelane.weights.storage.files import weight_files
from firelane.weights.storage.safetensors import SafetensorsFile

MARKER = "firelane_lossless.unfinished"
# Weights in other formats: not carried along, nor are subdirectories and hidden files.
OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".ot")


@dataclass(frozen=True, kw_only=True)
class PackResult:
    """The result of packing. controls: the control block of each weight file, by its name; kept: files that a
    run before had finished; skipped: names in the model's directory that are not part of the packed one."""

    controls: Mapping[str, ControlBlock]
    packed_bytes: int
    kept: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def original_bytes(self) -> int:
        """Bytes of the original weight files."""
        return sum(c.original_bytes for c in self.controls.values())


def pack(
    model_dir: Path, out: Path, *, threads: int, progress: Progress = silent, rule: Rule | None = None
) -> PackResult:
    """Pack `model_dir` into `out`, a directory that is new, empty, or was left unfinished by the same call.

    Raises UsageError when both are the same or the model is packed already, CheckpointError and
    ModelNotFoundError for a damaged model, OutputError when `out` is not usable or the disk is full.
    """
    if out.resolve() == model_dir.resolve():
        raise UsageError(f"{out}: is the model itself; give another directory to pack it into")
    sources = open_sources(model_dir)
    others, skipped = _carried(model_dir, sources)
    task = {"pack": {path.name: path.stat().st_size for path in [*sources, *others]}}
    run = _PackRun(threads, progress, sum(f.nbytes for f in sources.values()), rule or Rule())
    controls: dict[str, ControlBlock] = {}
    kept: list[str] = []
    directory = OutputDirectory(out, marker=MARKER, task=task, is_whole=lambda: _is_packed(out, model_dir))
    with directory:
        for path, source in sources.items():
            finished = run.finished(source, out / path.name)
            if finished is not None:
                kept.append(path.name)
            controls[path.name] = finished or run.pack_file(source, directory)
        identities = {
            name: FileIdentity(c.original_bytes, c.file_digest.hex()) for name, c in controls.items()
        }
        for path in others:
            identities[path.name] = FileIdentity.of(path)
            if not identities[path.name].matches(out / path.name):
                with directory.writing(path.name) as file:
                    FileIdentity.of_pieces(read_pieces(path), file.write)
        manifest = Manifest(config=config_text(model_dir), files=identities)
        directory.write(MANIFEST, manifest.encode())
        directory.write(CONFIG, manifest.packed_config())
    return PackResult(
        controls=controls,
        packed_bytes=sum((out / name).stat().st_size for name in controls),
        kept=tuple(kept),
        skipped=skipped,
    )


def pack_nowhere(model_dir: Path, *, threads: int, progress: Progress = silent) -> PackResult:
    """All of pack's work but for the writing: for the sizes. Raises as pack does."""
    sources = open_sources(model_dir)
    run = _PackRun(threads, progress, sum(f.nbytes for f in sources.values()), Rule())
    sink = NullSink()
    controls = {path.name: run.pack_into(source, sink) for path, source in sources.items()}
    return PackResult(
        controls=controls,
        packed_bytes=sink.nbytes,
        kept=(),
        skipped=(),
    )


def open_sources(model_dir: Path) -> dict[Path, SafetensorsFile]:
    """The plain files to pack. Raises UsageError where they are packed already."""
    files: dict[Path, SafetensorsFile] = {}
    for path in weight_files(model_dir):
        file = SafetensorsFile(path)
        if is_packed(file) or declared_version(model_dir) is not None:
            raise UsageError(f"{model_dir}: is packed already; `firelane unpack` undoes it")
        files[path] = file
    return files


def config_text(model_dir: Path) -> str:
    """Raises CheckpointError when config.json is not text."""
    try:
        return read_regular(model_dir / CONFIG).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{model_dir / CONFIG}: cannot be read: {error}") from error


class _PackRun:
    """One call of pack: what its steps share."""

    def __init__(self, threads: int, progress: Progress, total_bytes: int, rule: Rule) -> None:
        self._threads = threads
        self._progress = progress
        self._total_bytes = total_bytes
        self._rule = rule
        self._done_bytes = 0

    def finished(self, source: SafetensorsFile, path: Path) -> ControlBlock | None:
        """The control block of `path` where that is a whole packed form of `source`: both are read."""
        with contextlib.suppress(CheckpointError):
            file = open_weights(path)
            if isinstance(file, LosslessFile) and file.control.original_header == source.header:
                advance = self._advance("check")
                pieces = original_bytes(file, threads=self._threads)
                decoded = FileIdentity.of_pieces(pieces, lambda piece: advance(len(piece)))
                if decoded == FileIdentity.of(source.path):
                    return file.control
        return None

    def pack_file(self, source: SafetensorsFile, directory: OutputDirectory) -> ControlBlock:
        with directory.writing(source.path.name) as file:
            return self.pack_into(source, file)

    def pack_into(self, source: SafetensorsFile, sink: FileSink) -> ControlBlock:
        try:
            fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{source.path}: cannot be read: {error.strerror}") from error
        try:
            return FilePacker(source, fd, sink, rule=self._rule).run(
                self._advance("pack"), threads=self._threads
            )
        finally:
            os.close(fd)

    def _advance(self, stage: str) -> Callable[[int], None]:
        def on_bytes(count: int) -> None:
            self._done_bytes += count
            self._progress(stage, self._done_bytes, self._total_bytes, "B")

        return on_bytes


def _carried(model_dir: Path, sources: Mapping[Path, SafetensorsFile]) -> tuple[list[Path], tuple[str, ...]]:
    """Files of the model that are copied as they are, and names that stay behind."""
    rest = [p for p in sorted(model_dir.iterdir()) if p not in sources and p.name not in (CONFIG, MANIFEST)]
    carried = [p for p in rest if p.is_file() and p.suffix not in OTHER_WEIGHTS and p.name[0] != "."]
    return carried, tuple(p.name for p in rest if p not in carried)


def _is_packed(out: Path, model_dir: Path) -> bool:
    """Whether `out` is a finished directory made from a model with the same config."""
    try:
        return Manifest.read(out).config == config_text(model_dir)
    except CheckpointError:
        return False
