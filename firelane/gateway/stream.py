"""Hop 10: tokens to text to bytes on the client's connection.

A Generation is one client request; it has one Choice for each sequence that the engine runs for it. A
choice's tokens come straight from the frame handler and leave as one write; there is no task and no queue
between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from firelane.api.errors import describe
from firelane.api.usage import PromptTokensDetails, Usage
from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.accounting import Accounting
from firelane.gateway.admission import Admitted
from firelane.gateway.detokenize import Detokenizer, StopMatcher, make_detokenizer
from firelane.gateway.engine_link import EngineLink
from firelane.gateway.forms import DONE, ChoiceResult, Form, TokenReport, encode_json
from firelane.gateway.http import RETRY_SOON, Exchange
from firelane.gateway.prompt import Prompt
from firelane.gateway.tokenizer import Tokenizer
from firelane.wire.frames import FinishReason, TokenLogprobs


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What the client asked of the answer. hide_output: only the echoed prompt is wanted (max_tokens 0)."""

    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    echo: bool = False
    hide_output: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()


class Outlet(Protocol):
    """Where a choice's text goes: out as events, or into one answer at the end."""

    def begin(self) -> None: ...
    def text(self, text: str) -> None: ...
    def reported(self, text: str, reports: list[TokenReport], reason: str | None) -> None:
        """Text with its logprobs, or the end (`reason` is set)."""
        ...


class EventOutlet:
    """Writes one server-sent event per piece of text."""

    __slots__ = ("_around", "_exchange", "_form", "_index", "_offset", "_token_text", "_with_logprobs")

    def __init__(
        self, index: int, exchange: Exchange, form: Form, logprob_text: Callable[[int], str] | None
    ) -> None:
        self._index = index
        self._exchange = exchange
        self._form = form
        self._around = form.around_text(index)
        self._token_text = logprob_text
        self._offset = 0

    def begin(self) -> None:
        if not self._exchange.started:
            self._exchange.start_stream()
        opening = self._form.opening(self._index)
        if opening:
            self._exchange.send(opening)

    def text(self, text: str) -> None:
        head, tail = self._around
        self._exchange.send(b"%b%b%b" % (head, encode_json(text), tail))

    def reported(self, text: str, reports: list[TokenReport], reason: str | None) -> None:
        offset = None if self._token_text is None else self._offset
        self._exchange.send(self._form.event(ChoiceResult(self._index, text, reports, reason), offset))
        if self._token_text is not None:
            self._offset += sum(len(self._token_text(report.token)) for report in reports)


class ResultOutlet:
    """Gathers a choice for an answer in one piece."""

    __slots__ = ("_parts", "_result")

    def __init__(self, result: ChoiceResult) -> None:
        self._result = result
        self._parts: list[str] = []

    def begin(self) -> None:
        pass

    def text(self, text: str) -> None:
        self._parts.append(text)

    def reported(self, text: str, reports: list[TokenReport], reason: str | None) -> None:
        self._parts.append(text)
        self._result.reports.extend(reports)
        if reason is not None:
            self._result.reason = reason
            self._result.text = "".join(self._parts)


class Choice:
    """One sequence of a request: the Sink of its tokens."""

    __slots__ = (
        *(
            "_detokenizer",
            "_gaps",
            "_generation",
            "_last_s",
            "_matcher",
            "_min_tokens",
            "_options",
            "_outlet",
        ),
        *("_plain", "_prompt", "_reason", "_reports", "_tail", "cached_tokens", "done", "generated", "id"),
        *("first_s", "planned_s"),
    )

    def __init__(self, request_id: int, generation: Generation, prompt: Prompt, outlet: Outlet) -> None:
        options = generation.options
        self.id = request_id
        self.done = False
        self.generated = 0
        self.cached_tokens = 0
        self._generation = generation
        self._prompt = prompt
        self._outlet = outlet
        self._options = options
        self._gaps = generation.accounting.gaps
        self._detokenizer: Detokenizer = make_detokenizer(generation.tokenizer)
        self._matcher = StopMatcher(list(options.stop)) if options.stop else None
        self._plain = self._matcher is None and not options.logprobs and not options.hide_output
        self._reports: list[TokenReport] = []
        self._reason: FinishReason | None = None
        self._tail = ""
        self._last_s = 0.0
        self.planned_s = self.first_s = 0.0

    @property
    def last_s(self) -> float:
        """When its last token came; 0 before the first."""
        return self._last_s

    def on_started(self, cached_tokens: int, planned_s: float) -> None:
        self.cached_tokens, self.planned_s = cached_tokens, planned_s

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        if entry.position < len(self._prompt.ids) and not self._options.echo:
            return
        top = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        self._reports.append(TokenReport(entry.token, entry.logprob, top))

    def ending(self, reason: FinishReason) -> None:
        self._reason = reason

    def on_token(self, token: int, now_s: float) -> None:
        self.generated += 1
        last_s, self._last_s = self._last_s, now_s
        if last_s:
            self._gaps[last_s] = self._gaps.get(last_s, 0) + 1
        else:
            self._begin(now_s)
        if self._plain and self._reason is None:
            text = self._detokenizer.push(token)
            if text:
                self._outlet.text(text)
        else:
            self._on_special(token)

    def _begin(self, now_s: float) -> None:
        self.first_s = now_s
        self._generation.first_token(self, now_s)
        self._outlet.begin()
        if not self._options.echo:
            return
        prompt = self._prompt
        text = prompt.text if prompt.text is not None else self._generation.tokenizer.decode(prompt.ids)
        if not self._options.logprobs:
            self._outlet.text(text)
            return
        split = len(prompt.ids) - 1  # the first prompt token has no log-probability
        reports = [TokenReport(prompt.ids[0], None, []), *self._reports[:split]]
        self._reports = self._reports[split:]
        self._outlet.reported(text, reports, None)

    def _on_special(self, token: int) -> None:
        """A token that needs a closer look: the last one, or with stop strings, logprobs or hidden output."""
        if self._options.hide_output or self._reason == "stop":
            del self._reports[-1:]  # a stop token is not part of the answer
            return
        text = self._detokenizer.push(token)
        stopped = False
        if self._matcher is not None and self.generated > self._options.min_tokens:
            text, stopped = self._matcher.push(text)
        if stopped:
            self._finish(text, "stop", abort=True)
        elif self._reason is not None:
            self._tail = text
        elif not self._options.logprobs:
            if text:
                self._outlet.text(text)
        elif text:
            self._outlet.reported(text, self._take_reports(), None)

    def _take_reports(self) -> list[TokenReport]:
        reports, self._reports = self._reports, []
        return reports

    def on_end(self) -> None:
        if self._reason in ("abort", "error"):
            what = "is shutting down" if self._reason == "abort" else "failed on this request"
            self.on_failed(EngineDeadError(f"the engine {what}: try again"))
            return
        rest = self._detokenizer.flush()
        text, stopped = self._tail, False
        if self._matcher is not None and rest:
            rest, stopped = self._matcher.push(rest)
        text += rest
        if self._matcher is not None and not stopped:
            text += self._matcher.flush()
        self._finish(text, "stop" if stopped else str(self._reason), abort=False)

    def _finish(self, text: str, reason: str, *, abort: bool) -> None:
        if self.done:
            return
        self.done = True
        if self._options.hide_output:
            self.generated = 0
        if not self._last_s:  # ended without a token
            self._outlet.begin()
        self._outlet.reported(text, self._take_reports(), reason)
        self._generation.choice_done(self, reason, abort=abort)

    def on_failed(self, error: FirelaneError) -> None:
        self._generation.fail(error)


class Generation:
    """One client request in flight: its choices, its answer, its place in the queue."""

    def __init__(
        self,
        *,
        exchange: Exchange,
        form: Form,
        options: OutputOptions,
        link: EngineLink,
        admitted: Admitted,
        context: GenerationContext,
    ) -> None:
        self.options = options
        self.tokenizer = context.tokenizer
        self.accounting = context.accounting
        self._now_s = context.now_s
        self._arrived_s = context.now_s()
        self._exchange = exchange
        self._form = form
        self._link = link
        self._admitted = admitted
        self._choices: list[Choice] = []
        self._results: list[ChoiceResult] = []
        self._open = 0
        self._closed = False
        self._prompts: list[Prompt] = []
        self._first_choices: list[Choice] = []
        exchange.on_gone = self.cancel

    def add_choice(self, prompt: Prompt, *, first: bool) -> Choice:
        """The next choice; `first` of those with this prompt."""
        index = len(self._choices)
        if self.options.stream:
            token_text = self.tokenizer.token_text if self.options.logprobs else None
            outlet: Outlet = EventOutlet(index, self._exchange, self._form, token_text)
        else:
            self._results.append(ChoiceResult(index))
            outlet = ResultOutlet(self._results[-1])
        choice = Choice(self._link.next_id(), self, prompt, outlet)
        self._choices.append(choice)
        self._open += 1
        if first:
            self._prompts.append(prompt)
            self._first_choices.append(choice)
        return choice

    def first_token(self, choice: Choice, now_s: float) -> None:
        self.accounting.first_token(now_s - self._arrived_s)
        if choice in self._first_choices:
            self.accounting.started(len(self._prompts[self._first_choices.index(choice)].ids))

    def choice_done(self, choice: Choice, reason: str, *, abort: bool) -> None:
        """`abort`: the engine still runs the sequence, which is no longer wanted."""
        if abort:
            self._link.abort(choice.id)
        self.accounting.ended(reason, self._now_s() - self._arrived_s, choice.generated)
        if choice.first_s:
            self.accounting.phases(
                queue_s=choice.planned_s - self._arrived_s,
                prefill_s=choice.first_s - choice.planned_s,
                decode_s=choice.last_s - choice.first_s,
                generated_tokens=choice.generated,
            )
        self._open -= 1
        if self._open == 0:
            self._complete()

    def _complete(self) -> None:
        self._closed = True
        self._admitted.release()
        self.accounting.responded(200)
        if not self.options.stream:
            body = self._form.response(self._results, self.usage(), self.options.logprobs)
            self._exchange.respond(200, body)
            return
        if self.options.include_usage:
            self._exchange.send(self._form.usage_event(self.usage()))
        self._exchange.send(DONE)
        self._exchange.end()

    def usage(self) -> Usage:
        prompt = sum(len(prompt.ids) for prompt in self._prompts)
        completion = sum(choice.generated for choice in self._choices)
        cached = sum(choice.cached_tokens for choice in self._first_choices)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    def cancel(self) -> None:
        """The client has gone: free its sequences."""
        self._close("abort")

    def fail(self, error: FirelaneError) -> None:
        """End with an error: as a status when nothing was sent yet, else as an event."""
        if self._closed:
            return
        self._close("error")
        status, body = describe(error)
        self.accounting.responded(status)
        if self._exchange.started:
            self._exchange.send(b"data: %b\n\n" % body)
            self._exchange.end()
        else:
            self._exchange.respond(status, body, headers=RETRY_SOON if status == 503 else b"")

    def _close(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        for choice in self._choices:
            if not choice.done:
                choice.done = True
                self._link.abort(choice.id)
                self.accounting.ended(reason, self._now_s() - self._arrived_s, choice.generated)
        self._admitted.release()


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What all generations of a gateway share. now_s: the event loop's clock, which frames are stamped
    with.
    """

    tokenizer: Tokenizer
    accounting: Accounting
    now_s: Callable[[], float]
