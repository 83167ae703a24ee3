"""Show what the cache holds: models of object stores, and packed weights. Erase a tenant's pages."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.env import Environment
    from firelane.sources.entries import CacheEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listed = kinds.add_parser("list", help="all entries, those used longest ago first")
    listed.set_defaults(run_cache=_list)
    forget = kinds.add_parser("forget-tenant", help="erase a tenant's pages of the KV cache, in all tiers")
    forget.add_argument("name", metavar="NAME", help="of the tenant; '' of a server without tenants")
    forget.add_argument(
        "--kv-disk",
        type=Path,
        metavar="DIR",
        help="erase them from this directory's files that no engine uses",
    )
    forget.add_argument(
        "--kv-disk-key-file", type=Path, metavar="FILE", help="as the servers that wrote there had it"
    )
    node_client.add_optional_server(forget)
    forget.set_defaults(run_cache=_forget_tenant)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    return arguments.run_cache(arguments, environment)


def _forget_tenant(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    if arguments.url is None and arguments.kv_disk is None:
        raise UsageError(
            "say with --url which server is to erase them, or with --kv-disk which files have them"
        )
    complete = arguments.url is None or _forget_at_server(arguments)
    return 0 if (arguments.kv_disk is None or _forget_in_files(arguments)) and complete else 1


def _forget_at_server(arguments: argparse.Namespace) -> bool:
    """Whether all engines have."""
    answer = node_client.forget_tenant(arguments)
    print(f"{arguments.url}: {answer['engines']} engines erased {answer['pages']} pages")
    if answer["silent"]:
        print(f"{arguments.url}: {answer['silent']} engines have not answered", file=sys.stderr)
    return not answer["silent"]


def _forget_in_files(arguments: argparse.Namespace) -> bool:
    """Whether all files could be looked at."""
    from firelane.kv.tiers.encrypted import read_secret
    from firelane.kv.tiers.erase import erase_tenant
    from firelane.server.start_lines import size_text

    key_file = arguments.kv_disk_key_file
    secret = None if key_file is None else read_secret(key_file)
    erased = erase_tenant(arguments.kv_disk.expanduser(), arguments.name, secret)
    print(f"{arguments.kv_disk}: erased {erased.pages} pages, {size_text(erased.nbytes)}")
    for path, why in erased.left.items():
        print(f"{path}: left as it is: {why}", file=sys.stderr)
    return not erased.left


def _list(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.server.start_lines import size_text
    from firelane.sources.cache import NodeCache

    del arguments
    entries = NodeCache(environment.cache_dir).entries()
    print(f"{'SIZE':>12}  {'USED':16}  {'WHAT':7}  SOURCE")
    for entry in entries:
        print(_line(entry))
    print(f"{size_text(sum(entry.nbytes for entry in entries)):>12}  in {environment.cache_dir}")
    return 0


def _line(entry: CacheEntry) -> str:
    from firelane.server.start_lines import size_text

    used = datetime.fromtimestamp(entry.used_s).strftime("%Y-%m-%d %H:%M")
    kind = "weights" if entry.is_packed else "model"
    return f"{size_text(entry.nbytes):>12}  {used:16}  {kind:7}  {entry.source or entry.path}"
