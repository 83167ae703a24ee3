"""The marks of a packed directory: a block in config.json, and the manifest of what was packed.

config.json             the original's keys and "firelane_lossless": {"version": 1}
firelane_lossless.json  {"version": 1, "config": the original config.json as text,
                         "files": {name: {"bytes": n, "xxh3_128": hex digits}}}   of all other original files
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import xxhash

from firelane.errors import CheckpointError
from firelane.storage import open_regular
from firelane.weights.lossless.marks import BLOCK, CONFIG, VERSION, check_version, read_object

MANIFEST = "firelane_lossless.json"
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class FileIdentity:
    """A file's content, for all purposes but those of an attacker."""

    nbytes: int
    xxh3_128: str

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """Raises CheckpointError when the file cannot be read."""
        return cls.of_pieces(read_pieces(path), lambda _: None)

    def matches(self, path: Path) -> bool:
        """Whether `path` is that file; it is read. Raises CheckpointError when it cannot be."""
        return path.is_file() and path.stat().st_size == self.nbytes and FileIdentity.of(path) == self

    @classmethod
    def of_pieces(cls, pieces: Iterable[Any], consume: Callable[[Any], object]) -> FileIdentity:
        """The identity of the file that the pieces make up; each is handed on to `consume`."""
        digest, nbytes = xxhash.xxh3_128(), 0
        for piece in pieces:
            digest.update(piece)
            nbytes += len(piece)
            consume(piece)
        return cls(nbytes, digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """config: text of the original config.json. files: all other files of the original directory, by name."""

    config: str
    files: Mapping[str, FileIdentity]

    def encode(self) -> bytes:
        files = {n: {"bytes": f.nbytes, "xxh3_128": f.xxh3_128} for n, f in sorted(self.files.items())}
        content = {"version": VERSION, "config": self.config, "files": files}
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Raises CheckpointError where there is no valid one."""
        path = directory / MANIFEST
        content = read_object(path)
        check_version(directory, content.get("version"))
        config, files = content.get("config"), content.get("files")
        if not isinstance(config, str) or not isinstance(files, dict):
            raise CheckpointError(f"{path}: is not a manifest; download or pack the model again")
        return cls(
            config=config, files={n: _identity(path, n, f) for n, f in cast(dict[str, Any], files).items()}
        )

    def packed_config(self) -> bytes:
        """config.json of the packed directory. Raises CheckpointError when the original is no JSON object."""
        try:
            config = json.loads(self.config)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{CONFIG}: not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise CheckpointError(f"{CONFIG}: not a JSON object")
        return json.dumps({**config, BLOCK: {"version": VERSION}}, indent=2).encode() + b"\n"


def read_pieces(path: Path) -> Iterator[bytes]:
    """A file's bytes. Raises CheckpointError when it cannot be read."""
    try:
        with open_regular(path) as file:
            while piece := file.read(READ_BYTES):
                yield piece
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _identity(path: Path, name: str, entry: Any) -> FileIdentity:
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    nbytes, digest = fields.get("bytes"), fields.get("xxh3_128")
    if (
        Path(name).name != name
        or not isinstance(nbytes, int)
        or nbytes < 0
        or not isinstance(digest, str)
        or not re.fullmatch("[0-9a-f]{32}", digest)
    ):
        raise CheckpointError(f"{path}: entry {name[:80]!r} is not valid; download or pack the model again")
    return FileIdentity(nbytes, digest)
