"""On a device, too, a decoded token and a prompt's token must be summed up in the same order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)  # the first run compiles
def test_a_rows_scores_lie_alike_in_both_paths(pytestconfig: pytest.Config) -> None:
    cache = pytestconfig.cache.mkdir("firelane-triton")
    environment = {"TRITON_CACHE_DIR": str(cache), **os.environ}
    command = [sys.executable, "-m", "tests.backends.cuda.score_layouts"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    layouts = json.loads(result.stdout)
    shapes = {name.removeprefix("attend_splits ") for name in layouts if name.startswith("attend_splits ")}
    assert shapes
    for shape in shapes:
        decoded, tiles = layouts[f"attend_splits {shape}"], layouts[f"attend_tiles {shape}"]
        assert len(decoded) == 1, shape
        assert decoded == tiles, shape
