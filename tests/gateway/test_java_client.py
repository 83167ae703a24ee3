"""Java's own client, whose requests ask for an upgrade to HTTP/2 and carry their body all the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "java" / "Post.java"


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java here")
def test_a_body_with_an_offer_to_upgrade(service):
    body = json.dumps({"prompt": "say", "max_tokens": 40})
    java = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", str(SOURCE)]
    done = subprocess.run(
        [*java, f"{service.url}/v1/completions", body], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [answer[:2] for answer in answers] == [["200", "HTTP_1_1"]] * 2
    assert [json.loads(text)["choices"][0]["text"] for _, _, text in answers] == ["hello world"] * 2
