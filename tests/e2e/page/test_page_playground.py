"""The playground against a server that computes: send, stream, stop, edits, errors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import httpx
import pytest
from e2e_support import MODEL, TIMEOUT_S, metric, wait_until
from page_support import Open, Visit, chat_events

from firelane.bench.server import ServerProcess

QUESTION = "Write a function named flatten that takes a nested list."


def ask(server: ServerProcess, path: str, **body: object) -> dict:
    answer = httpx.post(server.url + path, json={"model": MODEL, "temperature": 0, **body}, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_chat_streams_what_the_api_says(visit: Open, server: ServerProcess) -> None:
    tab = visit().ready().set(temperature="0", max_tokens="40")
    tab.page.evaluate("""() => {
        window.steps = 0;
        new MutationObserver(() => { window.steps += 1; }).observe(document.getElementById("turns"),
            { subtree: true, childList: true, characterData: true });
    }""")
    tab.page.uncheck("#markdown")
    tab.send(QUESTION)
    messages = [{"role": "user", "content": QUESTION}]
    expected = ask(server, "/v1/chat/completions", messages=messages, max_tokens=40)
    assert tab.answer == expected["choices"][0]["message"]["content"]
    assert tab.page.evaluate("window.steps") > 4
    figures = " ".join(tab.texts(".figures li"))
    assert f"{expected['usage']['completion_tokens']} tokens" in figures
    assert f"{expected['usage']['prompt_tokens']} in prompt" in figures
    assert "first token" in figures
    assert "tok/s" in figures
    assert tab.page.input_value("#message") == ""


def test_conversation_edit_resend_new(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events("One", " two."))
    tab.send("First").send("Second")
    roles = [message["role"] for message in tab.sent[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert tab.sent[-1]["messages"][1]["content"] == "One two."

    tab.page.locator(".turn.assistant").last.get_by_role("button", name="Resend").click()
    tab.settled()
    assert tab.sent[-1] == tab.sent[-2]
    assert tab.page.locator(".turn").count() == 4

    tab.page.locator(".turn.user").first.get_by_role("button", name="Edit").click()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("Instead")
    tab.page.keyboard.press("Enter")
    tab.settled()
    assert tab.sent[-1]["messages"] == [{"role": "user", "content": "Instead"}]
    assert tab.texts(".turn .text") == ["Instead", "One two."]
    assert tab.page.evaluate("document.activeElement.id") == "scroll"  # where the reader was is gone

    tab.page.click("#new")
    assert tab.page.locator(".turn").count() == 0
    assert tab.page.is_visible("#empty")


def test_an_answer_can_be_rewritten(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events("Yes."))
    tab.send("First")
    tab.page.locator(".turn.assistant").get_by_role("button", name="Edit").click()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("No.")
    tab.page.keyboard.press("Enter")
    tab.send("Second")
    assert tab.sent[-1]["messages"][1] == {"role": "assistant", "content": "No."}


def ended(server: ServerProcess) -> float:
    """Requests that came to their end; before the first one there is no such metric."""
    lines = httpx.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{"))


def test_stop_frees_the_sequence(visit: Open, server: ServerProcess) -> None:
    tab = visit().ready().choose("completion").set(max_tokens="1500", temperature="0")
    before = ended(server)
    engine = server.engine_pids[0]
    os.kill(engine, signal.SIGSTOP)  # nothing ends before the button is pressed
    try:
        tab.page.fill("#message", "import os\n")
        tab.page.press("#message", "Enter")
        tab.page.wait_for_selector(".turn.busy")
        wait_until(lambda: metric(server.url, "firelane:sequences_in_flight") == 1)
        assert tab.page.is_hidden("#send")
        an_edit_waits(tab)
        tab.page.click("#stop")
        tab.settled()
        wait_until(lambda: metric(server.url, "firelane:sequences_in_flight") == 0)
    finally:
        with contextlib.suppress(ProcessLookupError):  # replaced, where all of this took long
            os.kill(engine, signal.SIGCONT)
    assert tab.texts(".figures li")[0] == "stopped"
    assert tab.page.text_content("#announce") == "Stopped."
    assert tab.page.evaluate("document.activeElement.id") == "message"
    wait_until(lambda: ended(server) == before + 1)
    tab.set(max_tokens="4").send("import os\n")  # and the next one is answered
    assert tab.answer


def an_edit_waits(tab: Visit) -> None:
    """While an answer is on its way the editor keeps its text; Esc there does not stop the answer."""
    tab.page.locator(".turn.user").get_by_role("button", name="Edit").click()
    tab.page.keyboard.type("!")
    tab.page.keyboard.press("Enter")
    assert "on its way" in tab.page.text_content("#announce")
    assert tab.page.input_value(".editor textarea").endswith("!")
    tab.page.keyboard.press("Escape")
    assert tab.page.locator(".editor").count() == 0
    assert tab.page.locator(".turn.busy").count() == 1


def test_completion_and_its_prompt(visit: Open, server: ServerProcess) -> None:
    tab = visit().ready().choose("completion").set(temperature="0", max_tokens="12")
    tab.page.uncheck("#stream")
    tab.send("def read_lines(path):\n    ")
    expected = ask(server, "/v1/completions", prompt="def read_lines(path):\n    ", max_tokens=12)
    assert tab.answer == expected["choices"][0]["text"]
    tab.page.get_by_role("button", name="Use as prompt").click()
    assert tab.page.input_value("#message") == "def read_lines(path):\n    " + tab.answer
    tab.choose("chat")
    assert tab.page.locator(".turn").count() == 0
    tab.choose("completion")
    assert tab.page.locator(".turn").count() == 2


@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_token_probabilities(visit: Open, mode: str) -> None:
    tab = visit().ready().choose(mode).set(temperature="0", max_tokens="16")
    tab.page.check("#logprobs")
    tab.page.fill("#alternatives", "4")
    tab.send("def read_lines(path):")
    tokens = tab.page.locator(".text .token")
    assert tokens.count() >= 4
    assert "".join(tokens.all_text_contents()) == tab.answer

    tokens.nth(2).hover()
    rows = tab.page.locator("#token-card li")
    assert rows.count() == 4
    shares = [float(text.rstrip("%, chosen")) for text in rows.locator(".value").all_text_contents()]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5
    assert "chosen" in rows.first.text_content()  # greedy: the best one

    tokens.first.focus()
    tab.page.keyboard.press("ArrowRight")
    assert tokens.nth(1).evaluate("token => token === document.activeElement")
    assert tokens.nth(1).get_attribute("aria-describedby") == "token-card"
    tab.page.keyboard.press("End")
    assert tokens.last.evaluate("token => token === document.activeElement")
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#token-card")


def test_error_of_the_server_is_shown(visit: Open) -> None:
    tab = visit(expect=(400,)).ready().choose("completion").set(top_k=str(2**40), max_tokens="4")
    tab.send("import")
    alert = tab.page.get_by_role("alert").text_content()
    assert "top_k" in alert
    assert "HTTP 400" in alert
    assert "invalid_request_error" in alert
    assert tab.page.get_attribute("#top_k", "aria-invalid") == "true"
    tab.set(top_k="1").send("import")
    assert tab.page.locator(".turn.assistant").last.locator(".error").count() == 0


def test_error_within_a_stream_keeps_what_came(visit: Open) -> None:
    tab = visit().ready()
    event = {"error": {"message": "the engine ended", "type": "service_unavailable_error"}}
    tab.answer_with([*chat_events("Half an")[:1], event])
    tab.send("Hello")
    assert tab.answer == "Half an"
    assert "the engine ended" in tab.page.get_by_role("alert").text_content()


def test_no_server(visit: Open) -> None:
    tab = visit().ready()
    tab.page.route("**/v1/**", lambda route: route.abort())
    tab.page.fill("#message", "Hello")
    tab.page.press("#message", "Enter")
    tab.settled()
    assert "does not answer" in tab.page.get_by_role("alert").text_content()
    tab.problems = [text for text in tab.problems if "ERR_FAILED" not in text]


def test_text_stays_text(visit: Open) -> None:
    tab = visit().ready()
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    tab.answer_with(chat_events(bad))
    tab.send(bad)
    assert tab.texts(".turn .text") == [bad, bad]
    assert tab.page.locator(".turn img, .turn script").count() == 0


def test_python_of_the_request_gives_the_same_answer(visit: Open) -> None:
    tab = visit().ready().set(temperature="0", max_tokens="8", top_k="3")
    tab.page.uncheck("#markdown")
    tab.page.fill("#stop-strings", 'it\'s "so"\\n')
    tab.send("def join(parts):\n    'x' \"y\" \\ é 😀")
    tab.page.get_by_role("button", name="Code").click()
    tab.page.check("input[value=python]", force=True)
    program = tab.page.text_content("#code")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    assert done.stdout == tab.answer


def test_curl_of_the_request(visit: Open) -> None:
    tab = visit(permissions=["clipboard-read", "clipboard-write"]).ready().choose("completion")
    tab.page.uncheck("#stream")
    tab.set(temperature="0", max_tokens="8").send('it\'s "$HOME" `x` \\n')
    tab.page.get_by_role("button", name="Code").click()
    tab.page.click("#copy-code")
    wait_until(lambda: tab.page.text_content("#copy-code") == "Copied")
    command = tab.page.evaluate("navigator.clipboard.readText()")
    assert command == tab.page.text_content("#code")
    # What a shell makes of it, without curl: the arguments.
    script = f'curl() {{ printf "%s\\0" "$@"; }}; {command}'
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    arguments = done.stdout.decode().split("\0")[:-1]
    assert arguments[0] == f"{tab.url}/v1/completions"
    assert httpx.Response(200, text=arguments[-1]).json() == tab.sent[0]
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#code-dialog")


def cut(text: str, **said: str) -> list[dict]:
    """Events of an answer that meets its limit of tokens."""
    events = chat_events(text)
    events[0]["choices"][0]["delta"] |= said
    events[-2]["choices"][0]["finish_reason"] = "length"
    return events


def test_an_answer_that_met_its_limit_goes_on(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(cut("One, two,"))
    tab.send("Count.")
    assert tab.texts(".figures li")[0] == "token limit reached"
    tab.answer_with(chat_events(" three."))
    tab.page.click(".more")
    wait_until(lambda: tab.answer.strip() == "One, two, three.")
    tab.settled()
    first, second = tab.sent
    assert second.pop("messages") == [*first.pop("messages"), {"role": "assistant", "content": "One, two,"}]
    assert second == {**first, "continue_final_message": True, "add_generation_prompt": False}
    assert tab.page.locator(".more").count() == 0
    tab.answer_with(cut("Four"))
    tab.send("And?")
    tab.page.reload()
    assert tab.ready().page.locator(".turn:last-child .more").is_visible()  # of a kept one, too


def test_a_completion_that_met_its_limit_goes_on(visit: Open) -> None:
    tab = visit().ready().choose("completion")
    tab.set(max_tokens="4", temperature="0").send("def main():\n")
    start = tab.answer
    tab.page.click(".more")
    wait_until(lambda: len(tab.sent) == 2)
    tab.settled()
    assert tab.sent[1]["prompt"] == f"def main():\n{start}"
    assert len(tab.answer) > len(start)
    assert tab.answer.startswith(start)


def test_examples_are_of_the_model(visit: Open) -> None:
    tab = visit().ready()
    assert "is_absolute" in tab.texts("#examples button")[0]
    other = visit(prepare=lambda page: page.route("**/v1/models", another_model), expect=(404,))
    wait_until(lambda: "sky" in "".join(other.texts("#examples button")))


def another_model(route) -> None:
    route.fulfill(json={"object": "list", "data": [{"id": "other", "object": "model"}]})


def test_reasoning_folds_when_the_answer_comes(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with([cut("", reasoning_content="Hm.")[0], *chat_events("Yes.")])
    tab.send("Is it?")
    assert tab.page.locator("details.reasoning pre").text_content() == "Hm."
    assert tab.page.locator("details.reasoning[open]").count() == 0
    tab.page.click("details.reasoning summary")
    assert tab.page.locator("details.reasoning pre").is_visible()


def test_a_reader_who_scrolls_up_stays_there(visit: Open) -> None:
    """A notch of the wheel, less than a line, while text comes."""
    tab = visit().ready()
    grow = """(up) => import("/page/follow.js").then(async ({ Follow }) => {
        const box = document.getElementById("scroll"), list = document.getElementById("turns");
        const frame = () => new Promise(requestAnimationFrame);
        const tall = () => Object.assign(document.createElement("li"), { style: "block-size: 300px" });
        const add = () => list.append(tall());
        const follow = new Follow(box);
        for (let i = 0; i < 6; i += 1) { add(); follow.soon(); await frame(); await frame(); }
        const end = () => box.scrollHeight - box.scrollTop - box.clientHeight;
        const before = end();
        if (up) { box.scrollTop -= 20; await frame(); await frame(); }
        for (let i = 0; i < 3; i += 1) { add(); follow.soon(); await frame(); await frame(); }
        return [before, end()];
    })"""
    assert tab.page.evaluate(grow, False) == [0, 0]
    tab.page.reload()
    assert tab.ready().page.evaluate(grow, True) == [0, 920]
