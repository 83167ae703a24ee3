"""Groups that the help of commands tells the options of engines in."""

from __future__ import annotations

from firelane.options import Group

ENGINE = Group("engine", "engine")
PAGES = Group(
    "pages", "pages of other hosts", "pages of the KV cache that engines have from those of other servers"
)
