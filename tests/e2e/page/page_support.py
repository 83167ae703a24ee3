"""Helpers that the page's tests share: a visit by a browser, and streams of events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

TIMEOUT_MS = 60_000


class Visit:
    """One tab. `problems`: errors that the page logged, but for answers of a status that the test expects;
    `strangers`: requests to other servers; `sent`: bodies of its requests for answers.
    """

    def __init__(
        self,
        browser: Any,
        url: str,
        view: str,
        *,
        expect: tuple[int, ...] = (),
        prepare: Callable[[Any], None] | None = None,
        **context: Any,
    ) -> None:
        self.url = url
        self.problems: list[str] = []
        self.strangers: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._expect = expect
        self._context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context})
        self.page = page = self._context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._on_request)
        if prepare is not None:
            prepare(page)
        page.goto(f"{url}/#{view}")

    def _on_console(self, message: Any) -> None:
        expected = any(f"status of {status}" in message.text for status in self._expect)
        if message.type in ("error", "warning") and not expected:
            self.problems.append(message.text)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.strangers.append(request.url)
        if request.method == "POST" and not request.url.endswith("/api/show"):
            self.sent.append(json.loads(request.post_data or "null"))
            self.headers.append(request.headers)

    def close(self) -> None:
        self._context.close()

    def ready(self) -> Visit:
        self.page.wait_for_selector('#state[data-state="ready"]')
        return self

    def set(self, **values: str) -> Visit:
        """Fill fields by their id; the key's underscores stay."""
        for name, value in values.items():
            self.page.fill(f"#{name}", value)
        return self

    def choose(self, mode: str) -> Visit:
        self.page.check(f"input[value={mode}]", force=True)
        return self

    def send(self, text: str) -> Visit:
        """With Enter; returns when the answer is complete."""
        turns = self.page.locator(".turn").count()
        self.page.fill("#message", text)
        self.page.press("#message", "Enter")
        self.page.wait_for_function("n => document.querySelectorAll('.turn').length > n", arg=turns)
        return self.settled()

    def settled(self) -> Visit:
        """No answer is on its way, and the last turn says how it ended."""
        self.page.wait_for_selector("#send:not([hidden])")
        self.page.wait_for_selector(".turn.assistant:last-child :is(.figures, .error)")
        return self

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    @property
    def answer(self) -> str:
        """The text of the last answer."""
        return self.page.locator(".turn.assistant .text").last.text_content()

    def answer_with(self, events: list[dict[str, Any]], path: str = "**/v1/chat/completions") -> None:
        """From now on requests get this stream."""
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.page.route(path, lambda route: route.fulfill(body=body, content_type="text/event-stream"))


Open = Callable[..., Visit]
"""Opens the page in a browser; conftest's `visit` is one."""


def chat_events(*texts: str) -> list[dict[str, Any]]:
    """Events of a stream that says these texts."""
    pieces = [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": len(texts), "total_tokens": 3 + len(texts)}
    return [
        *pieces,
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
