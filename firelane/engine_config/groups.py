"""Groups that the help of commands tells the options of engines in."""

from __future__ import annotations

from firelane.options import Group

ENGINE = Group("engine", "engine", common=True)
ADAPTERS = Group("adapters", "low-rank adapters")
CARE = Group("care", "care of engines")
HOSTS = Group(
    "hosts",
    "several hosts",
    "ranks of one engine on several hosts' CPUs; the first has the engine and the server",
)
TIERS = Group("tiers", "tiers of the KV cache", "where pages lie that it has no room for (docs/kv-tiers.md)")
PAGES = Group(
    "pages", "pages of other hosts", "pages of the KV cache that engines have from those of other servers"
)
