"""Packs one safetensors file.

The rule: a tensor is stored compressed where it is bf16, has at least Rule.min_weights weights, and takes at
most Rule.max_share of its bytes that way (records and padding; exponents of 7 bits of entropy or more do
not). All other tensors stay as they are, under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from firelane.errors import CheckpointError
from firelane.weights.lossless.chunks import CHUNK_BYTES, ENTRY, ChunkRecord, plain_record
from firelane.weights.lossless.codec import encode_span
from firelane.weights.lossless.control import ControlBlock, Form
from firelane.weights.lossless.file import stored_name
from firelane.weights.lossless.marks import CONTROL, FORMAT, STREAM_SUFFIX, VERSION
from firelane.weights.lossless.output import OutputFile
from firelane.weights.lossless.pipeline import ordered, spans
from firelane.weights.lossless.planes import Bytes
from firelane.weights.lossless.table import ChunkTable
from firelane.weights.storage.reader import pread
from firelane.weights.storage.safetensors import SafetensorsFile
from firelane.weights.storage.tensors import TensorInfo

FARTHEST = 10**15  # no offset in a header has more digits


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which tensors are compressed (see the file's head), and how finely."""

    min_weights: int = 4096
    max_share: float = 15 / 16
    chunk_bytes: int = CHUNK_BYTES

    def may_compress(self, info: TensorInfo) -> bool:
        return info.dtype == "BF16" and info.end - info.begin >= 2 * self.min_weights

    def gains(self, table: ChunkTable) -> bool:
        return table.stored_bytes <= self.max_share * table.nbytes


class NullSink:
    """Files that nobody needs. `nbytes`: the sum of their sizes."""

    def __init__(self) -> None:
        self.nbytes = 0

    def put(self, position: int, buffers: list[Any]) -> None:
        """Drop them."""

    def finish(self, nbytes: int) -> None:
        self.nbytes += nbytes


FileSink = OutputFile | NullSink
"""The place that a packed file goes to."""


@dataclass(frozen=True)
class _Span:
    """Encoded bytes of a tensor; `data` are the original ones."""

    data: Bytes
    records: list[ChunkRecord]


class FilePacker:
    """Packs the file `source`, read through its own descriptor `fd`, into a sink."""

    def __init__(self, source: SafetensorsFile, fd: int, sink: FileSink, *, rule: Rule) -> None:
        self._source, self._fd, self._sink, self._rule = source, fd, sink, rule
        self._digest = xxhash.xxh3_128()
        self._tables: dict[str, ChunkTable] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def run(self, on_bytes: Callable[[int], None], *, threads: int) -> ControlBlock:
        """Write the whole file; `on_bytes` is called with how many more original bytes are done.

        Raises CheckpointError when the file cannot be read or has names that the format needs.
        """
        header = self._source.header
        room = len(_header({n: _longest(n, i) for n, i in self._source.tensors.items()}))
        self._end = 8 + room + -room % 8
        self._digest.update(len(header).to_bytes(8, "little") + header)
        on_bytes(8 + len(header))
        by_place = sorted(self._source.tensors.items(), key=lambda item: (item[1].begin, item[1].end))
        tasks = ((i, b, e) for _, i in by_place for b, e in spans(i.end - i.begin, self._rule.chunk_bytes))
        encoded = ordered(self._encode, tasks, threads=threads)
        for name, info in by_place:
            if name == CONTROL or name.endswith(STREAM_SUFFIX):
                raise CheckpointError(f"{self._source.path}: tensor {name}: the packed form needs this name")
            self._pack_tensor(name, info, encoded, on_bytes)
        return self._finish(8 + room + -room % 8)

    def _pack_tensor(
        self, name: str, info: TensorInfo, encoded: Iterator[_Span], on_bytes: Callable[[int], None]
    ) -> None:
        begin = self._end
        table = self._store(info, encoded, compressed=self._rule.may_compress(info), on_bytes=on_bytes)
        if table.compressed and not self._rule.gains(table):
            # Seen only now: the place is taken again by the tensor as it was.
            self._end = begin
            plain = (self._plain(info, b, e) for b, e in spans(table.nbytes, self._rule.chunk_bytes))
            table = self._store(info, plain, compressed=False, on_bytes=None)
        padding = table.stored_bytes - table.record_bytes
        if padding:
            self._append([bytes(padding)])
        self._tables[name] = table
        self._places[name] = (begin, self._end)

    def _store(
        self,
        info: TensorInfo,
        encoded: Iterator[_Span],
        *,
        compressed: bool,
        on_bytes: Callable[[int], None] | None,
    ) -> ChunkTable:
        """Append a tensor's records. `on_bytes` is None where its bytes were counted before."""
        entries: list[tuple[int, int]] = []
        for _ in spans(info.end - info.begin, self._rule.chunk_bytes):
            span = next(encoded)
            self._append([b for record in span.records for b in record.buffers])
            entries += [(record.stored_bytes, record.checksum) for record in span.records]
            if on_bytes is not None:
                self._digest.update(span.data.data)
                on_bytes(len(span.data))
        return ChunkTable.of(
            np.array(entries, ENTRY),
            nbytes=info.end - info.begin,
            chunk_bytes=self._rule.chunk_bytes,
            compressed=compressed,
        )

    def _encode(self, task: tuple[TensorInfo, int, int]) -> _Span:
        info, begin, end = task
        if not self._rule.may_compress(info):
            return self._plain(info, begin, end)
        data = self._read(info, begin, end)
        return _Span(data, encode_span(data.view(np.uint16), self._rule.chunk_bytes))

    def _plain(self, info: TensorInfo, begin: int, end: int) -> _Span:
        data, step = self._read(info, begin, end), self._rule.chunk_bytes
        return _Span(data, [plain_record(data[at : at + step]) for at in range(0, len(data), step)])

    def _read(self, info: TensorInfo, begin: int, end: int) -> Bytes:
        data = np.empty(end - begin, np.uint8)
        try:
            pread(self._fd, info.begin + begin, data)
        except OSError as error:
            raise CheckpointError(f"{self._source.path}: cannot be read: {error.strerror}") from error
        return data

    def _append(self, buffers: list[Any]) -> None:
        self._sink.put(self._end, buffers)
        self._end += sum(memoryview(b).nbytes for b in buffers)

    def _finish(self, data_begin: int) -> ControlBlock:
        """Header and control block, which need the sizes of all that lies before them."""
        source, chunk_bytes = self._source, self._rule.chunk_bytes
        control_bytes = ControlBlock.size(source.tensors, len(source.header), chunk_bytes)
        entries = {
            name: _entry(name, info, self._tables[name].compressed, self._places[name], data_begin)
            for name, info in source.tensors.items()
        }
        header = _header(entries, control=(self._end - data_begin, self._end - data_begin + control_bytes))
        header = (data_begin - 8).to_bytes(8, "little") + header.ljust(data_begin - 8)
        control = ControlBlock(
            original_bytes=source.nbytes,
            original_header=source.header,
            file_digest=self._digest.digest(),
            header_digest=xxhash.xxh3_64_intdigest(header),
            tensors=source.tensors,
            tables=self._tables,
            chunk_bytes=chunk_bytes,
        )
        self._sink.put(0, [header])
        self._append([control.encode()])
        self._sink.finish(self._end)
        return control


def _entry(
    name: str, info: TensorInfo, compressed: bool, place: tuple[int, int], data_begin: int
) -> tuple[str, str]:
    """A tensor in the packed file's header: its name there, and its JSON."""
    begin, end = place[0] - data_begin, place[1] - data_begin
    if compressed:
        return stored_name(name, Form.PLANES), _json("U8", [end - begin], begin, end)
    return name, _json(info.dtype, list(info.shape), begin, end)


def _longest(name: str, info: TensorInfo) -> tuple[str, str]:
    """An entry that is at least as long as any that the tensor can get."""
    shape = json.dumps(list(info.shape), separators=(",", ":"))
    either = max(shape, f"[{FARTHEST}]", key=len)
    return name + STREAM_SUFFIX, _json("F8_E4M3", [], FARTHEST, FARTHEST).replace("[]", either)


def _json(dtype: str, shape: list[int], begin: int, end: int) -> str:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return json.dumps(entry, separators=(",", ":"))


def _header(entries: dict[str, tuple[str, str]], control: tuple[int, int] = (FARTHEST, FARTHEST)) -> bytes:
    """The packed file's header, without the spaces that fill it up."""
    size = control[1] - control[0] or FARTHEST
    metadata = json.dumps({"format": FORMAT, "version": str(VERSION)}, separators=(",", ":"))
    parts = [f'"__metadata__":{metadata}', f'"{CONTROL}":{_json("U8", [size], *control)}']
    parts += [f"{json.dumps(name)}:{entry}" for name, entry in entries.values()]
    return ("{" + ",".join(parts) + "}").encode()
