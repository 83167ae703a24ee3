"""Tiers of the KV cache: where pages lie that it has no room for."""

from pathlib import Path
from typing import Annotated

import msgspec

from firelane import options
from firelane.engine_config.groups import TIERS
from firelane.errors import UsageError
from firelane.options import Option

KV_ADMISSIONS = ("always", "reuse")
GIB = 1 << 30


class TiersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers of an engine's KV cache. disk: the directory of files of disk_bytes. engines: those that share
    the directory. tenant_bytes: None: all."""

    host_bytes: Annotated[
        int,
        Option(
            "host memory in GiB for pages that the KV cache has no room for, of all engines of a model",
            TIERS,
            flag="kv-offloading-size",
            metavar="GIB",
            unit="GiB",
            default="none",
            see="kv-tiers.md",
        ),
    ] = 0
    disk: Annotated[
        Path | None,
        Option(
            "directory on a local drive for pages, which the next engine finds there",
            TIERS,
            flag="kv-disk",
            metavar="DIR",
            default="none",
            see="kv-tiers.md",
        ),
    ] = None
    disk_bytes: Annotated[
        int,
        Option(
            "GiB of the files in it, of all engines of a model",
            TIERS,
            flag="kv-disk-size",
            metavar="GIB",
            unit="GiB",
        ),
    ] = 16 * GIB
    disk_key_file: Annotated[
        Path | None,
        Option(
            "a secret of at least 32 random bytes, by which pages on the drive are encrypted; needs "
            "firelane[encryption]",
            TIERS,
            flag="kv-disk-key-file",
            default="they are not",
            see="kv-tiers.md#encryption",
        ),
    ] = None
    engines: int = 1
    tenant_bytes: Annotated[
        int | None,
        Option(
            "the most GiB that pages of one tenant take of a tier; beyond it they make room for each other",
            TIERS,
            flag="kv-tenant-size",
            file=True,
            metavar="GIB",
            unit="GiB",
            default="all",
        ),
    ] = None
    admission: Annotated[
        str,
        Option(
            "pages that tiers store: all, or those that are used a second time",
            TIERS,
            flag="kv-admission",
            file=True,
            choices=KV_ADMISSIONS,
        ),
    ] = "always"

    def __post_init__(self) -> None:
        if self.engines < 1:
            raise UsageError("the number of engines that have tiers is 1 or more")
        options.check(self)
        if self.disk is None:
            self._check_about("--kv-disk", "disk_bytes", "disk_key_file")
            if not self.host_bytes:
                self._check_about("--kv-offloading-size or --kv-disk", "tenant_bytes", "admission")
                raise UsageError("tiers without host_bytes or disk: say where pages are to lie")

    def _check_about(self, needed: str, *names: str) -> None:
        """Raises UsageError for an option about what is not there."""
        for one in options.declared(type(self)):
            if one.field in names and getattr(self, one.field) != one.default:
                raise UsageError(f"{one.name} is about tiers of the KV cache: give it {needed}, too")

    @property
    def option(self) -> str:
        """The option that asks for a tier, as it is given."""
        if self.host_bytes:
            return f"--kv-offloading-size {self.host_bytes / GIB:g}"
        return f"--kv-disk {self.disk} --kv-disk-size {self.disk_bytes / GIB:g}"

    def share(self, number: int) -> "TiersConfig":
        """The tiers of one of so many engines."""
        sizes = ("host_bytes", "tenant_bytes", *(("disk_bytes",) if self.disk is not None else ()))
        shares = {name: size and max(1, size // number) for name in sizes for size in [getattr(self, name)]}
        return msgspec.structs.replace(self, engines=number, **shares)
