"""From what a user types to a model directory: the embedded model, a local directory, or a hub id to
download.

What reads weights is imported where a model is fetched or made: a directory needs none of it, and a command
that has an engine process does without it.
"""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

from firelane import env
from firelane.errors import ModelNotFoundError
from firelane.sources.hub import download, download_gguf
from firelane.sources.names import source_of
from firelane.sources.others import is_blob
from firelane.stores.address import StoreAddress, is_address, parse
from firelane.stores.client import ObjectStore
from firelane.weights.progress import Progress, silent

EMBEDDED = Path(__file__).parent.parent / "models" / "embedded"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
FILE_NAME = re.compile(r"[\w.-]+")


def resolve(
    model: str | None,
    *,
    progress: Progress = silent,
    cache_dir: Path | None = None,
    whole: bool = False,
) -> Path:
    """The directory of `model`: None is the embedded model, then a local directory, a GGUF file, or a hub id,
    which may name one of several GGUF files (owner/name:Q4_K_M), or the address of an object store; or a name
    that stands for one of these (names.source_of).
    cache_dir: of what is fetched and made, None: as the environment says. whole: with the weights of a model
    in an object store, which else are read from there when they are wanted.

    A hub id is looked up online, and in the hub's cache alone when HF_HUB_OFFLINE is set or the hub cannot be
    reached. Raises ModelNotFoundError or StoreError, saying what to do.
    """
    if model is None:
        return _checked(EMBEDDED)
    if not model.strip():
        raise ModelNotFoundError(f"{model!r} names no model: give a directory, a .gguf file, or a hub id")
    model = source_of(model)
    if is_address(model):
        return _of_store(parse(model), cache_dir, progress, whole=whole)
    path = Path(model).expanduser()
    mode = _mode(model, path)
    if stat.S_ISDIR(mode):
        return _checked(path)
    from firelane.sources.gguf import is_gguf, model_directory

    if is_gguf(path) or (mode and is_blob(path)):
        return model_directory(path, cache_dir or env.read().cache_dir)
    if mode:
        raise ModelNotFoundError(f"{model}: is a file; give a .gguf file, or the directory with config.json")
    hub_id, _, name = model.partition(":")
    if not HUB_ID.fullmatch(hub_id) or (":" in model and not FILE_NAME.fullmatch(name)):
        raise ModelNotFoundError(
            f"{model}: no such directory; give a model directory, a .gguf file, a hub id (owner/name, "
            "owner/name:Q4_K_M), or a name that `firelane list` tells"
        )
    if name:
        return model_directory(download_gguf(hub_id, name, progress), cache_dir or env.read().cache_dir)
    return _checked(download(model, progress))


def _mode(model: str, path: Path) -> int:
    """The kind of a file, 0 where there is none, or none can be named so. Raises ModelNotFoundError where
    that is not told."""
    try:
        return path.stat().st_mode
    except ValueError:
        return 0
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return 0
        raise ModelNotFoundError(f"{model}: cannot be read ({error.strerror}): make it readable") from error


def _of_store(address: StoreAddress, cache_dir: Path | None, progress: Progress, *, whole: bool) -> Path:
    from firelane.sources.cache import NodeCache
    from firelane.sources.entries import GIB
    from firelane.sources.gguf import is_gguf, model_directory

    settings = env.read()
    directory, limit_bytes = cache_dir or settings.cache_dir, int(settings.cache_limit_gib * GIB)
    cache = NodeCache(directory, limit_bytes=limit_bytes)
    if is_gguf(Path(address.path)):
        store = ObjectStore(address.parent, allow_http=settings.allow_http)
        return model_directory(cache.gguf_file(store, address.name, progress=progress), directory)
    store = ObjectStore(address, allow_http=settings.allow_http)
    return cache.model_directory(store, whole=whole, allow_http=settings.allow_http, progress=progress)


def _checked(directory: Path) -> Path:
    if not stat.S_ISREG(_mode(str(directory), directory / "config.json")):
        raise ModelNotFoundError(
            f"{directory}: no config.json; give a model directory in Hugging Face layout"
        )
    return directory
