"""Models that other programs keep on this machine: found where they lie, and served from there as they are.

Ollama's blobs are GGUF files under their digests, which its manifests name; LM Studio and llama.cpp keep GGUF
files under their own names; the hub's library keeps snapshots of repositories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firelane.env import ModelPlaces
from firelane.sources.files import GGUF_PART, NO_MODEL, PART, gguf_parts

REGISTRY, LIBRARY, LATEST = "registry.ollama.ai", "library", "latest"
MODEL_LAYER = "application/vnd.ollama.image.model"
ADAPTER_LAYER = "application/vnd.ollama.image.adapter"
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*")
MOST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model on this machine. name: as every command takes it. source: its file, directory or hub id.
    keeper: the program whose it is. changed_s: by the file's time."""

    name: str
    source: str
    keeper: str
    nbytes: int
    changed_s: float


def found_models(places: ModelPlaces) -> list[FoundModel]:
    """All of them, by name. What cannot be read is passed over."""
    every = [
        *_of_hub(places.hub),
        *(one for root in places.ollama for one in _of_ollama(root)),
        *(one for root in places.lm_studio for one in _of_files(root, "LM Studio")),
        *_of_files(places.llama_cpp, "llama.cpp"),
    ]
    unique = {(one.name, one.source): one for one in every}
    return sorted(unique.values(), key=lambda one: (one.name.lower(), one.keeper))


def find(name: str, places: ModelPlaces) -> Path | None:
    """The GGUF file of a model that Ollama, LM Studio or llama.cpp keeps by this name."""
    for root in places.ollama:
        blob = ollama_blob(root, name)
        if blob is not None:
            return blob
    if not PLAIN.fullmatch(name):
        return None
    roots = [*places.lm_studio, places.llama_cpp]
    return next((path for root in roots for path in _gguf_files(root) if _stem(path) == name), None)


def ollama_blob(root: Path, name: str) -> Path | None:
    """The file of a model of Ollama. name: NAME[:TAG], or HOST/OWNER/NAME[:TAG]."""
    whole, _, tag = name.partition(":")
    parts = whole.split("/")
    if len(parts) == 1:
        parts = [REGISTRY, LIBRARY, *parts]
    if len(parts) != 3 or not all(PLAIN.fullmatch(part) for part in (*parts, tag or LATEST)):
        return None
    return _blob_of(root, root.joinpath("manifests", *parts, tag or LATEST))


def _blob_of(root: Path, manifest: Path) -> Path | None:
    """The weights' file of a model that is one GGUF file, as most are."""
    try:
        if manifest.stat().st_size > MOST_MANIFEST_BYTES:
            return None
        layers: Any = json.loads(manifest.read_bytes())["layers"]
        kinds = [layer["mediaType"] for layer in layers]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == MODEL_LAYER]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    digest = DIGEST.fullmatch(str(digests[0])) if len(digests) == 1 else None
    if digest is None or ADAPTER_LAYER in kinds:
        return None
    blob = root / "blobs" / f"sha256-{digest[1]}"
    return blob if is_blob(blob) else None


def is_blob(path: Path) -> bool:
    """Whether it is a GGUF file that Ollama keeps under its digest."""
    if not path.name.startswith("sha256-"):
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _of_ollama(root: Path) -> Iterator[FoundModel]:
    manifests = root / "manifests"
    for manifest in _sorted(manifests.glob("*/*/*/*")):
        host, owner, name, tag = manifest.relative_to(manifests).parts
        blob = _blob_of(root, manifest)
        if blob is not None:
            short = (
                f"{name}:{tag}" if (host, owner) == (REGISTRY, LIBRARY) else f"{host}/{owner}/{name}:{tag}"
            )
            yield _found(short, str(blob), "Ollama", [blob])


def _of_files(root: Path, keeper: str) -> Iterator[FoundModel]:
    for path in _gguf_files(root):
        parts = [path.with_name(name) for name in gguf_parts(path.name)]
        if all(part.is_file() for part in parts):
            yield _found(_stem(path), str(path), keeper, parts)


def _of_hub(root: Path) -> Iterator[FoundModel]:
    for repository in _sorted(root.glob("models--*--*")):
        hub_id = repository.name.removeprefix("models--").replace("--", "/", 1)
        try:
            snapshot = repository / "snapshots" / (repository / "refs" / "main").read_text().strip()
        except OSError:
            continue
        weights = _sorted(snapshot.glob("*.safetensors"))
        if weights and (snapshot / "config.json").is_file():
            yield _found(hub_id, hub_id, "hub", weights)
        for path in _gguf_files(snapshot):
            parts = [path.with_name(name) for name in gguf_parts(path.name)]
            if all(part.is_file() for part in parts):
                name = f"{hub_id}:{_stem(path)}"
                yield _found(name, name, "hub", parts)


def _gguf_files(root: Path) -> Iterator[Path]:
    """Models' files below a directory; of a split one the first."""
    for path in _sorted(root.rglob("*.gguf")):
        split = GGUF_PART.fullmatch(path.name)
        if path.is_file() and not NO_MODEL.search(path.name) and (split is None or int(split["number"]) == 1):
            yield path


def _stem(path: Path) -> str:
    return PART.sub("", path.stem)


def _found(name: str, source: str, keeper: str, files: Iterable[Path]) -> FoundModel:
    stats = [path.stat() for path in files]
    return FoundModel(
        name=name,
        source=source,
        keeper=keeper,
        nbytes=sum(one.st_size for one in stats),
        changed_s=max(one.st_mtime for one in stats),
    )


def _sorted(paths: Iterable[Path]) -> list[Path]:
    """Nothing of a directory that cannot be read."""
    try:
        return sorted(paths)
    except OSError:
        return []
