"""What `scripts/fuzz` tries: a target makes one input of a random generator and gives it to the code under
test. It raises where that broke a promise; the errors that the code promises are caught by it.

To add one: write the function, add it to TARGETS.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import checkpoint_target
import grammar_target
import http_target
import json_target
import template_target

TARGETS: dict[str, Callable[[random.Random], None]] = {
    "http": http_target.run,
    "json": json_target.run,
    "checkpoints": checkpoint_target.run,
    "templates": template_target.run,
    "grammars": grammar_target.run,
}
