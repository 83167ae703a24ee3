"""Names of the routing policies, for options: nothing else is imported with them."""

from __future__ import annotations

LEAST_TOKENS = "least-tokens"
ROUTING = (LEAST_TOKENS, "least-requests", "random", "affinity", "page-aware", "least-time")
"""Policies that choose one of several engines; engines.policies has them."""
