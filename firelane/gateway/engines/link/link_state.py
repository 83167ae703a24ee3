"""The states of a connection to an engine."""

from __future__ import annotations

import enum


class LinkState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    STANDBY = "standby"
    DEAD = "dead"
