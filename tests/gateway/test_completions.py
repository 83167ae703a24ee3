from __future__ import annotations


def test_text(service):
    answer = service.openai.completions.create(model="toy", prompt="say", max_tokens=40)
    assert answer.choices[0].text == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 4  # with BOS
    assert answer.usage.completion_tokens == 12  # with EOS
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_stream(service):
    service.text = "grüße 🔥!"
    events = service.events("/v1/completions", {"prompt": "say", "max_tokens": 40})
    texts = [event["choices"][0]["text"] for event in events]
    assert "".join(texts) == "grüße 🔥!"
    assert "🔥" in texts
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
