"""Models of the hub: a whole repository, or one of the GGUF files that it holds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from firelane.errors import ModelNotFoundError
from firelane.sources.files import OF_A_MODEL, choose
from firelane.sources.hub_cache import remove_leftovers
from firelane.weights.progress import Progress, silent

LOGIN = "log in with `hf auth login`"
PASSING = (408, 429)
"""Answers that tell of a limit, which passes, like those from 500 on."""


def download(hub_id: str, progress: Progress) -> Path:
    """The directory of the repository's files, of those that are needed. Raises ModelNotFoundError."""
    return _snapshot(hub_id, OF_A_MODEL, progress)


def download_config(hub_id: str) -> Path:
    """A directory with the repository's config.json, and the file that may say how its weights are quantised.
    Raises ModelNotFoundError."""
    return _snapshot(hub_id, ["config.json", "hf_quant_config.json"], silent)


def download_gguf(hub_id: str, name: str, progress: Progress) -> Path:
    """The (first) GGUF file of the repository whose name ends with `name`, such as Q4_K_M. Raises
    ModelNotFoundError, naming those that are there."""
    with _explained(hub_id):
        chosen = choose(hub_id, _listed(hub_id), name)
    return _snapshot(hub_id, chosen, progress) / chosen[0]


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
    remove_leftovers(hub_id)
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
            f"{hub_id}: access is restricted; accept its licence on the hub and {LOGIN}"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"{hub_id}: no such directory, and no such model on the hub, or it is private: {LOGIN}"
        ) from error
    except LocalEntryNotFoundError as error:
        if why := _passing(error.__cause__):
            raise ModelNotFoundError(f"{hub_id}: is not in the hub's cache, and {why}") from error
        raise ModelNotFoundError(
            f"{hub_id}: no such directory, not in the hub's cache, and the hub cannot be reached "
            "(or HF_HUB_OFFLINE is set); connect, or download it elsewhere and give the directory"
        ) from error
    except OSError as error:
        if _status(error) == 401:
            raise ModelNotFoundError(
                f"{hub_id}: the hub refuses the token (HF_TOKEN, or of an earlier login): {LOGIN}"
            ) from error
        raise ModelNotFoundError(f"{hub_id}: download failed: {str(error).splitlines()[0]}") from error


def _passing(error: BaseException | None) -> str:
    """The hub's answer in words, where it answered, and another time may answer otherwise."""
    status = _status(error)
    if status in PASSING:
        return f"the hub limits the number of requests: try again later, or {LOGIN}"
    return f"the hub fails ({status}): try again later" if status >= 500 else ""


def _status(error: BaseException | None) -> int:
    """The status of the hub's answer; 0 where there is none."""
    from huggingface_hub.errors import HfHubHTTPError

    return error.response.status_code if isinstance(error, HfHubHTTPError) else 0
