from __future__ import annotations

import io
import json
import logging

import pytest

from firelane.telemetry import logs


@pytest.fixture(autouse=True)
def restore():
    logger = logging.getLogger("firelane")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers = before[1], before[2]


def test_one_line_an_event(capsys):
    logs.set_up("info")
    logs.set_up("info")  # again: no second handler
    logging.getLogger("firelane.x").info("path=%s", "a\nb")
    logging.getLogger("firelane.x").debug("hidden")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO firelane.x path=a\\nb")


def test_names_do_not_steer_the_terminal(capsys):
    logs.set_up("info")
    logging.getLogger("firelane.x").info("tensor=%s", "\x1b[2Ja\0\x9b\tb")
    assert capsys.readouterr().err.endswith("tensor=\\x1b[2Ja\\x00\\x9b\tb\n")


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_go_to_another_stream_in_the_same_form(form):
    first, second = io.StringIO(), io.StringIO()
    logs.set_up("info", form, first)
    logging.getLogger("firelane.x").info("to=%s", "first")
    logs.write_to(second)
    logging.getLogger("firelane.x").info("to=%s", "second")
    assert "to=first" in first.getvalue()
    assert "second" not in first.getvalue()
    assert second.getvalue().replace("second", "first").count("to=first") == 1
    assert second.getvalue().startswith("{") == (form == "json")


def test_unknown_level():
    with pytest.raises(ValueError, match="use one of debug"):
        logs.set_up("loud")


def test_json(capsys):
    logs.set_up("info", "json")
    logger = logging.getLogger("firelane.x")
    logs.event(logger, "request_ended", {"id": "r", "total_ms": 1.5, "tenant": 'a"b', "ttft_ms": None})
    logger.info("listening address=%s", "here\n")
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("unexpected_error")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["level"], first["logger"]) == ("request_ended", "info", "firelane.x")
    assert (first["id"], first["total_ms"], first["tenant"], first["ttft_ms"]) == ("r", 1.5, 'a"b', None)
    assert second["message"] == "listening address=here\n"
    assert "ValueError: wrong" in third["traceback"]


def test_values_of_an_event_are_unambiguous(capsys):
    logs.set_up("info")
    values = {"a": "x y", "b": 'q"', "c": "", "d": "line\nend", "e": None, "f": 2.5}
    logs.event(logging.getLogger("firelane.x"), "happened", values)
    line = capsys.readouterr().err
    assert line.endswith('happened a="x y" b="q\\"" c="" d="line\\nend" e=- f=2.5\n')


def test_unknown_format():
    with pytest.raises(ValueError, match="use one of text, json"):
        logs.set_up("info", "xml")
