"""The picture that README shows. With PAGE_PICTURE=1 in the environment these tests draw it again."""

from __future__ import annotations

import base64
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_support import wait_until
from page_support import Visit

from firelane.bench.server import ServerProcess

ROOT = Path(__file__).resolve().parents[3]
PICTURE = ROOT / "docs" / "page.png"
MAX_BYTES = 300_000
WIDTH, HEIGHT = 1280, 780
SAMPLES = 55
SCHEMA = """{
  "type": "object",
  "properties": {
    "name": {"enum": ["is_absolute", "is_relative"]},
    "arguments": {"enum": ["path", "text"]}
  },
  "required": ["name", "arguments"],
  "additionalProperties": false
}"""
SHEET = """<style>
    body { margin: 0; background: #d9d6cf; display: grid; gap: 20px; padding: 20px; width: max-content; }
    img { display: block; border-radius: 10px; box-shadow: 0 2px 10px #0002; }
</style>"""


def test_picture_is_there() -> None:
    data = PICTURE.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width >= WIDTH
    assert height >= HEIGHT
    assert len(data) < MAX_BYTES
    assert "](docs/page.png)" in (ROOT / "README.md").read_text()


@pytest.mark.skipif(
    not os.environ.get("PAGE_PICTURE"), reason="the picture is drawn when PAGE_PICTURE is set"
)
def test_draw(visit: Callable[..., Visit], browser: Any, server: ServerProcess) -> None:
    tab = visit(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light").ready()
    with Traffic(server.url):
        tab.page.click("a[data-view=dashboard]")
        line = tab.page.locator("figure").first.locator("path.line0")
        wait_until(lambda: line.get_attribute("d").count("L") >= SAMPLES)
        end = tab.page.locator("#tenants").bounding_box()
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"] + 22}
        charts = tab.page.screenshot(clip=clip, full_page=True)
        tab.page.click("a[data-view=playground]")
        converse(tab)
        talk = tab.page.screenshot()
    sheet = browser.new_page(viewport={"width": WIDTH + 40, "height": 100})
    images = [base64.b64encode(shot).decode() for shot in (talk, charts)]
    sheet.set_content(SHEET + "".join(f'<img src="data:image/png;base64,{image}">' for image in images))
    sheet.screenshot(path=PICTURE, full_page=True)
    sheet.close()
    assert PICTURE.stat().st_size < MAX_BYTES


def converse(tab: Visit) -> None:
    tab.page.check("#logprobs")
    tab.set(temperature="0.4", seed="1", max_tokens="160")
    tab.send("Write a Python function `is_absolute(path)`: Return True if path is absolute.")
    tab.page.select_option("#structure", "json_schema")
    tab.page.fill("#structure-text", SCHEMA)
    tab.send("Its name and arguments, please.")
    tab.page.get_by_role("button", name="Resend").last.click()  # the schema is compiled by now
    tab.settled()
    tab.page.locator("#settings").evaluate("(form) => form.scrollTo(0, 0)")
    tab.page.locator("#message").blur()
    tab.page.locator(".turn.assistant").first.locator(".token", has_text="False").hover()


class Traffic:
    """Some requests at a time, in threads, until the block ends."""

    def __init__(self, url: str, threads: int = 14) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url, i)) for i in range(threads)]

    def _ask(self, url: str, which: int) -> None:
        count = 0
        with httpx.Client(timeout=600) as client:
            while not self._stop.is_set():
                count += 1
                prompt = "import os\nimport sys\n\n\n" * 6 + f"def part_{which}_{count % 7}("
                tokens = 60 + 90 * ((which + count) % 5)
                body = {"prompt": prompt, "max_tokens": tokens, "seed": count, "ignore_eos": True}
                client.post(f"{url}/v1/completions", json=body)
                self._stop.wait(0.4 * ((which * count) % 6))

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
