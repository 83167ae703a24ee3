"""The help in parts, what is said of a wrong option, and options in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.cli import build_parser, main
from firelane.errors import UsageError
from firelane.options import OptionSet, Values
from firelane.server.options.config_file import given_values
from firelane.server.options.sets import ENGINE_COMMAND, SERVE

SETS = {"serve": SERVE, "engine": ENGINE_COMMAND}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", SETS)
def test_the_help_fits_two_screens_and_names_every_option(command: str, capsys) -> None:
    lines = told(capsys, command, "--help").splitlines()
    assert len(lines) <= 64
    assert max(map(len, lines)) <= 100
    words = set(" ".join(lines).split())
    options = SETS[command].by_key.values()
    assert {one.flag for one in options if not one.option.file} <= words
    files_alone = sum(one.option.file for one in options)
    assert lines[-1].startswith(f"{files_alone} options of these groups are keys of a file alone")


def test_the_help_of_a_group_tells_all_of_it_and_nothing_else(capsys) -> None:
    text = told(capsys, "serve", "--help=tiers")
    assert "--kv-disk-size GIB" in text
    assert "kv_admission (a key of files alone)" in text
    assert "(default: 16)" in text
    assert "--port" not in text


@pytest.mark.parametrize("command", SETS)
def test_the_help_of_all_tells_each_option_and_key(command: str, capsys) -> None:
    words = set(told(capsys, command, "--help-all").replace(",", " ").split())
    for one in SETS[command].by_key.values():
        assert one.name in words, one.name


def test_a_group_that_is_not_known_gets_the_short_help(capsys) -> None:
    assert told(capsys, "serve", "--help=tyres") == told(capsys, "serve", "--help")


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        (
            ["serve", "--idle-timeout-s", "5"],
            "firelane serve: error: --idle-timeout-s is an option of files alone",
            "write idle_timeout_s below [server] of a TOML file, and give --config FILE",
        ),
        (
            ["chat", "--gemm=ranks"],
            "firelane chat: error: --gemm is an option of files alone",
            "write gemm below [engine] of a TOML file, and give --config FILE",
        ),
        (
            ["engine", "--max-num-seq", "x", "--kv-cahe-gib", "2"],
            "firelane engine: error: argument --max-num-seqs: 'x' is not a whole number",
            "usage: firelane engine --help tells the options",
        ),
        (
            ["engine", "--kv-cahe-gib=2"],
            "firelane engine: error: unrecognized arguments: --kv-cahe-gib=2: did you mean --kv-cache-gib?",
            "usage: firelane engine --help tells the options",
        ),
    ],
)
def test_a_wrong_option_gets_two_lines(words: list[str], first: str, second: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [first, second]


def given(path: Path, text: str, *words: str, command: str = "serve") -> Values:
    file = path / "options.toml"
    file.write_text(text)
    arguments = build_parser(command).parse_args([command, "--config", str(file), *words])
    return given_values(arguments, SETS[command])


def test_a_file_gives_options_and_the_command_line_counts_before_it(tmp_path: Path) -> None:
    text = '[server]\nheader_timeout_s = 7\nmax_queue = 3\n[engine]\ngemm = "ranks"\nkv_disk = "pages"\n'
    found = given(tmp_path, text, "--max-queue", "5")
    assert (found["header_timeout_s"], found["max_queue"], found["gemm"]) == (7.0, 5, "ranks")
    assert found["kv_disk"] == tmp_path / "pages"
    engine = given(tmp_path, "[server]\nport = 1\n[engine]\nno_prefix_cache = true\n", command="engine")
    assert (engine["port"], engine["no_prefix_cache"]) == (1, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[server]\nidle_timeout = 7",
            "line 2: server.idle_timeout: .* did you mean idle_timeout_s",
        ),
        ("[server]\nidle_timeout_s = 0", "line 2: server.idle_timeout_s: 0 is not a number above 0"),
        ("[engine]\nmax_queue = 7", "line 2: engine.max_queue: no such key"),
        ("[models.a]", "line 1: models: no such key"),
    ],
)
def test_a_wrong_file_is_told_with_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        given(tmp_path, text)


def test_each_option_of_a_command_is_declared_once() -> None:
    for options in SETS.values():
        one_by_one = [one.key for _, members in options.by_group() for one in members]
        assert sorted(one_by_one) == sorted(options.by_key)
        assert isinstance(options, OptionSet)
