"""POST /admin/tenants/forget: the pages of a tenant erased."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ForgetRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """tenant: its name; "" of a server without tenants. timeout_s: for engines to answer."""

    tenant: Annotated[str, Meta(max_length=64)]
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0

    def check(self) -> None:
        """All that the types allow is allowed."""


class ForgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """pages: that were erased, counted in each place where they were. engines: that have; silent: that have
    not answered in time, or cannot be reached."""

    tenant: str
    pages: int
    engines: int
    silent: int
