"""The plan of scripts/gpu_check.py with steps, and a clock, that are made up; and what a call leaves for the
next one."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def g() -> Iterator[Any]:
    """The modules, found beside each other as when gpu_check runs."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield type("Scripts", (), {n: __import__(f"gpu_{n}") for n in ("plan", "steps", "kept", "check")})
    finally:
        sys.path.remove(str(SCRIPTS))


@dataclass
class Machine:
    """Steps take the seconds that they are said to, on a clock of their own."""

    g: Any
    takes_s: dict[str, float]
    outcomes: dict[str, str] = field(default_factory=dict)
    now_s: float = 100.0
    given: list[tuple[str, float]] = field(default_factory=list)

    def run(self, step: Any, limit_s: float) -> Any:
        self.given.append((step.name, limit_s))
        seconds = self.takes_s[step.name]
        self.now_s += min(seconds, limit_s)
        outcome = "stopped" if seconds > limit_s else self.outcomes.get(step.name, "ok")
        return self.g.plan.Result(name=step.name, outcome=outcome, seconds=min(seconds, limit_s), key="k")

    def call(
        self, steps: Sequence[Any], earlier: dict[str, Any] | None = None, **asked: Any
    ) -> dict[str, Any]:
        settings = {"minutes": 8.0, "key": "k", "clock": lambda: self.now_s} | asked
        return {r.name: r for r in self.g.plan.run_all(steps, self.run, earlier=earlier or {}, **settings)}


def step(g: Any, name: str, *, least_s: float = 10, limit_s: float = 100, **changes: Any) -> Any:
    return g.steps.Step(name=name, command=(), least_s=least_s, limit_s=limit_s, **changes)


def test_steps_run_in_their_order_within_the_minutes(g: Any) -> None:
    steps = [step(g, name) for name in ("a", "b", "c")]
    machine = Machine(g, {"a": 30, "b": 100, "c": 20})
    found = machine.call(steps, minutes=2)
    assert machine.given == [("a", 100), ("b", 120 - g.plan.SPARE_S - 30)]
    assert [r.outcome for r in found.values()] == ["ok", "stopped", "left"]
    assert found["c"].why == "wants 10 s, 0 s are left: call again"
    assert machine.now_s - 100 <= 120


def test_a_short_step_takes_the_time_that_a_long_one_cannot_use(g: Any) -> None:
    steps = [step(g, "a"), step(g, "long", least_s=60), step(g, "short")]
    machine = Machine(g, {"a": 50, "long": 60, "short": 10})
    found = machine.call(steps, minutes=1.5)
    assert {n: r.outcome for n, r in found.items()} == {"a": "ok", "long": "left", "short": "ok"}


def test_the_next_call_goes_on_where_this_one_ended(g: Any) -> None:
    steps = [step(g, "warm", always=True), *(step(g, name) for name in ("a", "b", "c", "d"))]
    machine = Machine(g, {"warm": 10, "a": 40, "b": 30, "c": 60, "d": 20}, outcomes={"b": "failed"})
    first = machine.call(steps, minutes=2)
    assert {n: r.outcome for n, r in first.items()} == {
        "warm": "ok", "a": "ok", "b": "failed", "c": "stopped", "d": "left"
    }  # fmt: skip
    again = Machine(g, machine.takes_s)
    second = again.call(steps, first)
    assert [name for name, _ in again.given] == ["warm", "b", "c", "d"]
    assert second["a"] is first["a"]
    assert {r.outcome for r in second.values()} == {"ok"}


def test_a_result_of_other_sources_counts_no_more_but_says_how_long_it_takes(g: Any) -> None:
    known = g.plan.Result(name="a", outcome="ok", seconds=70.0, key="other")
    machine = Machine(g, {"a": 70})
    assert machine.call([step(g, "a")], {"a": known}, minutes=1)["a"].outcome == "left"
    assert machine.call([step(g, "a")], {"a": known}, minutes=2)["a"].key == "k"


def test_a_step_that_was_given_too_little_waits_for_more(g: Any) -> None:
    known = g.plan.Result(name="a", outcome="stopped", seconds=40.0, key="k")
    machine = Machine(g, {"a": 70})
    assert machine.call([step(g, "a")], {"a": known}, minutes=1.5)["a"].outcome == "left"
    assert machine.call([step(g, "a")], {"a": known}, minutes=2)["a"].outcome == "ok"


def test_what_failed_before_is_not_forgotten_where_there_is_no_time(g: Any) -> None:
    known = g.plan.Result(name="a", outcome="failed", seconds=3.0, why="exit code 1", key="k")
    found = Machine(g, {}).call([step(g, "a")], {"a": known}, minutes=0.1)
    assert found["a"].why.endswith("call again; before: failed, exit code 1")


def test_nothing_runs_behind_a_step_that_all_depend_on(g: Any) -> None:
    steps = [step(g, "warm", always=True), step(g, "a")]
    machine = Machine(g, {"warm": 1}, outcomes={"warm": "failed"})
    found = machine.call(steps)
    assert (found["a"].outcome, found["a"].why) == ("left", "warm failed")


def test_the_real_plan_needs_few_calls(g: Any) -> None:
    """Each step takes two thirds of its limit, in calls of ten minutes."""
    steps = [s for s in g.steps.STEPS if not s.by_request]
    earlier: dict[str, Any] = {}
    for calls in range(1, 6):  # noqa: B007
        machine = Machine(g, {s.name: s.limit_s / 1.5 for s in steps})
        earlier = machine.call(steps, earlier, minutes=10)
        if all(r.outcome == "ok" for r in earlier.values()):
            break
    assert calls <= 3, {n: r.outcome for n, r in earlier.items()}


def test_results_survive_from_call_to_call(g: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    tables = kept / "tables" / "limits"
    tables.mkdir(parents=True)
    (tables / "cuda_limits.md").write_text("# cuda_limits\n")
    (tables / "cuda_limits.json").write_text('{"figures": 1}')
    results = [
        g.plan.Result(name="limits", outcome="ok", seconds=1.0, key="k"),
        g.plan.Result(name="steps", outcome="failed", seconds=2.0, why="a | b"),
    ]
    g.kept.write(kept, tmp_path, results, ["Unpacked: a.whl."])
    page = (tmp_path / "gpu.md").read_text()
    assert "| steps | failed | 2.0 | a / b |" in page
    assert "# cuda_limits" in page
    assert "Unpacked: a.whl." in page
    assert json.loads((tmp_path / "gpu.json").read_text())["figures"] == {
        "limits/cuda_limits": {"figures": 1}
    }
    assert list(g.kept.read_results(tmp_path).values()) == results


@pytest.mark.parametrize("text", [None, "", "{", '{"steps": 1}', '{"steps": [{"name": "a", "colour": 1}]}'])
def test_damaged_results_count_as_none(g: Any, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "gpu.json").write_text(text)
    assert g.kept.read_results(tmp_path) == {}


def test_kernels_tuning_and_tables_move_to_another_machine(g: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    kernel = here / "cache" / "triton" / "KEY"
    group = {"child_paths": {n: str(kernel / n) for n in ("k.cubin", "k.json", "k.ptx")}}
    files = {"__grp__k.json": json.dumps(group), "k.cubin": "code", "k.json": "{}", "k.ptx": "text"}
    for path, text in {
        **{kernel / name: text for name, text in files.items()},
        here / "cache" / "cuda-tuning" / "a.json": "[]",
        here / "cache" / "packed" / "model.bin": "large",
        here / "passed" / "tests-k.txt": "a::b",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    g.kept.pack(here, tmp_path)
    assert g.kept.unpack(tmp_path, there)
    found = {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
    triton = "cache/triton/KEY/"
    assert found == {
        f"{triton}__grp__k.json", f"{triton}k.cubin", f"{triton}k.json",
        "cache/cuda-tuning/a.json", "passed/tests-k.txt",
    }  # fmt: skip
    paths = json.loads((there / triton / "__grp__k.json").read_text())["child_paths"]
    assert paths["k.cubin"] == str(there / triton / "k.cubin")


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_a_damaged_archive_counts_as_none(g: Any, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / g.kept.ARCHIVE).write_bytes(content)
    assert not g.kept.unpack(tmp_path, tmp_path / "kept")


def test_tests_that_passed_are_not_run_again(tmp_path: Path) -> None:
    """In a worker; the one that fails is told at once, and is all that the second run has."""
    (tmp_path / "test_it.py").write_text(
        "import pathlib\n"
        "def test_good(): assert not pathlib.Path('seen').exists()\n"
        "def test_bad(): assert 1 == 2, 'not\\nequal'\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def pytest_says() -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-rN", "-n", "1", "-p", "gpu_passed"]
        command += ["-p", "xdist", "-p", "no:cacheprovider", "--passed", str(tmp_path / "passed.txt")]
        environ = {"PYTHONPATH": str(SCRIPTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    code, said = pytest_says()
    assert (code, "1 failed, 1 passed" in said) == (1, True), said
    assert "\nFAILED test_it.py::test_bad: AssertionError: not equal" in said
    (tmp_path / "seen").touch()
    code, said = pytest_says()
    assert (code, "1 failed in" in said) == (1, True), said
    (tmp_path / "test_it.py").write_text("def test_good(): assert False\n")
    assert pytest_says()[0] == 0


def test_a_call_keeps_what_it_found_after_each_step(
    g: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls on machines of their own, the second with what the first left."""
    found = types.SimpleNamespace(gpu=types.SimpleNamespace(name="H200"), count=1)
    monkeypatch.setattr(g.check, "_detect", lambda: found)
    note = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(parents=True, exist_ok=True); "
    note += "(p / 'cuda_a.md').write_text('# figures of a')"
    first = replace(step(g, "limits"), command=("-c", note, "{tables}"), needs=())
    second = replace(step(g, "steps"), command=("-c", "raise SystemExit('no')"), needs=())
    monkeypatch.setattr(g.check, "STEPS", (first, second))
    out, again = tmp_path / "out", tmp_path / "again"
    arguments = ["--out", str(out), "--resume", str(tmp_path / "nothing"), "--minutes", "2"]
    assert g.check.check((first, second), g.check.arguments_of(arguments), fresh(tmp_path / "one")) == 1
    mended = replace(second, command=("-c", ""))
    monkeypatch.setattr(g.check, "STEPS", (first, mended))
    arguments = ["--out", str(again), "--resume", str(out), "--minutes", "2"]
    assert g.check.check((first, mended), g.check.arguments_of(arguments), fresh(tmp_path / "two")) == 0
    page = (again / "gpu.md").read_text()
    assert "# figures of a" in page
    assert "failed" not in page


def fresh(directory: Path) -> Path:
    directory.mkdir()
    return directory
