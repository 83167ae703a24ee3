"""Make API keys, and the entries of the file that `serve --api-keys` reads.

The file holds only hashes: a key is shown once, when it is made.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = kinds.add_parser("new", help="make a key; prints it once, and a tenant's entry for the key file")
    new.add_argument("name", metavar="NAME", help="the tenant's name, as metrics and logs show it")
    new.set_defaults(run_keys=_new)
    known = kinds.add_parser("hash", help="hash a key that exists, read from standard input")
    known.set_defaults(run_keys=_hash)


def run(arguments: argparse.Namespace, environment: Environment) -> int:  # noqa: ARG001
    return arguments.run_keys(arguments)


def _new(arguments: argparse.Namespace) -> int:
    from firelane.gateway.tenants.keyfile import check_name, hashed, new_key

    check_name(arguments.name)
    key = new_key()
    print(f"key of {arguments.name}, shown only now: {key}", file=sys.stderr)
    print(f'[tenants."{arguments.name}"]\nkeys = ["{hashed(key)}"]')
    return 0


def _hash(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    from firelane.gateway.tenants.keyfile import hashed

    print(hashed(sys.stdin.readline().strip()))
    return 0
