"""`firelane doctor MODEL` at the command line."""

from __future__ import annotations

import pytest

from firelane.cli import main
from firelane.sources.resolve import EMBEDDED


def test_a_model_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(EMBEDDED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "chat format: hermes (tools told in a message)"
    assert lines[-1] == "  reasoning: no marks of any were found"


@pytest.mark.parametrize("option", ["--json", "--save", "--verify"])
def test_options_of_the_machine_are_refused_with_a_model(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(EMBEDDED), option]) == 2
    said = capsys.readouterr()
    assert f"{option} is for the report on this machine" in said.err
    assert said.out == ""
