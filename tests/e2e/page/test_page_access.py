"""For every reader: names, contrast, keys, small screens, both themes, no motion."""

from __future__ import annotations

from typing import Any

from e2e_support import wait_until
from page_support import Open, Visit, chat_events

CONTROLS = {
    *("button", "link", "textbox", "combobox", "spinbutton", "slider", "checkbox", "radio", "dialog"),
    *("progressbar", "form", "region", "navigation", "figure", "img", "list", "table"),
}
NAMELESS = {"list", "table", "navigation", "figure"}  # a name is good to have, not needed
CONTRAST = """() => {
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
    const ground = (node) => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) {
            layers.push(rgba(getComputedStyle(at).backgroundColor));
        }
        return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const light = (colour) => {
        const [r, g, b] = colour.map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
        const node = text.parentElement;
        if (!text.data.trim() || !node.checkVisibility()) continue;
        if (node.closest(".unseen, .skip, option, script")) continue;
        const style = getComputedStyle(node);
        const below = ground(node);
        const ink = over(rgba(node instanceof SVGElement ? style.fill : style.color), below);
        const [high, low] = [light(ink), light(below)].sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        found.push([ratio, text.data.trim().slice(0, 40), node.className.toString()]);
    }
    return found;
}"""


CLOSE = "[data-closes=open-settings]"


def with_everything(tab: Visit) -> Visit:
    """Every setting open, an answer with tokens of all shades, and one with an error."""
    tab.ready()
    is_narrow = tab.page.is_visible("#open-settings")
    if is_narrow:
        tab.page.click("#open-settings")
    tab.page.check("#logprobs")
    tab.page.click("summary")
    tab.page.select_option("#structure", "regex")
    tokens = [
        {"token": "ab", "logprob": logprob, "bytes": [97, 98], "top_logprobs": []}
        for logprob in (-0.01, -0.4, -1, -2, -5)
    ]
    if is_narrow:
        tab.page.click(CLOSE)
    events = chat_events("ab" * 5)
    events[0]["choices"][0]["logprobs"] = {"content": tokens}
    tab.answer_with(events)
    tab.send("Hello")
    tab.answer_with([{"error": {"message": "not this time", "type": "server_error"}}])
    tab.send("Again")
    if is_narrow:
        tab.page.click("#open-settings")
    tab.set(temperature="9")
    if is_narrow:
        tab.page.click(CLOSE)
    tab.set(message="Wrong").page.press("#message", "Enter")
    tab.page.locator(".token").last.focus()
    return tab


VIEWS = ("playground", "dashboard")


def test_contrast(visit: Open) -> None:
    tab = with_everything(visit())
    for view in VIEWS:
        tab.page.click(f"a[data-view={view}]")
        wait_until(lambda view=view: view == "playground" or tab.page.locator("svg text").count() > 10)
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            found = tab.page.evaluate(CONTRAST)
            assert len(found) > 40
            assert [entry for entry in found if entry[0] < 4.5] == [], (view, scheme)


def test_everything_has_a_name(visit: Open) -> None:
    tab = with_everything(visit())
    client = tab.page.context.new_cdp_session(tab.page)
    for view in VIEWS:
        tab.page.click(f"a[data-view={view}]")
        check_names(client)


def check_names(client: Any) -> None:
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    seen = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in CONTROLS
    ]
    assert len(seen) > 8
    assert [role for role, name in seen if not name and role not in NAMELESS] == []


def test_page_has_one_of_each_landmark(visit: Open) -> None:
    tab = visit().ready()
    counts = {tag: tab.page.locator(tag).count() for tag in ("main", "h1", "nav", "body > header")}
    assert set(counts.values()) == {1}
    assert tab.page.get_attribute("html", "lang") == "en"
    ids = tab.page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))


def focused(tab: Visit) -> str:
    return tab.page.evaluate(
        "(({ id, textContent, value }) => (id || textContent || value).trim())(document.activeElement)"
    )


def tab_to(tab: Visit, what: str) -> None:
    """With the Tab key alone."""
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        if focused(tab) == what:
            return
    raise AssertionError(f"Tab never comes to {what}")


def test_with_the_keyboard_alone(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events("One."))
    tab.page.keyboard.press("Tab")
    assert focused(tab) == "Skip to the message field"
    tab.page.keyboard.press("Enter")
    assert focused(tab) == "message"
    tab.page.keyboard.type("Hello")
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("there")
    tab.page.keyboard.press("Enter")
    tab.settled()
    assert tab.sent[0]["messages"][0]["content"] == "Hello\nthere"
    tab_to(tab, "temperature")
    tab.page.keyboard.press("ArrowUp")
    assert tab.page.input_value("#temperature") == "0.85"
    tab_to(tab, "Playground")
    tab_to(tab, "Code")
    tab.page.keyboard.press("Enter")
    assert tab.page.is_visible("#code-dialog")
    tab.page.keyboard.press("Escape")
    assert focused(tab) == "Code"
    tab_to(tab, "Dashboard")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#charts")
    tab.page.locator(".skip").focus()
    tab.page.keyboard.press("Enter")
    wait_until(lambda: focused(tab) == "message")


def test_focus_can_be_seen(visit: Open) -> None:
    tab = visit().ready()
    for _ in range(25):
        tab.page.keyboard.press("Tab")
        shown = tab.page.evaluate(
            """() => {
                const node = document.activeElement;
                const shows = (one) => one && getComputedStyle(one).outlineStyle !== "none";
                return node === document.body || shows(node) || shows(node.nextElementSibling);
            }"""
        )
        assert shown, focused(tab)


def test_nothing_is_wider_than_the_window(visit: Open) -> None:
    tab = with_everything(visit(viewport={"width": 320, "height": 640}))
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    tab.page.keyboard.press("Escape")  # what covers the page where it is narrow
    for view in VIEWS:
        tab.page.click(f"a[data-view={view}]")
        for width in (320, 360, 768, 901, 1280, 2200):
            tab.page.set_viewport_size({"width": width, "height": 640})
            assert tab.page.evaluate(widths) == [width, width], view


def test_on_a_phone(visit: Open) -> None:
    tab = visit(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True).ready()
    assert tab.page.is_hidden("#settings")
    tab.page.tap("#open-settings")
    assert tab.page.get_attribute("#open-settings", "aria-expanded") == "true"
    for field in ("#settings", "#system"):  # the panel covers the page, from its top on
        assert 0 <= tab.page.locator(field).bounding_box()["y"] < 320
    tab.set(max_tokens="12", temperature="0")
    tab.page.keyboard.press("Escape")
    assert (focused(tab), tab.page.is_hidden("#settings")) == ("open-settings", True)
    tab.page.fill("#message", "Hello")
    tab.page.tap("#send")
    tab.settled()
    assert tab.sent[0]["max_tokens"] == 12
    assert tab.page.locator(".figures").is_visible()
    box = tab.page.locator("#send").bounding_box()
    assert box["y"] + box["height"] <= 640  # the message field stays in sight


def test_a_wrong_setting_comes_to_sight_on_a_phone(visit: Open) -> None:
    tab = visit(viewport={"width": 360, "height": 640}).ready()
    tab.page.click("#open-settings")
    tab.set(top_p="7")
    tab.page.click(CLOSE)
    tab.set(message="Hello").page.press("#message", "Enter")
    assert focused(tab) == "top_p"
    assert tab.page.is_visible("#top_p-wrong")


def ground(tab: Visit) -> str:
    return tab.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_themes(visit: Open) -> None:
    tab = visit(color_scheme="light").ready()
    light = ground(tab)
    tab.page.emulate_media(color_scheme="dark")
    dark = ground(tab)
    assert light != dark
    button = tab.page.get_by_role("button", name="Theme")
    button.click()
    assert (button.text_content(), ground(tab)) == ("Theme: light", light)
    tab.page.reload()
    tab.ready()
    assert (button.text_content(), ground(tab)) == ("Theme: light", light)
    button.click()
    tab.page.emulate_media(color_scheme="light")
    assert (button.text_content(), ground(tab)) == ("Theme: dark", dark)
    button.click()
    assert (button.text_content(), ground(tab)) == ("Theme: auto", light)


def test_no_motion_where_none_is_wanted(visit: Open) -> None:
    tab = visit(reduced_motion="reduce").ready()
    style = """() => {
        const style = (name) => getComputedStyle(document.querySelector(name));
        const turn = document.createElement("div");
        turn.className = "busy";
        turn.innerHTML = '<div class="text" id="probe"></div>';
        document.body.append(turn);
        const caret = getComputedStyle(document.getElementById("probe"), "::after").animationName;
        return [caret, style("#notice-bar div").transitionDuration];
    }"""
    assert tab.page.evaluate(style) == ["none", "0s"]


def test_only_short_news_is_spoken(visit: Open) -> None:
    """The text that streams is in no live region: a reader would never be done."""
    tab = visit().ready()
    tab.answer_with(chat_events("One.", " Two."))
    tab.send("Hello")
    live = tab.page.locator("[aria-live], [role=status], [role=alert], [role=log]")
    assert live.evaluate_all("(nodes) => nodes.map((node) => node.id)") == ["announce"]
    assert tab.page.text_content("#announce") == "The answer is complete: 2 tokens."
    assert tab.page.locator(".turn.assistant .text").get_attribute("aria-busy") == "false"
