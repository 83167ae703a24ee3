"""Options for tiers of the KV cache."""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.cli.options import GIB, positive_float
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.engine_config import TiersConfig

DEFAULT_DISK_GIB = 16.0
TIER = "--kv-offloading-size or --kv-disk"


def add_tiers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "tiers of the KV cache", "where pages lie that it has no room for (docs/kv-tiers.md)"
    )
    group.add_argument(
        "--kv-offloading-size",
        type=positive_float,
        metavar="GIB",
        help="host memory for pages that the KV cache has no room for, of all engines of a model (default: "
        "none)",
    )
    group.add_argument(
        "--kv-disk",
        type=Path,
        metavar="DIR",
        help="directory on a local drive for pages, which the next engine finds there (default: none)",
    )
    group.add_argument(
        "--kv-disk-size",
        type=positive_float,
        metavar="GIB",
        help="of the files in it, of all engines of a model (default: 16)",
    )
    group.add_argument(
        "--kv-disk-key-file",
        type=Path,
        metavar="FILE",
        help="with a secret of at least 32 random bytes, by which pages on the drive are encrypted; needs "
        "firelane[encryption] (default: they are not)",
    )
    group.add_argument(
        "--kv-tenant-size",
        type=positive_float,
        metavar="GIB",
        help="the most that pages of one tenant take of a tier; beyond it they make room for each other "
        "(default: all)",
    )
    group.add_argument(
        "--kv-admission",
        choices=("always", "reuse"),
        default="always",
        help="pages that tiers store: all, or those that are used a second time (default: %(default)s)",
    )


def tiers_config(arguments: argparse.Namespace) -> TiersConfig | None:
    """Options of `add_tiers` as a config; None without a tier. Raises UsageError."""
    from firelane.engine_config import TiersConfig

    size, disk, tenant = arguments.kv_offloading_size, arguments.kv_disk, arguments.kv_tenant_size
    _check_together(arguments)
    if size is None and disk is None:
        return None
    disk_size = DEFAULT_DISK_GIB if arguments.kv_disk_size is None else arguments.kv_disk_size
    key_file = arguments.kv_disk_key_file
    return TiersConfig(
        host_bytes=0 if size is None else max(1, int(size * GIB)),
        disk=None if disk is None else _directory(disk),
        disk_bytes=0 if disk is None else max(1, int(disk_size * GIB)),
        disk_key_file=None if key_file is None else key_file.expanduser().absolute(),
        tenant_bytes=None if tenant is None else max(1, int(tenant * GIB)),
        admission=arguments.kv_admission,
    )


def _check_together(arguments: argparse.Namespace) -> None:
    """Raises UsageError for an option about what is not there."""
    has_disk = arguments.kv_disk is not None
    has_tier = has_disk or arguments.kv_offloading_size is not None
    for is_there, name, given, needed in (
        (has_disk, "--kv-disk-size", arguments.kv_disk_size is not None, "--kv-disk"),
        (has_disk, "--kv-disk-key-file", arguments.kv_disk_key_file is not None, "--kv-disk"),
        (has_tier, "--kv-tenant-size", arguments.kv_tenant_size is not None, TIER),
        (has_tier, "--kv-admission", arguments.kv_admission != "always", TIER),
    ):
        if given and not is_there:
            raise UsageError(f"{name} is about tiers of the KV cache: give it {needed}, too")


def _directory(path: Path) -> Path:
    """A directory that nobody else writes to, made where it is not there. Raises UsageError."""
    path = path.expanduser().absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UsageError(f"--kv-disk {path}: {error.strerror or error}") from None
    # Its group may: volumes of Kubernetes belong to root and the pod's fsGroup.
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise UsageError(
            f"--kv-disk {path}: other users can put pages there; chmod o-w it, or take a directory of "
            "your own"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--kv-disk {path}: it cannot be written to; take another one")
    return path
