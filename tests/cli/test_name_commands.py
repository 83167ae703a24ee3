"""`firelane list`, `alias`, `run` and `help`, and what `serve` says to who names no model."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from firelane.cli import main
from firelane.cli.chat_command.source import served_by
from firelane.cli.model_commands.list import table
from firelane.cli.serve import tell_models_here
from firelane.errors import UsageError
from firelane.server.progress import ProgressDisplay, ProgressEvents
from firelane.server.start_lines import size_text

BLOCK = b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "OLLAMA_MODELS",
        "LLAMA_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path / "own"))
    return tmp_path


def put_gguf(home: Path, name: str, size: int = 2_500_000, changed_s: int = 1_700_000_000) -> None:
    path = home / ".cache" / "llama.cpp" / f"{name}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    os.truncate(path, size)
    os.utime(path, (changed_s, changed_s))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


# ---- list and alias


def test_an_empty_machine_is_told_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    header, advice = told(capsys, "list")
    assert header.split() == ["NAME", "SIZE", "CHANGED", "KEPT", "BY"]
    assert advice.startswith("none yet: firelane run smollm2:135m")


def test_models_and_aliases_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_gguf(home, "small-Q8_0")
    put_gguf(home, "a", size=3_000_000_000)
    assert told(capsys, "alias", "mine", "small-Q8_0") == ["mine is small-Q8_0"]
    lines = told(capsys, "list")
    assert [line.split()[:3] for line in lines[1:3]] == [["a", "3.00", "GB"], ["small-Q8_0", "2.5", "MB"]]
    assert lines[2].endswith("llama.cpp")
    assert lines[3] == "mine is small-Q8_0"
    assert "firelane run a;" in lines[4]
    assert told(capsys, "alias") == ["mine is small-Q8_0"]
    assert told(capsys, "alias", "mine", "--remove") == ["mine is forgotten"]
    assert told(capsys, "alias") == []


def test_an_alias_of_a_path_holds_from_everywhere(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "models").mkdir()
    monkeypatch.chdir(home)
    assert told(capsys, "alias", "here", "models") == [f"here is {home / 'models'}"]


def test_wrong_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["alias", "x"], "MODEL is missing"),
        (["alias", "x", "--remove"], "x is no alias"),
        (["alias", "a/b", "c"], "is no name"),
    ):
        assert main(words) == 2
        assert says in capsys.readouterr().err


def put_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the hub, as its library keeps it. Returns its repository."""
    hub = home / ".cache" / "huggingface" / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    folder = hub / "models--Qwen--Qwen3-0.6B"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "blobs" / "1").write_bytes(b"x" * 40_000)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to(folder / "blobs" / "1")
    return folder


def test_a_model_of_the_hub_is_removed_by_its_short_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = put_hub(home, monkeypatch)
    assert told(capsys, "list")[1].split()[:3] == ["Qwen/Qwen3-0.6B", "40.0", "kB"]
    (line,) = told(capsys, "rm", "qwen3:0.6b", "--dry-run")
    assert line.startswith("qwen3:0.6b: 4")
    assert line.endswith("kB would be removed")
    assert folder.is_dir()
    (line,) = told(capsys, "rm", "qwen3:0.6b")
    assert line.endswith("kB removed")
    assert not folder.exists()
    assert main(["rm", "qwen3:0.6b"]) != 0
    assert "nothing of it is in the cache" in capsys.readouterr().err


def test_what_another_program_keeps_is_left_to_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_gguf(home, "small-Q8_0")
    assert main(["rm", "small-Q8_0"]) == 2
    assert "another program keeps it" in capsys.readouterr().err
    assert (home / ".cache" / "llama.cpp" / "small-Q8_0.gguf").is_file()


def test_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "list", "--known")
    assert ["qwen3:0.6b", "Qwen/Qwen3-0.6B"] in [line.split() for line in lines]


def test_a_table_has_columns() -> None:
    assert table([("A", "B", "C"), ("long", "1", "x")]) == ["A     B  C", "long  1  x"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.0 kB"), (1500, "1.5 kB"), (2_500_000, "2.5 MB"), (10**9, "1.00 GB"), (3 * 10**12, "3.00 TB")],
)
def test_sizes_in_units_that_fit(size: int, text: str) -> None:
    assert size_text(size) == text


# ---- serve without a model


def test_a_start_without_a_model_tells_those_that_are_here(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_models_here(ProgressDisplay())
    assert capsys.readouterr().err == ""
    for i in range(7):
        put_gguf(home, f"m{i}")
    tell_models_here(ProgressEvents())
    assert capsys.readouterr().err == ""
    tell_models_here(ProgressDisplay())
    (line,) = capsys.readouterr().err.splitlines()
    assert "m0, m1, m2, m3, m4 and 2 more" in line
    assert "firelane serve NAME" in line


# ---- run and help


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[dict[str, Any]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "Qwen/Qwen3-0.6B"}, {"id": "other"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        self._answer(BLOCK % b"Hello" + BLOCK % b" there" + b"data: [DONE]\n\n")

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Not in a test."""


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_a_server_is_asked_by_the_name_or_by_what_it_means(server: str) -> None:
    assert served_by(server, "", ("qwen3:0.6b", "Qwen/Qwen3-0.6B")) == "Qwen/Qwen3-0.6B"
    assert served_by(f"{server}/v1", "k", ("other",)) == "other"
    assert served_by(server, "", ("missing",)) == ""
    assert served_by("http://127.0.0.1:9", "", ("other",)) == ""
    with pytest.raises(UsageError, match="give http://HOST:PORT"):
        served_by("127.0.0.1:9", "", ("other",))


def test_run_answers_one_question_from_the_server(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "qwen3:0.6b", "Say", "hello", "--url", server, "--temperature", "0"]
    assert main(words) == 0
    assert capsys.readouterr().out == "Hello there\n"
    (asked,) = Handler.asked
    assert (asked["model"], asked["temperature"]) == ("Qwen/Qwen3-0.6B", 0)
    assert asked["messages"] == [{"role": "user", "content": "Say hello"}]


def test_run_says_what_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no such", "--url", "http://127.0.0.1:9"]) != 0
    assert "`firelane list` tells" in capsys.readouterr().err


def test_help_of_all_and_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(line.split()[:1] == ["run"] for line in told(capsys, "help"))
    assert told(capsys, "help", "alias")[0].startswith("usage: firelane alias")
    assert main(["help", "nothing"]) == 2
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
