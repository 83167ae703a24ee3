"""Sources of models, as far as this machine has them: what a model's files are before anything is fetched."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import CacheError, ModelNotFoundError
from firelane.sources import hub_cache, remote
from firelane.sources.cache import NodeCache
from firelane.sources.gguf import model_directory
from firelane.sources.names import source_of
from firelane.sources.resolve import FILE_NAME, HUB_ID, resolve
from firelane.stores.address import is_address, parse


@dataclass(frozen=True)
class ModelSource:
    """The name that a user calls a model by; of a short name or an alias, what it means. Directories and GGUF
    files of this machine are always here; models of the hub and of object stores come when they are pulled.
    """

    text: str | None
    cache_dir: Path

    def __post_init__(self) -> None:
        if self.text is not None:
            object.__setattr__(self, "text", source_of(self.text))

    @property
    def is_address(self) -> bool:
        return self.text is not None and is_address(self.text)

    @property
    def hub_id(self) -> str:
        """Its repository; "" of other sources."""
        text = self.text
        if text is None or self.is_address or Path(text).expanduser().exists():
            return ""
        hub_id, colon, name = text.partition(":")
        is_id = HUB_ID.fullmatch(hub_id) and (not colon or FILE_NAME.fullmatch(name))
        return hub_id if is_id else ""

    @property
    def is_pulled(self) -> bool:
        """Whether it may have to be fetched."""
        return self.is_address or bool(self.hub_id)

    def locate(self) -> Path | None:
        """The model's directory; None where its files are not here. The store of what is here is asked for a
        newer version, the hub is not. Raises ModelError, CacheError."""
        if self.text is not None and self.is_address:
            known = remote.newest(str(parse(self.text)), self.cache_dir / "models")
            return None if known is None else resolve(self.text, cache_dir=self.cache_dir)
        if not self.hub_id:
            return resolve(self.text, cache_dir=self.cache_dir)
        if not self.gguf_name:
            return hub_cache.whole_model(self.hub_id)
        file = hub_cache.whole_gguf(self.hub_id, self.gguf_name)
        return None if file is None else model_directory(file, self.cache_dir)

    @property
    def gguf_name(self) -> str:
        return (self.text or "").partition(":")[2] if self.hub_id else ""

    def is_there(self) -> bool:
        """Whether the files are here, as far as that can be told without reading them, or asking anybody."""
        if self.text is not None and self.is_address:
            return remote.newest(str(parse(self.text)), self.cache_dir / "models") is not None
        if not self.hub_id:
            return True
        if self.gguf_name:
            return hub_cache.whole_gguf(self.hub_id, self.gguf_name) is not None
        return hub_cache.whole_model(self.hub_id) is not None

    def remove(self) -> int:
        """Take away what was fetched and packed; returns how many bytes. Raises CacheError."""
        directory = None if self.is_address else self.locate()
        freed = 0
        with contextlib.suppress(ModelNotFoundError):  # nothing was packed, or fetched from a store
            freed += sum(
                entry.nbytes for entry in NodeCache(self.cache_dir).remove(str(directory or self.text))
            )
        try:
            return freed + self._remove_from_hub()
        except OSError as error:
            raise CacheError(f"{self.text}: cannot be removed: {error.strerror}") from error

    def _remove_from_hub(self) -> int:
        if not self.hub_id or not hub_cache.repository(self.hub_id).is_dir():
            return 0
        if not self.gguf_name:
            return hub_cache.remove(self.hub_id)
        file = hub_cache.whole_gguf(self.hub_id, self.gguf_name)
        return 0 if file is None else hub_cache.remove(self.hub_id, file)
