"""A browser on the page of a real server. Without Chromium or playwright these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from page_support import Visit

from firelane.bench.server import ServerProcess

FLAGS = ["--headless", "--no-sandbox", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for longer than a module: while playwright is open, its event loop runs in the main thread, and no
    other test there could run one.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the test extra)")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on the PATH: install the system's package")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(browser: Any, request: pytest.FixtureRequest) -> ServerProcess:
    """Serves the embedded model; not started in vain where there is no browser."""
    assert browser
    return request.getfixturevalue("cpu_server")


@pytest.fixture
def visit(browser: Any, server: ServerProcess) -> Iterator[Callable[..., Visit]]:
    """Opens the page. In the end nothing may have gone wrong in it, and no other server have been asked."""
    visits: list[Visit] = []

    def open_page(view: str = "playground", *, url: str = server.url, **options: Any) -> Visit:
        visits.append(Visit(browser, url, view, **options))
        return visits[-1]

    yield open_page
    for one in visits:
        one.close()
    for one in visits:
        assert one.problems == []
        assert one.strangers == []
