"""A few cases of each target of `scripts/fuzz`, and what the script itself promises."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from targets import TARGETS

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz"


CASES = {"templates": 5, "grammars": 20, "checkpoints": 200}
"""Of the slow ones."""


@pytest.mark.parametrize("name", TARGETS)
def test_some_cases(name):
    for case in range(CASES.get(name, 300)):
        TARGETS[name](random.Random(f"0/{name}/{case}"))


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def test_a_run_goes_on_from_the_last(tmp_path):
    state = tmp_path / "state.json"
    counts = []
    for _ in range(2):
        done = fuzz("--minutes", "0.0001", "--state", str(state), "json")
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(state.read_text())["json/0"])
    assert counts[1] > counts[0] > 0


def test_unknown_targets_are_named():
    done = fuzz("nothing")
    assert done.returncode == 2
    assert "no target nothing" in done.stderr
