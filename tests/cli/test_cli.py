"""The command as a process: help, version, errors as one line with their exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import firelane
from firelane.cli import COMMAND_NAMES, main, version
from firelane.errors import FirelaneError, ModelNotFoundError


def firelane_command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firelane", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environ},
        timeout=600,
    )


def test_version() -> None:
    done = firelane_command("version")
    assert (done.returncode, done.stdout) == (0, f"{firelane.__version__}\n")
    assert firelane_command("--version").stdout == f"firelane {firelane.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom firelane.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'msgspec', 'tokenizers', 'jinja2', 'asyncio', 'tqdm', 'dataclasses'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("LOADED []\n")
    assert "doctor" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["serve", "/no/such/model"], 1, "/no/such/model: no such directory"),
        (["program", "/no/such/model"], 1, "/no/such/model: no such directory"),
        (["generate", "/no/such/model", "--prompt", "x"], 1, "/no/such/model: no such directory"),
        (["serve", ""], 1, "'' names no model"),
        (["serve", "a/b/" + "c" * 300], 1, "no such directory"),
        (["chat", "\x1b[31m/no"], 1, r"\x1b[31m/no: no such directory"),
        (["serve", "--served-model-name", ""], 2, "'' cannot be a served name"),
        (["serve", "--alias", "a\nb=x", "--served-model-name", "x"], 2, r"'a\nb' cannot be a served name"),
        (["verify", "/proc/self/mem"], 1, "/proc/self/mem: is a file"),
        (["node", "/dev/zero"], 2, "/dev/zero: cannot be read (not a regular file)"),
        (["rm", "/"], 1, "/: nothing of it is in the cache"),
        (["rm", ""], 1, "'' names no model"),
        (["rm", "x", "--dry-run", "--url", "http://127.0.0.1:1"], 2, "--dry-run tells of this machine's"),
        (["cache", "forget-tenant", "x", "--kv-disk", "/no/such/disk"], 2, "there is no such directory"),
        (["ps", "--url", "http://127.0.0.1:1"], 1, "no node answers there"),
        (["bench", "serve", "--url", "localhost"], 2, "--url localhost"),
        (["bench", "serve", "--url", "http://127.0.0.1:1"], 1, "is the server running there?"),
        (["bench", "offline", "--workload", "decode-2"], 2, "--workload decode-2: choose from decode-1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_are_one_line(arguments: list[str], code: int, message: str) -> None:
    done = firelane_command(*arguments)
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("firelane: error: ")
    assert message in lines[0]
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve", "--port", "70000"],
        ["serve", "--threads", "0"],
        ["serve", "--max-queue", "-1"],
        ["serve", "--kv-cache-gib", "-1"],
        ["serve", "--backend", "tpu"],
        ["generate"],
        ["bench"],
        ["bench", "serve", "--request-rate", "nan"],
        ["serve", "--replicas", "300"],
        ["serve", "--max-body-mib", "0"],
        ["serve", "--kv-cache-gib", "1e300"],
        ["chat", "--min-p", "1.5"],
        ["generate", "--prompt", "a", "--temperature", "inf"],
    ],
    ids=" ".join,
)
def test_wrong_options_exit_with_2(arguments: list[str]) -> None:
    done = firelane_command(*arguments)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert ": error: " in first
    assert second.startswith("usage: firelane")
    assert second.endswith("--help tells the options")


def test_nearly_known_environment_variable_is_refused() -> None:
    done = firelane_command("doctor", FIRELANE_CACHE="/tmp")
    assert done.returncode == 2
    assert done.stderr.startswith("firelane: error: unknown environment variable FIRELANE_CACHE: is ")


def test_unknown_environment_variable_is_told() -> None:
    done = firelane_command("version", FIRELANE_THREADS="3", FIRELANE_PORT="tcp://10.0.0.1:8000")
    assert done.returncode == 0
    assert done.stderr == "firelane: warning: environment variable FIRELANE_THREADS means nothing here\n"


def test_errors_are_one_line_of_bearable_length() -> None:
    text = str(FirelaneError("begin " + "x\n" * 100_000 + " end"))
    assert len(text) < 2100
    assert "\n" not in text
    assert (text[:5], text[-3:]) == ("begin", "end")
    assert str(FirelaneError("short")) == "short"


def test_errors_do_not_steer_the_terminal() -> None:
    assert str(FirelaneError("tensor \x1b[2Ja\0b\x9bc\td")) == "tensor \\x1b[2Ja\\x00b\\x9bc\td"


def test_any_output_can_be_written_where_the_encoding_is_not_utf_8() -> None:
    for arguments in (["--help"], ["serve", "--help"], ["serve", "/nö"]):
        done = firelane_command(*arguments, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert "Traceback" not in done.stderr
        assert done.returncode == (1 if "/nö" in arguments else 0)


def test_errors_of_the_system_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(*_: object) -> int:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr(version, "run", fail)
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "firelane: error: /some/file: Permission denied\n"


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_summaries_are_whole_sentences(name: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    summary = " ".join(capsys.readouterr().out.partition("\n\n")[2].partition("\n\n")[0].split())
    assert summary.endswith("."), summary


def test_wrong_log_level_is_refused() -> None:
    done = firelane_command("serve", FIRELANE_LOG_LEVEL="loud")
    assert done.returncode == 2
    assert "FIRELANE_LOG_LEVEL" in done.stderr


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRELANE_LOG_LEVEL", "debug")
    with pytest.raises(ModelNotFoundError):
        main(["program", "/no/such/model"])


def test_program_of_the_embedded_model() -> None:
    done = firelane_command("program")
    assert done.returncode == 0
    assert "RopeAndCache" in done.stdout
    assert "FLOPs" in done.stdout


def test_output_into_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "firelane", "program"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_installed_command_is_this_one() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'firelane = "firelane.cli:main"' in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--prot", "1"], "unrecognized arguments: --prot: did you mean --port?"),
        (["serve", "--maxqueue=1"], "unrecognized arguments: --maxqueue=1: did you mean --max-queue?"),
        (["bench", "serve", "--max-concurency", "1"], "did you mean --max-concurrency?"),
        (
            ["bench", "router", "--seconds", "1"],
            "bench router: error: unrecognized arguments: --seconds 1: did you mean --seeds?",
        ),
        (["bench", "router", "--zzz"], "unrecognized arguments: --zzz\n"),
        (["serv"], "did you mean serve?"),
        (["serve", "--zzzz"], "unrecognized arguments: --zzzz\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_was_probably_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
