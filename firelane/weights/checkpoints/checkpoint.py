"""Checkpoint: all tensors of a model directory: one safetensors file or several with an index, each as its
maker wrote it or packed without loss (weights/lossless); or GGUF files that lie elsewhere (weights/gguf).
Quantised tensors are presented as the bf16 ones that they stand for (weights/quantized).
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError, UsageError
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.checkpoints.names import TensorNames, other_part
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format
from firelane.weights.lossless.marks import check_version, declared_version, is_packed
from firelane.weights.quantized.settings import read_settings
from firelane.weights.quantizing.schemes import Scheme
from firelane.weights.storage.files import GGUF_INDEX, INDEX, paths_of, weight_map_of
from firelane.weights.storage.fingerprint import FileStamp, fingerprint
from firelane.weights.storage.reader import ReadBuffer
from firelane.weights.storage.remote import READERS, RemoteBytes, remote_files
from firelane.weights.storage.safetensors import SafetensorsFile
from firelane.weights.storage.tensors import RowDecoder

if TYPE_CHECKING:
    from firelane.weights.gguf.file import GgufFile
    from firelane.weights.lossless.file import LosslessFile
    from firelane.weights.quantized.file import QuantizedTensors
    from firelane.weights.quantizing.on_read import QuantizedOnRead
    from firelane.weights.storage.file_bytes import FileBytes

    WeightFile = SafetensorsFile | LosslessFile | GgufFile
    Reader = WeightFile | QuantizedTensors | QuantizedOnRead

READABLE = {DType.BF16: ("BF16",), DType.F32: ("F32", "BF16", "F16")}  # all exact
WAITING = 2
ROUNDED = ("F32", "F16")
"""Dtypes of matrices that are rounded to bf16 beside quantised ones, or where that is asked."""
LARGEST_ROUNDING = 2.0**-8
"""The largest error of a number that is rounded to bf16, relative to it."""
UNUSED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # derived from the config
log = logging.getLogger(__name__)


class Checkpoint:
    """Tensors by the names that families know (see names.py), whatever prefix they are published under.

    Names, shapes, dtypes and values of a packed directory are those of the original one; its tensors are
    decoded, and checked, each time they are read. origin: what messages name: the directory, or the GGUF
    file that it was made of. The code of each kind of files is loaded where such a file lies.
    """

    __slots__ = ("_files", "_fingerprint", "_places", "_rounded", "_rounds", "directory", "origin")

    def __init__(
        self,
        directory: Path,
        files: Sequence[WeightFile],
        quantized: QuantizedTensors | None = None,
        origin: Path | None = None,
    ) -> None:
        self.directory, self.origin = directory, origin or directory
        self._files = tuple(files)
        self._fingerprint = ""
        self._rounds = quantized is not None
        self._rounded: frozenset[str] = frozenset()
        self._places = _places(self.origin, self._files, quantized)

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Raises ModelNotFoundError without weights, CheckpointError when they are damaged or incomplete."""
        if (directory / GGUF_INDEX).is_file():
            found = _gguf_files(directory)
            return cls(directory, found, origin=found[0].path)
        remote = remote_files(directory)
        weight_map = weight_map_of(directory, remote)
        paths = paths_of(directory, weight_map, remote)
        files = [_opened(path, remote.get(path.name)) for path in paths]
        _check_kinds(directory, files)
        settings = read_settings(directory)
        quantized = None
        if settings:
            from firelane.weights.quantized.file import QuantizedTensors

            quantized = QuantizedTensors(directory, files, settings)
        checkpoint = cls(directory, files, quantized)
        tensors_of = {file.path.name: file.tensors for file in files}
        for name, shard in weight_map.items():
            if name not in tensors_of[shard]:
                raise CheckpointError(
                    f"{directory / shard}: tensor {name} is missing, but {INDEX} says that it is there"
                )
        return checkpoint

    @property
    def fingerprint(self) -> str:
        """Changes when a file is replaced, as far as names, sizes, times, headers and a sample of the content
        tell (fingerprint.py)."""
        self._fingerprint = self._fingerprint or fingerprint(self._files)
        return self._fingerprint

    @property
    def content(self) -> str:
        """The same without times: that of a copy on another machine, too."""
        return fingerprint(self._files, times=False)

    @property
    def stamps(self) -> dict[str, FileStamp]:
        """By name the files as they were when they were opened."""
        return {file.path.name: file.stamp for file in self._files}

    @property
    def waiting(self) -> int:
        """Threads that are of use beside those that compute: some always wait for the drive, or the store."""
        readers = (getattr(file, "reader", None) for file in self._files)
        return READERS if any(isinstance(reader, RemoteBytes) for reader in readers) else WAITING

    @property
    def is_direct(self) -> bool:
        """Whether reads come from a drive or a store into memory of the caller's, not from the page cache."""
        readers = (getattr(file, "reader", None) for file in self._files)
        return any(getattr(reader, "direct", False) for reader in readers)

    @property
    def is_sampled(self) -> bool:
        """Whether the fingerprint has only a sample of the content, not checksums of all of it."""
        return any(file.is_sampled for file in self._files)

    def is_unchanged(self) -> bool:
        """Whether no file was changed or replaced since it was opened."""
        return all(file.is_unchanged() for file in self._files)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._places)

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(file.stamp.nbytes for file in self._files)

    def contents(self) -> dict[Path, list[str]]:
        """Names of the tensors of each file, in their order."""
        found: dict[Path, list[str]] = {file.path: [] for file in self._files}
        for name, (file, _) in self._places.items():
            found[file.path].append(name)
        return found

    def published(self, name: str) -> str:
        """The name that a tensor has in its file. Raises CheckpointError where there is none."""
        return self._place(name)[1]

    def tensor(self, name: str) -> NDArray[Any]:
        """float32, float16, or uint16 holding the bits of bf16; not to be written to (a view of a plain file,
        decoded from a packed one). Raises CheckpointError.
        """
        file, published = self._place(name)
        return self._presented(name, file.tensor(published))

    def rows(self, name: str, first: int, last: int, buffer: ReadBuffer | None = None) -> NDArray[Any]:
        """Rows first .. last - 1 of a tensor of at least one dimension, as `tensor()` gives them; safe from
        many threads. They lie in `buffer`, if there is one, until it is used again.

        Of a packed tensor only the chunks are decoded that hold these rows, but always whole ones (256 KiB of
        bf16): ask for some MiB at a time. Raises CheckpointError; IndexError when there are no such rows.
        """
        file, published = self._place(name)
        shape = file.tensors[published].shape
        if not shape or not 0 <= first <= last <= shape[0]:
            raise IndexError(f"{name} has shape {list(shape)}, not rows {first} .. {last - 1}")
        return self._presented(name, file.rows(published, first, last, buffer))

    def elements(
        self, name: str, first: int, last: int, buffer: ReadBuffer | None = None, *, sparse: bool = False
    ) -> NDArray[Any]:
        """Elements first .. last - 1 of the flat tensor, else as rows(). `sparse`: only a few of them will be
        looked at; of a plain file only the pages that hold them are read then.
        """
        file, published = self._place(name)
        return self._presented(name, file.elements(published, first, last, buffer, sparse=sparse))

    def format(self, name: str) -> Format | None:
        """The packed format that keeps the codes of a quantised matrix; None of others."""
        file, published = self._place(name)
        return file.format(published) if isinstance(file, RowDecoder) else None

    def codes_by_columns(self, name: str) -> bool:
        """Whether the groups of a tensor that has a format() are of neighbours in its columns."""
        file, published = self._place(name)
        return isinstance(file, RowDecoder) and file.by_columns(published)

    def codes(self, name: str, first: int, last: int) -> Codes:
        """Rows first .. last - 1, all axes but the last taken together, of a tensor that has a format(); or
        columns, those of one matrix behind those of the other."""
        file, published = self._place(name)
        assert isinstance(file, RowDecoder), f"{name} is not quantised"
        return file.codes(published, first, last)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None where there is no such tensor."""
        if name not in self._places:
            return None
        file, published = self._places[name]
        return file.tensors[published].shape

    def dtype(self, name: str) -> str:
        """The dtype as safetensors names it. Raises CheckpointError where there is no such tensor."""
        file, published = self._place(name)
        return "BF16" if name in self._rounded else file.tensors[published].dtype

    def _presented(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        if name not in self._rounded:
            return values
        return bf16_bits(values.astype(np.float32, copy=False)).reshape(values.shape)

    def _place(self, name: str) -> tuple[Reader, str]:
        """The file that a tensor lies in, and its name there."""
        if name not in self._places:
            raise CheckpointError(f"{self.origin}: tensor {name} is missing")
        return self._places[name]

    def round_for(self, program: Program, *, asked: bool = False) -> None:
        """From now on, matrices that `program` has in bf16 and that are stored in more bits are read as bf16.
        The log says so; as a warning, where neither that was asked nor the checkpoint is quantised:
        config.json and the tensors have different dtypes."""
        named = {piece.tensor for w in program.weights if w.dtype is DType.BF16 for piece in w.pieces}
        there = [name for name in named if name in self._places]
        self._rounded = frozenset(name for name in there if self.dtype(name) in ROUNDED)
        if self._rounded:
            log.log(
                logging.INFO if self._rounds or asked else logging.WARNING,
                "tensors_rounded model=%s to=bf16 tensors=%d largest_relative_error=%.4f",
                *(self.directory.name, len(self._rounded), LARGEST_ROUNDING),
            )

    def read_as_stored(self, names: Iterable[str]) -> None:
        """From now on these tensors are not rounded."""
        self._rounded -= set(names)

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is stored as codes."""
        return self._rounds or any(self.format(name) is not None for name in self._places)

    def quantize(self, names: Iterable[str], scheme: Scheme) -> None:
        """From now on these tensors are read as the scheme quantises them, from the numbers that are stored;
        the fingerprint is another one. Raises UsageError where tensors are quantised already."""
        if self.is_quantized:
            raise UsageError(
                f"--weights {scheme.name.partition('-')[0]}: the weights of {self.origin} are quantised "
                "already; leave it out"
            )
        from firelane.weights.quantizing.on_read import QuantizedOnRead

        fingerprint = f"{self.fingerprint} {scheme}"
        of_file: dict[int, tuple[Reader, dict[str, str]]] = {}
        for name in names:
            file, published = self._place(name)
            assert file in self._files, f"{name} is not as the file has it"
            of_file.setdefault(id(file), (file, {}))[1][name] = published
        for file, published_of in of_file.values():
            reader = QuantizedOnRead(file, set(published_of.values()), scheme)
            self._places |= {name: (reader, published) for name, published in published_of.items()}
        self.read_as_stored(name for _, found in of_file.values() for name in found)
        self._fingerprint = hashlib.sha256(fingerprint.encode()).hexdigest()

    def check_against(self, program: Program) -> None:
        """Raises CheckpointError naming missing tensors, wrong shapes and dtypes, and tensors that the model
        does not use. Parts of a multimodal model that are not its language model are skipped, and logged.
        """
        problems = [p for weight in program.weights for p in self._problems(weight)]
        used = {piece.tensor for weight in program.weights for piece in weight.pieces} | {"lm_head.weight"}
        skipped: Counter[str] = Counter()
        for name in self.names:
            if name in used or name.endswith(UNUSED_SUFFIXES):
                continue
            part = other_part(name, program.left_out)
            skipped[part] += 1
            if not part:
                problems.append(f"{name} is not part of this model")
        if problems:
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(
                f"{self.origin}: {'; '.join(problems[:3])}{more}: config.json and weights disagree"
            )
        if skipped:
            parts = ",".join(f"{part}:{count}" for part, count in sorted(skipped.items()))
            log.info("tensors_skipped model=%s parts=%s", self.directory.name, parts)

    def _problems(self, weight: Weight) -> list[str]:
        problems: list[str] = []
        for name, shape in dict.fromkeys((piece.tensor, piece.shape) for piece in weight.pieces):
            if name not in self._places:
                problems.append(f"tensor {name} is missing")
                continue
            file, published = self._places[name]
            info = file.tensors[published]
            if info.shape != shape:
                problems.append(f"{name} has shape {list(info.shape)}, not {list(shape)}")
            elif self.dtype(name) not in READABLE[weight.dtype]:
                problems.append(f"{name} has dtype {info.dtype}, not {' or '.join(READABLE[weight.dtype])}")
        return problems


def _places(
    origin: Path, files: Sequence[WeightFile], quantized: QuantizedTensors | None = None
) -> dict[str, tuple[Reader, str]]:
    """By the name that families know, the file of each tensor and its name there. Raises CheckpointError."""
    file_of: dict[str, Reader] = dict.fromkeys(quantized.tensors, quantized) if quantized else {}
    hidden = quantized.names if quantized else frozenset[str]()
    for file in files:
        for name in file.tensors:
            if name in hidden:
                continue
            if name in file_of:
                raise CheckpointError(f"{file.path}: tensor {name} is also in {file_of[name].path.name}")
            file_of[name] = file
    try:
        names = TensorNames.find(file_of)
    except CheckpointError as error:
        raise CheckpointError(f"{origin}: {error}") from None
    places: dict[str, tuple[Reader, str]] = {}
    for published, file in file_of.items():
        name = names.known(published)
        if name in places:
            other = places[name][1]
            raise CheckpointError(f"{origin}: tensors {other} and {published} are both {name} of the model")
        places[name] = file, published
    return places


def _opened(path: Path, source: FileBytes | None) -> SafetensorsFile | LosslessFile:
    file = SafetensorsFile(path, source)
    if not is_packed(file):
        return file
    from firelane.weights.lossless.file import LosslessFile

    return LosslessFile(file)


def _gguf_files(directory: Path) -> list[GgufFile]:
    """At least one."""
    from firelane.weights.gguf.file import GgufFile
    from firelane.weights.gguf.index import read_index

    index = read_index(directory)
    if index is None or not index.is_current:
        named = ", ".join(file.path for file in index.files) if index else directory
        raise CheckpointError(f"{named}: the GGUF file has been changed or moved: start again")
    return [GgufFile(file) for file in index.files]


def _check_kinds(directory: Path, files: Sequence[WeightFile]) -> None:
    """All files are packed and config.json says so, or none is and it says nothing."""
    version = declared_version(directory)
    if version is not None:
        check_version(directory, version)
    for file in files:
        if version is None and not isinstance(file, SafetensorsFile):
            raise CheckpointError(
                f"{file.path}: is packed, but config.json does not say so: files of different "
                "models or forms "
                "lie here together; pack the model again"
            )
        if version is not None and isinstance(file, SafetensorsFile):
            raise CheckpointError(
                f"{file.path}: is not packed, but config.json says so: files of different models or "
                "forms lie "
                "here together; pack the model again"
            )
