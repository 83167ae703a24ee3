"""The role of an engine, and pages that travel to and from engines of other hosts: what options say of
them."""

from __future__ import annotations

import dataclasses

from firelane.env import Environment
from firelane.errors import UsageError
from firelane.options import Values, fields
from firelane.server.engine_shares import EngineOptions
from firelane.server.options.router import TRANSFER, PageExchange, page_exchange, with_nixl

KEY_FILE = "--cluster-key-file"


def with_pages(values: Values, options: EngineOptions, settings: Environment) -> EngineOptions:
    """The same engine with the exchange of pages that options give. Raises UsageError."""
    exchange = PageExchange(**fields(PageExchange, values))
    remote = None
    if exchange.address is None:
        _check_apart(exchange, options.engine.role)
    else:
        remote = page_exchange(exchange, options.engine, 1, settings)
    return dataclasses.replace(options, engine=with_nixl(options.engine, remote), remote_peers=remote)


def _check_apart(exchange: PageExchange, role: str) -> None:
    """Raises UsageError where there is no address for pages, but options that need one."""
    how = f"give {TRANSFER} IP:PORT, by which engines of other hosts reach this one"
    if role != "both":
        raise UsageError(
            f"--role {role}: pages travel between engines with roles; {how}, and {KEY_FILE} FILE "
            "with the secret that all of them share"
        )
    if exchange.key_file is not None:
        raise UsageError(f"{KEY_FILE} alone: it is for pages that travel; {how}")
