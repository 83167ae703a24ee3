"""Programs of configs. Families are looked up once in a process: a server does so once, too."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from firelane.models import registry
from firelane.program.program import Program

MODULES = functools.cache(registry._modules)


def load_program(config: Mapping[str, Any]) -> Program:
    with patch.object(registry, "_modules", MODULES):
        return registry.load_program(config)
