"""A pytest plug-in of gpu_check: failures are printed when they happen, and a test that has passed is not run
again (--passed FILE). A run that is stopped at its limit has told what it found, and the next one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed", type=Path, metavar="FILE", help="names of tests to leave out; grows")


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--passed")
    if file is not None:
        config.pluginmanager.register(Passed(config, file))


class Passed:
    """In the process that was started, and in its workers, which all have to collect the same: what passes
    goes into a file beside the one that is read, and joins it when the next run begins."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._config = config
        self._new = file.with_suffix(".new")
        self._is_worker = hasattr(config, "workerinput")
        if not self._is_worker:
            _join(self._new, file)
        self._passed = set(_lines(file))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid in self._passed]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        if report.failed:
            self._print(
                f"{'FAILED' if report.when == 'call' else 'ERROR'} {report.nodeid}: {_reason(report)}"
            )
        elif report.passed and report.when == "call":
            with self._new.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """With all of them passed before, there is nothing to collect, and that is well."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._passed:
            session.exitstatus = pytest.ExitCode.OK

    def _print(self, line: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write(f"\n{line}\n")  # behind the dots


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return " ".join(text.split())[:300]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _join(new: Path, file: Path) -> None:
    passed = [*_lines(file), *_lines(new)]
    if passed:
        file.write_text("".join(f"{name}\n" for name in dict.fromkeys(passed)))
    new.unlink(missing_ok=True)
