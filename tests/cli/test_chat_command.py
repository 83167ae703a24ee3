"""`firelane chat`: the session, its commands, a server's answers, and the whole of it in a terminal."""

from __future__ import annotations

import http.server
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firelane.cli.chat_command.session import HELP, ChatSession
from firelane.cli.chat_command.source import Message, ServerSource, Settings
from firelane.cli.chat_command.terminal import DIM, PLAIN
from firelane.errors import FirelaneError, MachineError, RequestError, UsageError
from firelane.text.deltas import Content, Delta, Reasoning

PATIENCE_S = 60.0


class Scripted:
    """A source that answers with the question in capitals, word by word; it thinks of words in brackets."""

    name = "scripted"
    interrupts = False

    def __init__(self) -> None:
        self.seen: list[tuple[list[Message], Settings]] = []
        self.stop_after = 0

    def answer(self, messages: list[Message], settings: Settings) -> Iterator[Delta]:
        self.seen.append(([dict(m) for m in messages], dict(settings)))
        words = messages[-1]["content"].upper().split(" ")
        if words[0] == "FAIL":
            raise RequestError("it failed")
        for count, word in enumerate(words):
            yield Reasoning(word) if word.startswith("(") else Content(f"{word} ")
            if self.stop_after == count + 1:
                os.kill(os.getpid(), signal.SIGINT)

    def close(self) -> None:
        pass


class Lines:
    """A terminal whose input is given."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.shown = self.thought = ""
        self.said: list[str] = []

    def read(self, prompt: str) -> str:
        del prompt
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        if line == "^C":
            raise KeyboardInterrupt
        return line

    def show(self, text: str) -> None:
        self.shown += text

    def show_reasoning(self, text: str) -> None:
        self.thought += text

    def say(self, text: str) -> None:
        self.said.append(text)


def talk(
    *lines: str, source: Scripted | None = None, system: str = ""
) -> tuple[ChatSession, Scripted, Lines]:
    source, terminal = source or Scripted(), Lines(*lines)
    session = ChatSession(source, terminal, system=system)
    session.run()
    return session, source, terminal


def contents(session: ChatSession) -> list[str]:
    return [message["content"] for message in session.messages]


def test_a_conversation_goes_on() -> None:
    session, source, terminal = talk("one", "", "two", system="be short")
    assert terminal.shown == "ONE \nTWO \n"
    assert [m["role"] for m in source.seen[1][0]] == ["system", "user", "assistant", "user"]
    assert contents(session) == ["one", "ONE ", "two", "TWO "]


def test_reasoning_is_no_part_of_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    session, source, terminal = talk("(hm) yes", "and", f"/save {file}")
    assert (terminal.shown, terminal.thought) == ("YES \nAND \n", "(HM)")
    assert contents(session) == ["(hm) yes", "YES ", "and", "AND "]
    assert source.seen[1][0][1] == {"role": "assistant", "content": "YES ", "reasoning_content": "(HM)"}
    loaded, _, _ = talk(f"/load {file}")
    assert loaded.messages == session.messages


def test_reasoning_alone_is_no_answer() -> None:
    session, _, terminal = talk("(hm)", "yes")
    assert contents(session) == ["yes", "YES "]
    assert terminal.thought == "(HM)"


def test_lines_that_belong_together() -> None:
    session, _, _ = talk('"""', "a", "/b", '"""', "c\\", "d")
    assert contents(session)[::2] == ["a\n/b", "c\nd"]


def test_commands_about_the_conversation() -> None:
    session, source, terminal = talk("one", "two", "/undo", "/retry", "/system be kind", "three", "/system")
    assert contents(session) == ["one", "ONE ", "three", "THREE "]
    assert source.seen[-1][0][0] == {"role": "system", "content": "be kind"}
    assert terminal.said == ["be kind"]
    session, _, terminal = talk(
        "one", "/clear", "/undo", "/retry", "/system", "/nothing", "/help", "/exit", "x"
    )
    assert session.messages == []
    assert terminal.said[0] == "error: there is nothing to forget"
    assert terminal.said[1] == "error: there is no question to answer again"
    assert terminal.said[3:] == ["there is no /nothing: /help tells what there is", HELP]


def test_settings() -> None:
    _, source, terminal = talk("/set", "/set temperature 0.5", "/set max_tokens x", "/set y 1", "/set", "say")
    assert source.seen[0][1] == {"temperature": 0.5}
    assert terminal.said[0].startswith("all as the model's author advises, else as llama.cpp does; known are")
    assert "give a number" in terminal.said[1]
    assert "there is no setting 'y'" in terminal.said[2]
    assert terminal.said[3] == "temperature = 0.5"


def test_saved_and_loaded(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk("one", f"/save {file}", system="s")
    session, _, terminal = talk(f"/load {file}", "two", f"/save {tmp_path}/no/where", f"/load {tmp_path}/no")
    assert (contents(session)[:2], session.system) == (["one", "ONE "], "s")
    assert [line.split(":")[0] for line in terminal.said] == ["2 messages", "error", "error"]
    file.write_text("[1]")
    assert "is no conversation" in talk(f"/load {file}")[2].said[0]


def test_a_question_without_an_answer_is_not_kept() -> None:
    session, _, terminal = talk("fail", "^C", "one")
    assert contents(session) == ["one", "ONE "]
    assert terminal.said == ["error: it failed"]


@pytest.mark.parametrize("at_once", [False, True])
def test_ctrl_c_stops_an_answer_and_keeps_what_came(at_once: bool) -> None:
    source = Scripted()
    source.stop_after, source.interrupts = 2, at_once
    before = signal.getsignal(signal.SIGINT)
    session, _, terminal = talk("a b c d", source=source)
    assert contents(session)[1].split() == (["A", "B"] if at_once else ["A", "B", "C"])
    assert terminal.said == [" (stopped)"]
    assert signal.getsignal(signal.SIGINT) is before


class PressedWhileItSays(Lines):
    def say(self, text: str) -> None:
        super().say(text)
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_where_nothing_is_read_does_not_end_the_session() -> None:
    source, terminal = Scripted(), PressedWhileItSays("one", "/help", "two")
    session = ChatSession(source, terminal, system="")
    session.run()
    assert contents(session) == ["one", "ONE ", "two", "TWO "]


SEEN: list[tuple[dict[str, Any], str]] = []
"""Bodies that the server got, each with what it was told of sampling."""


class Handler(http.server.BaseHTTPRequestHandler):
    """A server that says what it was asked; for "wait" it says one word and no more until it may end."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = body["messages"][-1]["content"]
        self.server.asked.append((body, self.headers["x-sampling-defaults"]))  # type: ignore[attr-defined]
        if asked == "refuse":
            self._answer(400, b'{"error": {"message": "no such thing"}}')
            return
        self.send_response(200)
        self.end_headers()
        words = (
            ["first"]
            if asked == "wait"
            else [asked, " by ", body["model"], " ", str(self.headers["authorization"])]
        )
        if asked.startswith("think"):
            self._event({"choices": [{"delta": {asked.split()[1]: "let me see", "content": None}}]})
        for word in words:
            self._event({"choices": [{"delta": {"content": word}}]})
        if asked == "wait":
            self.server.held.wait(PATIENCE_S)  # type: ignore[attr-defined]
        elif asked == "break":
            self._event({"error": {"message": "the engine died"}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.held = threading.Event()  # type: ignore[attr-defined]
        server.asked = SEEN  # type: ignore[attr-defined]
        SEEN.clear()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.held.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def ask(source: ServerSource, text: str) -> str:
    pieces = source.answer([{"role": "user", "content": text}], {})
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def test_a_server_answers(url: str) -> None:
    source = ServerSource(f"{url}/v1", "", "secret")
    assert ask(source, "say") == "say by m Bearer secret"
    assert ask(ServerSource(url, "other", ""), "say") == "say by other None"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_of_a_server_is_kept_apart_and_not_sent_back(url: str, field: str) -> None:
    source = ServerSource(url, "m", "")
    terminal = Lines(f"think {field}", "and")
    session = ChatSession(source, terminal, settings={"top_k": 3})
    session.run()
    assert terminal.thought == "let me see"
    assert contents(session)[1] == f"think {field} by m None"
    (first, defaults), (second, _) = SEEN
    assert (defaults, first["top_k"]) == ("llama.cpp", 3)
    assert not {"temperature", "max_tokens"} & first.keys()
    assert second["messages"][1] == {"role": "assistant", "content": f"think {field} by m None"}


def test_reasoning_is_dim_in_a_terminal_and_left_out_elsewhere(url: str, tmp_path: Path) -> None:
    shown = InTerminal("--url", url, cache=tmp_path)
    shown.until(">>> ")
    shown.type("think reasoning\n")
    shown.until(f"{DIM}let me see{PLAIN}think reasoning by m")
    shown.until(">>> ")
    shown.type("\x04")
    assert shown.process.wait(PATIENCE_S) == 0
    command = [sys.executable, "-m", "firelane", "chat", "--url", url]
    done = subprocess.run(command, input="think reasoning\n", capture_output=True, text=True, timeout=600)
    assert done.stdout == "think reasoning by m None\n"


def test_a_server_that_does_not(url: str) -> None:
    source = ServerSource(url, "m", "")
    with pytest.raises(RequestError, match="no such thing"):
        ask(source, "refuse")
    with pytest.raises(RequestError, match="the engine died"):
        ask(source, "break")
    with pytest.raises(UsageError, match="give http://HOST:PORT"):
        ServerSource("localhost", "m", "")
    with pytest.raises(MachineError, match="is the server running there"):
        ServerSource("http://127.0.0.1:1", "", "")
    with pytest.raises(FirelaneError):
        ask(ServerSource("http://127.0.0.1:1", "m", ""), "say")


class InTerminal:
    """The command in a terminal of its own."""

    def __init__(self, *arguments: str, cache: Path) -> None:
        ours, theirs = pty.openpty()
        self._fd, self.output = ours, ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "firelane", "chat", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its controlling terminal
            env={**os.environ, "FIRELANE_CACHE_DIR": str(cache), "TERM": "dumb"},
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C until this comes: one that falls between two waits of Python's line editor is seen by the
        next key."""
        self.type("\x03")
        for _ in range(int(PATIENCE_S)):
            if text in self.output:
                break
            if select.select([self._fd], [], [], 1.0)[0]:
                self.output += os.read(self._fd, 4096).decode()
            else:
                self.type("\x03")
        self.until(text)

    def until(self, text: str) -> None:
        """Read on until this comes."""
        found = self.output.find(text)
        while found < 0:
            ready, _, _ = select.select([self._fd], [], [], PATIENCE_S)
            assert ready, f"{text!r} does not come after {self.output!r}"
            self.output += os.read(self._fd, 4096).decode()
            found = self.output.find(text)
        self.output = self.output[found + len(text) :]


def test_in_a_terminal(url: str, tmp_path: Path) -> None:
    chat = InTerminal("--url", url, cache=tmp_path)
    chat.until("m: /help tells the commands")
    chat.until(">>> ")
    chat.type("hello\n")
    chat.until("hello by m")
    chat.until(">>> ")
    chat.type("wait\n")
    chat.until("first")
    chat.type("\x03")
    chat.until("(stopped)")
    chat.until(">>> ")
    chat.type("half a line")
    chat.until("half a line")
    chat.interrupt_until(">>> ")
    chat.type("again\n")
    chat.until("again by m")
    chat.until(">>> ")
    chat.type("\x04")
    assert chat.process.wait(PATIENCE_S) == 0
    history = tmp_path / "chat_history"
    assert {"hello", "wait", "again"} <= set(history.read_text().splitlines())
    assert history.stat().st_mode & 0o077 == 0


def test_piped_into_a_model_of_this_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "firelane", "chat", "--backend", "null", "--max-model-len", "512"],
        input="/set max_tokens 8\nhello\n",
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "FIRELANE_CACHE_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n")
    assert not (tmp_path / "chat_history").exists()
