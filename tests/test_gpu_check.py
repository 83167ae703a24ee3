"""scripts/gpu_check.py: its steps in processes of their own, and what it says without a GPU."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from firelane.backends.cuda.device import gpu_detection

ROOT = Path(__file__).resolve().parent.parent
MISSING = ("msgspec", "httptools", "llguidance", "python_multipart", "backports.zstd")
SCRIPT = ROOT / "scripts" / "gpu_check.py"
LIMIT_S = 77.0


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    """gpu_check; the files beside it are found as when it runs."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        yield __import__("gpu_check")
    finally:
        sys.path.remove(str(SCRIPT.parent))


@pytest.fixture
def places(check: ModuleType, tmp_path: Path) -> Any:
    for name in ("kept", "packages"):
        (tmp_path / name).mkdir()
    return check.Places(
        kept=tmp_path / "kept",
        packages=tmp_path / "packages",
        model=tmp_path / "model",
        log=tmp_path / "gpu.log",
    )


def run(check: ModuleType, places: Any, code: str, limit_s: float = 60.0, **changes: Any) -> Any:
    settings = {"name": "limits", "command": ("-c", code), "least_s": 1, "limit_s": 60, "needs": ()}
    return check.run_step(check.Step(**{**settings, **changes}), limit_s, places=places, key="k")


def test_every_step_fits_into_a_call_and_its_files_are_there(check: ModuleType) -> None:
    usual = [s for s in check.STEPS if not s.by_request]
    assert all(s.least_s < s.limit_s < 60 * check.MINUTES for s in usual)
    assert [s.name for s in check.STEPS if s.always] == [check.STEPS[0].name]
    names = [part for s in check.STEPS for part in s.command if part.endswith(".py")]
    assert all((ROOT / name.removeprefix("--ignore=")).exists() for name in names)


def test_every_file_of_tests_is_in_the_plan_once_or_for_the_host(check: ModuleType) -> None:
    planned = sys.modules["gpu_steps"]
    known = {*planned.ENGINE_TESTS, *planned.HOST_TESTS, *planned.PAGES_TESTS}
    there = {
        f"tests/backends/cuda/{p.name}" for p in (ROOT / "tests" / "backends" / "cuda").glob("test_*.py")
    }
    assert known <= there
    steps = {s.name: s.command for s in check.STEPS}
    assert known == {part.removeprefix("--ignore=") for part in steps["kernel-tests"] if "--ignore=" in part}
    assert set(planned.ENGINE_TESTS) <= set(steps["engine-tests"])
    assert set(planned.PAGES_TESTS) <= set(steps["device-tests"])


def test_tests_of_kernels_need_nothing_of_the_base_install(check: ModuleType) -> None:
    (step,) = [s for s in check.STEPS if s.name == "kernel-tests"]
    files = step.command[step.command.index("tests/backends/cuda") :]  # and what is left out
    code = (
        "import sys, pytest\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {MISSING!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "sys.exit(pytest.main(['-q', '--co', '-n', '0', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, *files]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **step.environ}
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_gpu_benchmark_is_in_the_plan(check: ModuleType) -> None:
    planned = {part for s in check.STEPS for part in s.command}
    scripts = [p for p in (ROOT / "benchmarks").glob("cuda_*.py") if "open_device" in p.read_text()]
    mains = {f"benchmarks/{p.name}" for p in scripts if "run_main(main)" in p.read_text()}
    assert mains == {name for name in planned if name.startswith("benchmarks/")}


def test_what_is_carried_are_base_dependencies(check: ModuleType) -> None:
    wanted = check.requirements()
    assert len(wanted) == len(check.CARRIED)
    assert all(any(r.startswith(name) for r in wanted) for name in check.CARRIED)


def test_a_step_that_wants_more_gpus_is_skipped(check: ModuleType, places: Any) -> None:
    result = run(check, places, "raise SystemExit(1)", gpus=2)
    assert (result.outcome, result.is_bad, result.why) == ("skipped", False, "wants 2 GPUs, 1 there")


def test_a_step_that_does_well(check: ModuleType, places: Any) -> None:
    result = run(check, places, "import os; print(os.environ['A'])", environ={"A": "seen"})
    assert (result.outcome, result.is_bad) == ("ok", False)
    assert "seen" in places.log.read_text()


def test_a_step_that_fails_says_its_last_line(check: ModuleType, places: Any) -> None:
    result = run(check, places, "raise SystemExit('MachineError: no GPU')")
    assert (result.outcome, result.is_bad) == ("failed", True)
    assert result.why == "exit code 1: MachineError: no GPU"


def ends(pid: int) -> bool:
    """Within a minute: a signal takes its time where the machine is busy."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """A step's limit has come when something is so, however fast the machine is."""

    def reached_when(is_so: Callable[[], bool]) -> None:
        real = subprocess.Popen.wait

        def wait(process: Any, timeout: float | None = None) -> int:
            if timeout != LIMIT_S:
                return real(process, timeout)
            until_s = time.monotonic() + 60
            while not is_so():
                assert time.monotonic() < until_s
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(process.args, LIMIT_S)

        monkeypatch.setattr(subprocess.Popen, "wait", wait)

    return reached_when


def test_a_step_is_stopped_with_its_children(
    check: ModuleType, places: Any, tmp_path: Path, limit: Any
) -> None:
    pid = tmp_path / "pid"
    limit(lambda: pid.exists() and pid.read_text() != "")
    child = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'input()'], "
    child += f"stdin=subprocess.PIPE); open({str(pid)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    result = run(check, places, child, limit_s=LIMIT_S)
    assert result.outcome == "stopped"
    assert ends(int(pid.read_text()))


def test_steps_that_lack_a_package_are_skipped(check: ModuleType, places: Any) -> None:
    lacking = run(check, places, "1 / 0", needs=("numpy", "no_such_package"))
    assert (lacking.outcome, lacking.why) == ("skipped", "no no_such_package: scripts/gpu_wheels")
    (places.packages / "no_such_package").mkdir()
    assert run(check, places, "", needs=("no_such_package",)).outcome == "ok"


def test_failures_are_shown_while_a_step_runs(
    check: ModuleType, places: Any, capfd: pytest.CaptureFixture[str], limit: Any
) -> None:
    limit(lambda: "FAILED a.py::b: 1 is not 2\n" in places.log.read_text().partition("== limits")[2])
    code = "import time\nprint('FAILED a.py::b: 1 is not 2'); time.sleep(60)"
    result = run(check, places, code, limit_s=LIMIT_S)
    assert result.outcome == "stopped"
    assert result.why == "at its limit of 77 s: FAILED a.py::b: 1 is not 2"
    assert capfd.readouterr().out == "FAILED a.py::b: 1 is not 2\n"


def test_wheels_of_what_is_missing_are_unpacked(check: ModuleType, tmp_path: Path) -> None:
    for name in ("no_such_package-1.0-py3-none-any.whl", "numpy-9.0-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr(f"{name.split('-')[0]}/__init__.py", "")
    target = tmp_path / "target"
    assert check.unpack(tmp_path, target) == ["no_such_package-1.0-py3-none-any.whl"]
    assert (target / "no_such_package" / "__init__.py").exists()
    assert not (target / "numpy").exists()


def test_tags_of_wheels(check: ModuleType) -> None:
    mine = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert check.fits(f"a-1-{mine}-{mine}-manylinux_2_28_x86_64.whl")
    assert check.fits("a-1-cp39-abi3-manylinux_2_28_x86_64.whl")
    assert check.fits("a-1-py2.py3-none-any.whl")
    assert not check.fits("a-1-cp27-cp27m-manylinux1_x86_64.whl")


def test_places_are_filled_in(check: ModuleType, places: Any) -> None:
    for step in check.STEPS:
        command = places.command(step, limit_s=140, key="k")
        assert command[0] == sys.executable
        assert not any("{" in part.replace("f'{", "") for part in command)
    (tune,) = [s for s in check.STEPS if s.name == "tune"]
    command = places.command(tune, limit_s=140, key="k")
    assert command[command.index("--minutes") + 1] == "2.00"
    environ = places.environ(dataclasses.replace(tune, environ={"X": "1"}))
    assert environ["X"] == "1"
    assert environ["PYTHONPATH"].startswith(str(ROOT))


def test_list_needs_no_gpu() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--list"], capture_output=True, text=True, check=True)
    assert "cuda_steps.py" in done.stdout


@pytest.mark.skipif(not gpu_detection.detect().problem, reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    environ = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([str(ROOT / "scripts" / "gpu_check")], capture_output=True, text=True, env=environ)
    assert done.returncode == 2
    assert "no NVIDIA GPU is in this machine" in done.stderr
