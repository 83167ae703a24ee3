"""Conversations kept in the browser: listed, opened after a reload, renamed, exported, deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e_support import wait_until
from page_support import Open, Visit, chat_events

TITLES = "#kept .title"


def with_two(visit: Open, **options: Any) -> Visit:
    """Two conversations; the second one is on show."""
    tab = visit(**options).ready()
    tab.answer_with(chat_events("One **two**."))
    tab.send("First question").send("And then?")
    tab.page.click("#new")
    tab.set(system="Be brief.", temperature="0.25").send("Second question")
    return tab


def test_after_a_reload_all_is_as_it_was(visit: Open) -> None:
    tab = with_two(visit)
    tab.page.reload()
    tab.ready()
    assert tab.texts(".turn .text") == ["Second question", "One two."]
    assert tab.texts(".markdown strong") == ["two"]
    assert "3 in prompt" in tab.texts(".figures li")
    assert tab.texts(TITLES) == ["Second question", "First question"]
    assert tab.page.get_attribute(f"{TITLES} >> nth=0", "aria-current") == "true"
    assert (tab.page.input_value("#system"), tab.page.input_value("#temperature")) == ("Be brief.", "0.25")
    assert tab.page.input_value("[data-for=temperature]") == "0.25"
    tab.answer_with(chat_events("Three."))
    tab.send("More")
    assert [message["content"] for message in tab.sent[-1]["messages"]] == [
        *("Be brief.", "Second question", "One **two**.", "More")
    ]


def test_another_is_opened_and_goes_on(visit: Open) -> None:
    tab = with_two(visit)
    tab.page.get_by_role("button", name="First question").click()
    assert tab.texts(".turn.user .text") == ["First question", "And then?"]
    assert tab.page.input_value("#system") == ""
    assert tab.page.evaluate("document.activeElement.textContent") == "First question"
    tab.page.locator(".turn.assistant").last.get_by_role("button", name="Resend").click()
    tab.settled()
    assert len(tab.sent[-1]["messages"]) == 3
    assert tab.texts(TITLES) == ["First question", "Second question"]  # the last changed first


def test_rename_and_delete_with_the_keyboard(visit: Open) -> None:
    tab = with_two(visit)
    keys = tab.page.keyboard
    tab.page.get_by_role("button", name="Rename: Second question").focus()
    keys.press("Enter")
    keys.type("Not this")
    keys.press("Escape")
    assert tab.texts(TITLES)[0] == "Second question"
    tab.page.get_by_role("button", name="Rename: Second question").focus()
    keys.press("Enter")
    keys.type("Brief <b>")
    keys.press("Enter")
    assert tab.texts(TITLES)[0] == "Brief <b>"
    tab.send("More")
    assert tab.texts(TITLES)[0] == "Brief <b>"  # its first line names it no more

    tab.page.get_by_role("button", name="Delete: Brief <b>").focus()
    keys.press("Enter")
    keys.press("Escape")
    assert len(tab.texts(TITLES)) == 2
    keys.press("Enter")  # the focus is back on the button
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").focus()
    keys.press("Enter")
    assert tab.texts(TITLES) == ["First question"]
    assert tab.page.locator(".turn").count() == 0
    assert tab.page.text_content("#announce") == "Deleted."
    tab.page.reload()
    tab.ready()
    assert (tab.texts(TITLES), tab.page.locator(".turn").count()) == (["First question"], 0)


def test_export(visit: Open, tmp_path: Path) -> None:
    tab = with_two(visit)

    def exported(name: str) -> tuple[str, Any]:
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name=name).click()
        download.value.save_as(tmp_path / "export.json")
        return download.value.suggested_filename, json.loads((tmp_path / "export.json").read_text())

    name, one = exported("Export: Second question")
    assert name == "Second-question.json"
    said = [(turn["role"], turn["choices"][0]["text"]) for turn in one["turns"]]
    assert said == [("user", "Second question"), ("assistant", "One **two**.")]
    name, both = exported("Export all")
    assert [kept["title"] for kept in both] == ["Second question", "First question"]


def test_delete_all(visit: Open) -> None:
    tab = with_two(visit)
    tab.page.click("#delete-all")
    assert "all 2 conversations" in tab.page.text_content("#delete-text")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    assert tab.texts(TITLES) == []
    assert tab.page.is_visible("#none-kept")
    kept = "Object.keys(localStorage).filter((key) => key.includes('conversation'))"
    assert tab.page.evaluate(kept) == []


def test_what_others_wrote_into_storage_is_passed_over(visit: Open) -> None:
    bad = [
        "",
        "{",
        "null",
        "[]",
        '{"id": 3}',
        '{"id": "x", "title": "x", "mode": "chat", "turns": [{"role": "x"}]}',
    ]
    tab = with_two(visit)
    script = "(bad) => bad.forEach((text, i) => localStorage.setItem(`firelane.conversation.${i}`, text))"
    tab.page.evaluate(script, bad)
    tab.page.reload()
    tab.ready()
    assert len(tab.texts(TITLES)) == 2


def test_full_storage_is_said(visit: Open) -> None:
    tab = visit().ready()
    tab.page.evaluate(
        "() => { Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }; }"
    )
    tab.answer_with(chat_events("Yes."))
    seen: list[str] = []
    tab.page.expose_function("said", lambda text: seen.append(text))
    tab.page.evaluate(
        """new MutationObserver(() => window.said(document.getElementById("announce").textContent))
            .observe(document.getElementById("announce"), { childList: true })"""
    )
    tab.send("Hello")
    assert tab.answer == "Yes."
    wait_until(lambda: any("does not keep" in text for text in seen))


def test_another_tab_sees_it(visit: Open) -> None:
    tab = with_two(visit)
    other = tab.page.context.new_page()
    other.goto(tab.url)
    other.wait_for_selector(TITLES)
    tab.page.click("#new")
    tab.send("Third question")
    wait_until(lambda: other.locator(TITLES).count() == 3)


def test_on_a_phone_the_list_gives_way(visit: Open) -> None:
    tab = visit(viewport={"width": 375, "height": 667}).ready()
    tab.answer_with(chat_events("Yes."))
    tab.send("First question")
    assert tab.page.is_hidden("#library")
    tab.page.click("#open-library")
    assert tab.page.get_attribute("#open-library", "aria-expanded") == "true"
    tab.page.click(TITLES)
    assert tab.page.is_hidden("#library")
    assert tab.page.evaluate("document.activeElement.id") == "scroll"
