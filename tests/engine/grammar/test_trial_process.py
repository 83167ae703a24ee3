"""Trials by the helper of a process that starts no programs itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from firelane.sandbox.system import this_machine

EMBEDDED = Path(__file__).parents[3] / "firelane" / "models" / "embedded"
SCRIPT = """
import json, sys
from pathlib import Path
from firelane import env
from firelane.engine.grammar.trial_process import TrialHelper
from firelane.sandbox.confine import confine, forbid_programs

confine(env.read({"FIRELANE_CXX": "/nowhere"}), Path(sys.argv[2]), [Path(sys.argv[1])])
helper = TrialHelper.fork()
forbid_programs()

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.sandbox import Sandbox
from firelane.errors import RequestError
from firelane.wire.frames import Grammar

model, told = Path(sys.argv[1]), []


def try_out(limits, text):
    sandbox = Sandbox(model, 4096, limits, helper.start)
    try:
        sandbox.try_out(Grammar("regex", text))
        told.append("")
    except RequestError as error:
        told.append(str(error))
    return sandbox


one = try_out(GrammarLimits(trial_wall_s=600.0), "[a-z]+")
trial = one._process
one.close()
one.close()
told.append(one._process is None and trial.stdin.closed)
try_out(GrammarLimits(trial_wall_s=600.0, trial_bytes=1 << 20), "a").close()
again = try_out(GrammarLimits(trial_wall_s=600.0), "(")
told.append(again._process.has_ended)
again.close()
print(json.dumps(told))
"""


@pytest.mark.skipif(this_machine() is None, reason="there is no sandbox on this system")
def test_trials_of_a_process_that_starts_no_programs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(EMBEDDED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fine, closed, too_small, wrong, ended = json.loads(done.stdout)
    assert (fine, closed, ended) == ("", True, False)
    assert "simplify it" in too_small
    assert "the regular expression" in wrong
