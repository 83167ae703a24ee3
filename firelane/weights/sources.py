"""From what a user types to a model directory: the embedded model, a local directory, or a hub id to
download.
"""

from __future__ import annotations

import re
from pathlib import Path

from firelane.errors import ModelNotFoundError
from firelane.weights.progress import Progress, silent

EMBEDDED = Path(__file__).parent.parent / "models" / "embedded"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# Nothing else is fetched: no pickled weights, no code.
HUB_FILES = [
    "config.json",
    "firelane_lossless.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tiktoken.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
]


def resolve(model: str | None, *, progress: Progress = silent) -> Path:
    """The directory of `model`: None is the embedded model, then a local directory, then a hub id.

    A hub id is looked up online, and in the hub's cache alone when HF_HUB_OFFLINE is set or the hub cannot be
    reached. Raises ModelNotFoundError saying what to do.
    """
    if model is None:
        return _checked(EMBEDDED)
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.exists():
        raise ModelNotFoundError(f"{model}: is a file; give the directory that holds config.json")
    if not HUB_ID.fullmatch(model):
        raise ModelNotFoundError(
            f"{model}: no such directory; give a model directory or a hub id (owner/name)"
        )
    return _checked(_download(model, progress))


def _checked(directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(
            f"{directory}: no config.json; give a model directory in Hugging Face layout"
        )
    return directory


def _download(hub_id: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download  # 0.3 s to import, and only needed here
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    progress("download", 0, 1, "")
    try:
        directory = snapshot_download(hub_id, allow_patterns=HUB_FILES)
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
    progress("download", 1, 1, "")
    return Path(directory)
