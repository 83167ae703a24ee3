"""Options of `firelane engine` for its role, and for pages that travel to and from engines of other hosts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli import router_options
from firelane.cli.host_options import KEY_FILE, add_key_file
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.cli.engine_shares import EngineOptions
    from firelane.env import Environment


def add_pages(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "pages of other hosts", "pages of the KV cache that engines of one gateway have from each other"
    )
    group.add_argument(
        "--role",
        choices=("both", "prefill", "decode"),
        default="both",
        help="part of requests that gateways send here: prompts, what follows them, or both, the default "
        f"(others need {router_options.TRANSFER})",
    )
    router_options.add_transfer(
        group, f"exchange pages with engines of other hosts, which reach this one there (needs {KEY_FILE})"
    )
    add_key_file(group, "that all these engines share")


def with_pages(arguments: argparse.Namespace, options: EngineOptions, settings: Environment) -> EngineOptions:
    """The same engine with what the options of `add_pages` say. Raises UsageError."""
    import dataclasses

    import msgspec

    address: str | None = arguments.kv_transfer_address
    engine = msgspec.structs.replace(options.engine, role=arguments.role)
    remote = None
    if address is None:
        _check_apart(arguments)
    else:
        remote = router_options.page_exchange(address, arguments.cluster_key_file, engine, 1, settings)
        remote = router_options.with_cipher(remote, arguments.kv_transfer_cipher, arguments.kv_transport)
    if arguments.kv_transport == "nixl":
        engine = router_options.with_nixl(engine, remote)
    return dataclasses.replace(options, engine=engine, remote_peers=remote)


def _check_apart(arguments: argparse.Namespace) -> None:
    """Raises UsageError where there is no address for pages, but options that need one."""
    how = f"give {router_options.TRANSFER} IP:PORT, by which engines of other hosts reach this one"
    if arguments.role != "both":
        raise UsageError(
            f"--role {arguments.role}: pages travel between engines with roles; {how}, and {KEY_FILE} FILE "
            "with the secret that all of them share"
        )
    if arguments.cluster_key_file is not None:
        raise UsageError(f"{KEY_FILE} alone: it is for pages that travel; {how}")
