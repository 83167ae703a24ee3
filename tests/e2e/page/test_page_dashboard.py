"""The dashboard: its numbers move, it asks only while it is seen, it is of use before the engine is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_support import wait_until
from page_support import Open, Visit

from firelane.bench.server import ServerProcess
from firelane.gateway.tenants.keyfile import hashed


def fact(tab: Visit, list_id: str, name: str) -> str:
    """Return the text beside a term of a <dl>."""
    return (
        tab.page.locator(f"#{list_id} > div", has=tab.page.get_by_text(name, exact=True))
        .locator("dd")
        .text_content()
    )


def number(text: str) -> int:
    return int(text.replace(",", ""))


def stats_of(server: ServerProcess, **engine: Any) -> dict[str, Any]:
    stats = httpx.get(f"{server.url}/stats", timeout=600).json()
    stats["engine"].update(engine)
    return stats


def test_the_numbers_move(visit: Open, server: ServerProcess) -> None:
    tab = visit().ready().set(max_tokens="60", temperature="0")
    tab.page.click("a[data-view=dashboard]")
    before = number(fact(tab, "totals", "Output tokens"))
    requests = number(tab.page.locator("#tenants td").first.text_content() if before else "0")
    tab.page.click("a[data-view=playground]")
    tab.send("def first(items):")
    tab.page.click("a[data-view=dashboard]")
    wait_until(lambda: number(fact(tab, "totals", "Output tokens")) > before)
    wait_until(lambda: number(tab.page.locator("#tenants td").first.text_content()) == requests + 1)
    first_token = tab.page.locator("figure", has_text="Time to first token")
    wait_until(lambda: first_token.locator(".big").text_content().endswith("s"))
    assert fact(tab, "strip", "First token") == first_token.locator(".big").text_content()
    wait_until(lambda: first_token.locator("path.line0").get_attribute("d").count("L") >= 1)
    assert fact(tab, "server", "Batch") == "32 sequences"
    assert number(fact(tab, "totals", "Output tokens")) == stats_of(server)["tokens"]["generated"]
    pointing_shows_the_moment(tab)


def pointing_shows_the_moment(tab: Visit) -> None:
    chart = tab.page.locator("figure").first
    box = chart.locator("svg").bounding_box()
    tab.page.mouse.move(box["x"] + 60, box["y"] + 40)
    assert "ago" in chart.locator(".when").text_content()
    assert chart.locator("line.pointer").count() == 1
    tab.page.mouse.move(5, 5)
    assert chart.locator("line.pointer").count() == 0


def test_a_hidden_page_asks_nothing(visit: Open) -> None:
    asked: list[str] = []

    def prepare(page: Any) -> None:
        page.clock.install()
        page.on("request", lambda request: asked.append(request.url) if "/stats" in request.url else None)

    def show(state: str) -> None:
        tab.page.evaluate(
            """state => {
                Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            state,
        )

    def second() -> None:
        with tab.page.expect_response("**/stats*"):
            tab.page.clock.run_for(1000)

    tab = visit(prepare=prepare).ready()
    second()
    second()
    show("hidden")
    before = len(asked)
    tab.page.clock.run_for(10_000)
    assert len(asked) == before
    with tab.page.expect_response("**/stats*"):
        show("visible")
    assert len(asked) == before + 1
    second()


def node_model(name: str, state: str, **fields: Any) -> dict[str, Any]:
    """A model as a node reports it."""
    nothing = dict.fromkeys(
        ["held_bytes", "need_bytes", "requests", "waiting", "wakes", "evictions", "failures"], 0
    )
    times = {"state_s": 65.0, "idle_s": 5.0, "retry_s": 0.0, "pulled_bytes": 0, "pull_bytes": 0}
    rest = {"aliases": [], "doing": "", "reason": "", "priority": 0, "pinned": False}
    return {"name": name, "state": state, **nothing, **times, **rest, **fields}


def test_models_of_a_node(visit: Open, server: ServerProcess) -> None:
    models = [
        node_model("chat", "ready", aliases=["small"], held_bytes=3 << 30, wakes=2, evictions=1),
        node_model("code", "pulling", doing="512 of 2081 MB", waiting=4),
        node_model("old", "quarantined", reason="the weights are damaged", failures=3),
    ]
    answer = {
        **stats_of(server),
        "node": {"budget_bytes": 4 << 30, "used_bytes": 3 << 30, "models": models},
    }

    def prepare(page: Any) -> None:
        page.route(re.compile(r"/stats(\?|$)"), lambda route: route.fulfill(json=answer))

    tab = visit(prepare=prepare)
    tab.page.click("a[data-view=dashboard]")
    rows = tab.page.locator("#models tbody tr")
    wait_until(lambda: rows.count() == 3)
    assert tab.page.text_content("#models-memory") == "3 GiB of memory, of 4 GiB"
    assert tab.texts("#models tbody th") == ["chat, small", "code", "old"]
    assert tab.texts("#models .state") == ["ready", "pulling", "quarantined"]
    assert tab.texts("#models .doing") == [" 512 of 2081 MB", " the weights are damaged"]
    cells = rows.first.locator("td").all_text_contents()
    assert cells == ["ready", "1 min 5 s", "3 GiB", "5 s ago", "0", "0", "2", "1", "0"]
    answer["node"]["models"] = []
    wait_until(lambda: tab.page.locator("#models-panel").is_hidden())


def test_while_the_model_loads(visit: Open, server: ServerProcess) -> None:
    loading = {"stage": "compile", "done": 3, "total": 12, "unit": ""}
    unknown = dict.fromkeys(
        ["max_num_seqs", "max_model_len", "block_tokens", "weights_bytes", "kv_bytes", "load_s"]
    )
    now = {"stats": stats_of(server, state="loading", reason="compile 3 of 12", loading=loading, **unknown)}

    def prepare(page: Any) -> None:
        page.route(re.compile(r"/stats(\?|$)"), lambda route: route.fulfill(json=now["stats"]))

    tab = visit(prepare=prepare)
    bar = tab.page.get_by_role("progressbar")
    bar.wait_for()
    assert bar.get_attribute("aria-valuenow") == "25"
    assert "compile 3 of 12" in tab.page.text_content("#notice-text")
    tab.set(max_tokens="2", message="Hello").page.press("#message", "Enter")
    assert "as soon as the model is ready" in tab.page.text_content("#announce")
    tab.page.keyboard.press("Escape")
    assert tab.page.text_content("#send") == "Send"
    tab.page.press("#message", "Enter")
    assert tab.page.text_content("#send") == "Waiting"
    assert (tab.page.input_value("#message"), tab.sent) == ("Hello", [])
    now["stats"] = stats_of(server)
    tab.ready()
    assert tab.page.is_hidden("#notice")
    tab.settled()  # sent by itself
    assert [body["messages"][0]["content"] for body in tab.sent] == ["Hello"]


def test_a_server_that_has_gone(visit: Open) -> None:
    tab = visit(prepare=lambda page: page.clock.install()).ready()
    tab.page.route("**/stats*", lambda route: route.abort())
    tab.page.clock.run_for(1000)
    tab.page.wait_for_selector('#state[data-state="down"]')
    assert "does not answer" in tab.page.text_content("#notice-text")
    tab.page.unroute("**/stats*")
    tab.page.clock.run_for(1000)
    tab.ready()
    tab.problems = [text for text in tab.problems if "ERR_FAILED" not in text]


KEYS = {"boss": "boss-" + "k" * 40, "acme": "acme-" + "a" * 40}


@pytest.fixture(scope="module")
def keyed_server(
    browser: Any, environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    assert browser
    path: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    tenants = {name: {"keys": [hashed(key)], "admin": name == "boss"} for name, key in KEYS.items()}
    path.write_text(json.dumps({"tenants": tenants}))
    with ServerProcess(["--backend", "null", "--api-keys", str(path)], environ=environ) as started:
        yield started


def give_key(tab: Visit, key: str) -> None:
    if tab.page.is_hidden("#key-dialog"):
        tab.page.click("#open-key")
    tab.page.fill("#key", key)
    tab.page.keyboard.press("Enter")


def test_keys(visit: Open, keyed_server: ServerProcess) -> None:
    tab = visit(url=keyed_server.url, expect=(401, 403))
    wait_until(lambda: tab.page.text_content("#state") == "Key needed")
    give_key(tab, KEYS["acme"])
    tab.ready()
    wait_until(lambda: tab.page.input_value("#model") != "")
    tab.set(max_tokens="2").send("Hello")
    assert tab.headers[-1]["authorization"] == f"Bearer {KEYS['acme']}"
    tab.page.get_by_role("button", name="Code").click()
    assert KEYS["acme"] not in tab.page.text_content("#code")
    assert "$OPENAI_API_KEY" in tab.page.text_content("#code")
    tab.page.keyboard.press("Escape")
    tab.page.click("a[data-view=dashboard]")
    assert "admin" in tab.page.text_content("#refused")
    assert tab.page.is_hidden("#figures")

    give_key(tab, KEYS["boss"])
    tab.page.wait_for_selector("#figures:not([hidden])")
    row = tab.page.locator("#tenants tr", has_text="acme")
    assert row.locator("td").first.text_content() == "1"
    stored = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])"
    assert not any(key in tab.page.evaluate(stored) for key in KEYS.values())
    tab.page.reload()
    wait_until(lambda: tab.page.text_content("#state") == "Key needed")  # forgotten


def test_a_key_is_remembered_where_the_reader_asks(visit: Open, keyed_server: ServerProcess) -> None:
    tab = visit(url=keyed_server.url, expect=(401,))
    wait_until(lambda: tab.page.text_content("#state") == "Key needed")
    tab.page.click("#open-key")
    tab.page.check("#remember-key")
    give_key(tab, KEYS["boss"])
    tab.ready()
    tab.page.reload()
    tab.ready()
    tab.page.click("#open-key")
    assert tab.page.is_checked("#remember-key")
    tab.page.uncheck("#remember-key")
    give_key(tab, KEYS["boss"])
    tab.page.reload()
    wait_until(lambda: tab.page.text_content("#state") == "Key needed")


def test_a_wrong_key_is_asked_for_again(visit: Open, keyed_server: ServerProcess) -> None:
    tab = visit(url=keyed_server.url, expect=(401,))
    wait_until(lambda: tab.page.text_content("#state") == "Key needed")
    tab.send("Hello")
    assert "no API key" in tab.page.get_by_role("alert").text_content()
    assert tab.page.is_visible("#key-dialog")
    assert tab.page.evaluate("document.activeElement.id") == "key"


# What is computed, without a picture.


def run_module(tab: Visit, name: str, code: str) -> Any:
    """The value of an expression over a module's exports, `m`."""
    return tab.page.evaluate(f'import("/page/{name}.js").then((m) => ({code}))')


@pytest.fixture(scope="module")
def tab(browser: Any, server: ServerProcess) -> Iterator[Visit]:
    one = Visit(browser, server.url, "playground").ready()
    yield one
    one.close()


def test_percentiles(tab: Visit) -> None:
    cases = [
        ("m.quantile(0.5, [1, 2, 4], [0, 0, 0, 0])", None),
        ("m.quantile(0.5, [1, 2, 4], [0, 10, 0, 0])", 1.5),
        ("m.quantile(0.9, [1, 2, 4], [5, 0, 5, 0])", 3.6),
        ("m.quantile(0.99, [1, 2, 4], [1, 0, 0, 9])", 4),
        ("m.spread({bounds_s: [1, 2], counts: [3, 4, 0]}, {counts: [3, 0, 0]}).p50", 1.5),
    ]
    for code, value in cases:
        assert run_module(tab, "stats", code) == pytest.approx(value), code


def test_how_long_loading_takes(tab: Visit) -> None:
    said = run_module(
        tab,
        "loading",
        """(() => {
            const loading = new m.Loading();
            const at = (done, s, stage = "read") => loading.say({ stage, done, total: 100 }, s);
            return [at(10, 0), at(20, 1), at(40, 3), at(0, 90, "compile")];
        })()""",
    )
    assert said == [
        "",
        " Waiting for 1 s.",
        " Waiting for 3 s. About 6 s left of this step.",
        " Waiting for 1 min 30 s.",
    ]


def test_history_starts_again_with_another_server(tab: Visit, server: ServerProcess) -> None:
    stats = json.dumps(stats_of(server))
    lengths = run_module(
        tab,
        "stats",
        f"""(() => {{
            const history = new m.History(), stats = {stats}, lengths = [];
            const at = (s, started) => {{
                history.add({{ ...stats, now_s: s, started }});
                lengths.push(history.figures.length);
            }};
            at(0, 1); at(10, 1); at(305, 1); at(306, 1); at(5, 2);
            return lengths;
        }})()""",
    )
    assert lengths == [1, 2, 2, 3, 1]


def test_axes_and_lines(tab: Visit) -> None:
    tops = run_module(tab, "chart", "[0, 0.03, 1, 7, 130].map((v) => m.niceTop(v))")
    assert tops == pytest.approx([1, 0.05, 1, 10, 200])
    assert run_module(tab, "chart", "[0, 3, 11].map((v) => m.niceTop(v, true))") == [2, 4, 20]
    assert run_module(tab, "chart", "m.pathOf([[0, 1], [1, 2], null, [3, 4]])") == "M0.0 1.0L1.0 2.0M3.0 4.0"


def test_tokens_and_text_are_brought_together(tab: Visit) -> None:
    def pieces(text: str, tokens: list[str]) -> list[str]:
        listed = json.dumps([{"text": token} for token in tokens])
        return run_module(tab, "tokens", f"m.align({json.dumps(text)}, {listed}).map(([piece]) => piece)")

    assert pieces("one two", ["one", " two"]) == ["one", " two"]
    assert pieces("Hello you", [" Hello", " you"]) == ["Hello", " you"]  # a first blank that is not shown
    assert pieces("a😀b", ["a", "�", "�", "b"]) == ["a", "😀", "b"]  # a character of two tokens
    assert pieces("stop", ["st", "op", "here"]) == ["st", "op"]
    assert pieces("", ["x"]) == []


def test_the_page_tells_of_drafts(visit: Open, server: ServerProcess) -> None:
    tab = visit().ready()
    tab.page.click("a[data-view=dashboard]")
    wait_until(lambda: fact(tab, "totals", "Drafted tokens") != "")

    def shown() -> bool:
        drafts = stats_of(server)["drafts"]
        right = fact(tab, "totals", "Drafted and right").split(" (")[0]
        seen = number(fact(tab, "totals", "Drafted tokens")), number(right)
        return seen == (drafts["tokens"], drafts["accepted"])

    wait_until(shown)
