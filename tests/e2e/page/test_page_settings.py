"""The playground's settings: what is set is sent, and checked before."""

from __future__ import annotations

from e2e_support import MODEL, wait_until
from page_support import Open, chat_events


def test_only_what_is_set_is_sent(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events("Fine."))
    tab.send("Hello")
    assert tab.sent == [
        {
            "messages": [{"role": "user", "content": "Hello"}],
            "model": MODEL,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_all_settings_are_sent(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events("Fine."))
    tab.page.click("summary")
    numbers = {"temperature": 0.35, "top_p": 0.9, "top_k": 40, "max_tokens": 7, "seed": -5, "min_p": 0.05}
    numbers |= {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1}
    tab.set(**{name: str(value) for name, value in numbers.items()})
    tab.page.fill("#system", "Be brief.")
    tab.page.fill("#stop-strings", "END\n\\n\\n")
    tab.page.check("#logprobs")
    tab.page.fill("#alternatives", "3")
    tab.page.uncheck("#stream")
    tab.page.fill("#message", "Hello")
    tab.page.click("#send")
    tab.settled()
    (body,) = tab.sent
    assert body.pop("messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert body == {
        **numbers,
        "model": MODEL,
        "stop": ["END", "\n\n"],
        "logprobs": True,
        "top_logprobs": 3,
    }


def test_a_slider_and_its_number_move_together(visit: Open) -> None:
    tab = visit().ready()
    tab.page.fill("#temperature", "1.5")
    assert tab.page.input_value("[data-for=temperature]") == "1.5"
    tab.page.focus("[data-for=temperature]")
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.input_value("#temperature") == "1.55"
    tab.page.click("#reset")
    wait_until(lambda: tab.page.input_value("[data-for=temperature]") == "0.8")


def test_a_wrong_number_is_not_sent(visit: Open) -> None:
    tab = visit().ready().set(message="Hello")
    for name, value in (("temperature", "3"), ("top_k", "1.5"), ("max_tokens", "0"), ("seed", "1" * 20)):
        tab.page.fill(f"#{name}", value)
        tab.page.press("#message", "Enter")
        assert tab.page.get_attribute(f"#{name}", "aria-invalid") == "true"
        assert tab.page.evaluate("document.activeElement.id") == name
        note = tab.page.get_attribute(f"#{name}", "aria-describedby")
        assert "must be" in tab.page.text_content(f"#{note}")
        tab.page.fill(f"#{name}", "1")
        assert tab.page.get_attribute(f"#{name}", "aria-invalid") is None
    assert tab.page.input_value("#message") == "Hello"
    assert tab.sent == []


def test_answers_draw_as_programs_for_people_do(visit: Open) -> None:
    tab = visit().ready()
    wait_until(lambda: tab.page.get_attribute("#temperature", "placeholder") == "0.8")
    assert [tab.page.get_attribute(f"#{n}", "placeholder") for n in ("top_p", "top_k", "min_p")] == [
        *("0.95", "40", "0.05"),
    ]
    tab.answer_with(chat_events("Fine."))
    tab.send("Hello")
    assert tab.headers[-1]["x-sampling-defaults"] == "llama.cpp"
