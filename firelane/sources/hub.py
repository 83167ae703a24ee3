"""Models of the hub: a whole repository, or one of the GGUF files that it holds."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from firelane.errors import ModelNotFoundError
from firelane.sources.files import OF_A_MODEL
from firelane.weights.progress import Progress, silent

PART = re.compile(r"-\d{5}-of-\d{5}$")
NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""GGUF files that are not language models: of eyes, and of statistics."""


def download(hub_id: str, progress: Progress) -> Path:
    """The directory of the repository's files, of those that are needed. Raises ModelNotFoundError."""
    return _snapshot(hub_id, OF_A_MODEL, progress)


def download_config(hub_id: str) -> Path:
    """A directory with the repository's config.json alone. Raises ModelNotFoundError."""
    return _snapshot(hub_id, ["config.json"], silent)


def download_gguf(hub_id: str, name: str, progress: Progress) -> Path:
    """The (first) GGUF file of the repository whose name ends with `name`, such as Q4_K_M. Raises
    ModelNotFoundError, naming those that are there."""
    with _explained(hub_id):
        chosen = choose(hub_id, _listed(hub_id), name)
    return _snapshot(hub_id, chosen, progress) / chosen[0]


def choose(hub_id: str, files: Sequence[str], name: str) -> list[str]:
    """Of all files of a repository the one that is meant, or all its parts. Raises ModelNotFoundError."""
    parts: dict[str, list[str]] = {}
    for file in sorted(files):
        stem = PART.sub("", file.removesuffix(".gguf"))
        if file.endswith(".gguf") and not NO_MODEL.search(file):
            parts.setdefault(stem, []).append(file)
    ending = re.compile(rf"(^|[-._/]){re.escape(name)}$", re.IGNORECASE)
    found = [stem for stem in parts if ending.search(stem)]
    if len(found) == 1:
        return parts[found[0]]
    there = ", ".join(Path(stem).name for stem in found or parts)[:400] or "none"
    why = "several GGUF files end so" if found else "no GGUF file of the repository ends so"
    raise ModelNotFoundError(f"{hub_id}:{name}: {why}; there are: {there}")


def _listed(hub_id: str) -> list[str]:
    """Names of all files; where the hub cannot be reached, of those in its cache."""
    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return list_repo_files(hub_id)
    except (GatedRepoError, RepositoryNotFoundError):
        raise
    except Exception:  # of the network, of whichever library it is made of
        directory = Path(snapshot_download(hub_id, allow_patterns=["*.gguf"], local_files_only=True))
        return [str(path.relative_to(directory)) for path in directory.rglob("*.gguf")]


def _snapshot(hub_id: str, files: Sequence[str], progress: Progress) -> Path:
    from huggingface_hub import snapshot_download  # 0.3 s to import, and only needed here

    progress("download", 0, 1, "")
    with _explained(hub_id):
        directory = snapshot_download(hub_id, allow_patterns=list(files))
    progress("download", 1, 1, "")
    return Path(directory)


@contextmanager
def _explained(hub_id: str) -> Generator[None]:
    """The hub's errors in one line that says what to do."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"{hub_id}: access is restricted; accept its licence on the hub and log in with `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(f"{hub_id}: no such directory, and no such model on the hub") from error
    except LocalEntryNotFoundError as error:
        raise ModelNotFoundError(
            f"{hub_id}: no such directory, not in the hub's cache, and the hub cannot be reached "
            "(or HF_HUB_OFFLINE is set); connect, or download it elsewhere and give the directory"
        ) from error
    except OSError as error:
        raise ModelNotFoundError(f"{hub_id}: download failed: {str(error).splitlines()[0]}") from error
