"""Prices of tokens: a small TOML or JSON file, read again on SIGHUP. docs/tenants.md describes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from firelane.errors import UsageError
from firelane.gateway.tenants.keyfile import load

log = logging.getLogger(__name__)
MILLION = 1_000_000
ANY_MODEL = "*"
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For a million tokens. cached_input: of a prompt's tokens that came from the prefix cache; None: as
    input.
    """

    input: Amount = 0.0
    cached_input: Amount | None = None
    output: Amount = 0.0

    def cost(self, prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> float:
        """cached_tokens: those among prompt_tokens."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + generated_tokens * self.output) / MILLION


FREE = Price()


class PriceFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    models: dict[str, Price]


class Prices:
    """Prices by served name, else those of `*`, else nothing is charged."""

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError on a file that cannot be used."""
        self._path = path
        self._models = {} if path is None else _read(path)

    def of(self, names: tuple[str, ...]) -> Price:
        """The price of the first of a model's names that has one."""
        for name in (*names, ANY_MODEL):
            if name in self._models:
                return self._models[name]
        return FREE

    def reload(self) -> None:
        """Never raises; a file that cannot be used leaves the old prices."""
        if self._path is None:
            return
        try:
            self._models = _read(self._path)
        except UsageError as error:
            log.error("prices_not_reloaded the old ones stay: %s", error)
            return
        log.info("prices_reloaded models=%d", len(self._models))


def _read(path: Path) -> dict[str, Price]:
    file: PriceFile = load(path, PriceFile)
    return file.models
