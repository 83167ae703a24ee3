from __future__ import annotations

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


def test_unknown_level():
    with pytest.raises(ValueError, match="use one of debug"):
        logs.set_up("loud")
