"""scripts/fuzz_checkpoints.py: some of its seeds, and going on where it stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_checkpoints.py"


def test_seeds_are_read_or_refused_and_a_run_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for end in (60, 120):
        command = [sys.executable, str(SCRIPT), "--count", "60", "--state", str(state)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "60 checkpoints, 0 findings\n"), (
            done.stdout + done.stderr
        )
        assert state.read_text() == str(end)
