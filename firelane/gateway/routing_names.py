"""Names of the routing policies, for options: nothing else is imported with them."""

from __future__ import annotations

LEAST_TOKENS, PAGE_AWARE = "least-tokens", "page-aware"
ROUTING = (LEAST_TOKENS, "least-requests", "random", "affinity", PAGE_AWARE, "least-time")
"""Policies that choose one of several engines; engines.policies has them."""
