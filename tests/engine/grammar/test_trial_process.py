"""Trials by the helper of a process that starts no programs itself."""

from __future__ import annotations

import ast
import json
import signal
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
from firelane.child_process import Replacements
from firelane.engine.grammar.trial_process import fork_trials
from firelane.sandbox.confine import confine, serve_only

confine(env.read({"FIRELANE_CXX": "/nowhere"}), Path(sys.argv[2]), [Path(sys.argv[1])])
replaced = Replacements()
helper = fork_trials(replaced)
serve_only()

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.sandbox import Sandbox
from firelane.errors import RequestError
from firelane.wire.frames import Grammar

model, told = Path(sys.argv[1]), []


def try_out(limits, text):
    sandbox = Sandbox(model, 4096, limits, helper.connected, replaced)
    try:
        sandbox.try_out(Grammar("regex", text))
        told.append("")
    except RequestError as error:
        told.append(str(error))
    return sandbox


one = try_out(GrammarLimits(trial_wall_s=600.0), "[a-z]+")
trial = one.worker.child
one.close()
one.close()
told.append(one.worker.child is None and trial.has_ended)
try_out(GrammarLimits(trial_wall_s=600.0, trial_bytes=1 << 20), "a").close()
again = try_out(GrammarLimits(trial_wall_s=600.0), "(")
told.append(again.worker.child.has_ended)
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


LOST = """
import os, signal, sys, threading, time
from pathlib import Path
from firelane import env
from firelane.child_process import Replacements, nursery, worker
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.sandbox import Sandbox
from firelane.engine.grammar.trial_process import fork_trials
from firelane.errors import MachineError
from firelane.sandbox.confine import confine, serve_only
from firelane.wire.frames import Grammar

model, number = Path(sys.argv[1]), int(sys.argv[3])
nursery.ANSWER_S = 1.0
replaced = Replacements()
confine(env.read({"FIRELANE_CXX": "/nowhere"}), Path(sys.argv[2]), [model])
helpers = fork_trials(replaced)
serve_only()
assert len(helpers._helpers) == 1
helpers.check()
assert len(helpers._helpers) == 2 and not replaced.counts
limits = GrammarLimits(trial_wall_s=2.0 if number == signal.SIGSTOP else 600.0, trial_cpu_s=600.0)
sandbox = Sandbox(model, 4096, limits, helpers.connected, replaced)
SLOW = Grammar("regex", "(a|b)*a(a|b){11}")


def send(process_fd):
    signal.pidfd_send_signal(process_fd, number)


def helper_fd(which):
    return helpers._helpers[which].child._fd


sandbox.try_out(Grammar("regex", "[a-z]+"))
for round in range(4):  # a helper, before the next trial is started
    send(helper_fd(0))
    sandbox.close()
    sandbox.try_out(Grammar("regex", f"[a-z]+{round}"))
send(sandbox.worker.child._fd)  # a trial that waits
sandbox.try_out(Grammar("regex", "[b-z]+"))
ready, lost = worker.ready_here, []


async def lose(fd, *, is_writing, timeout_s):
    lost or lost.append(send(sandbox.worker.child._fd))
    return await ready(fd, is_writing=is_writing, timeout_s=timeout_s)


worker._HERE = worker._HERE._replace(ready=lose)
sandbox.try_out(SLOW)  # a trial that has just got a grammar
print(dict(replaced.counts))
send(helper_fd(1))  # the spare, which is looked after
while replaced.counts["grammar_helper"] < 5:
    helpers.check()
if number == signal.SIGKILL:
    send(helper_fd(0)), send(helper_fd(1))
    sandbox.close()
    try:
        sandbox.try_out(Grammar("regex", "[c-z]+"))
    except MachineError as error:
        print(error, replaced.broken)
"""


@pytest.mark.skipif(this_machine() is None, reason="there is no sandbox on this system")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_whatever_is_lost_the_grammar_is_tried_out(tmp_path: Path, number: int) -> None:
    """Helpers and trials are replaced, and what they had is done again; only where both helpers are lost at
    once the engine has to be."""
    command = [sys.executable, "-c", LOST, str(EMBEDDED), str(tmp_path), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    counts, *lost = done.stdout.splitlines()
    found = ast.literal_eval(counts)
    assert found["grammar_trial"] == 2
    assert found["grammar_helper"] == 4
    assert not lost or "has to be started again" in lost[0]
    assert bool(lost) == (number == signal.SIGKILL)
