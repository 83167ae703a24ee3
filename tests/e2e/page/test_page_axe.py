"""The page by axe-core's rules in each of its states, light and dark, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_support import wait_until
from page_support import Open, Visit, chat_events
from test_page_markdown import SAMPLE
from test_page_tools import call_events, choice_events

SIZES = {"wide": {"width": 1280, "height": 800}, "phone": {"width": 375, "height": 667}}


@pytest.fixture(scope="module")
def axe() -> Any:
    """The checker, which brings axe-core's own script along."""
    return pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is not installed (the test extra)",
    ).Axe()


def violations(axe: Any, tab: Visit) -> list[str]:
    found = axe.run(tab.page).response["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


def shown(tab: Visit, button: str) -> None:
    """Opens what lies behind a button on a narrow screen."""
    if tab.page.is_visible(button):
        tab.page.click(button)


def closed(tab: Visit) -> None:
    """Closes what covers the page on a narrow screen."""
    tab.page.keyboard.press("Escape")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe(visit: Open, axe: Any, size: str, scheme: str) -> None:
    tab = visit(viewport=SIZES[size], color_scheme=scheme, expect=(404,)).ready()
    assert violations(axe, tab) == []
    tab.answer_with(chat_events(SAMPLE))
    tab.send("Show all.")
    tab.answer_with([{"error": {"message": "not this time", "type": "server_error"}}])
    tab.send("Again")
    shown(tab, "#open-settings")
    tab.set(n="2")
    tab.page.click("#tools-section summary")
    tab.page.click("#tools-example")
    assert violations(axe, tab) == []
    closed(tab)
    tab.answer_with(choice_events("**One**.", "Two."))
    tab.send("Count.")
    shown(tab, "#open-settings")
    tab.set(n="")
    closed(tab)
    tab.answer_with(call_events(("get_weather", '{"city": "Rome"}')))
    tab.send("Call.")
    shown(tab, "#open-library")
    assert violations(axe, tab) == []
    tab.page.get_by_role("button", name="Delete: Show all.").click()
    assert violations(axe, tab) == []
    tab.page.keyboard.press("Escape")
    closed(tab)
    tab.page.click("#open-key")
    assert violations(axe, tab) == []
    tab.page.keyboard.press("Escape")
    tab.page.click("a[data-view=dashboard]")
    wait_until(lambda: tab.page.locator("svg text").count() > 10)
    assert violations(axe, tab) == []
