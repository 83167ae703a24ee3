"""One client request in flight: its choices, its answer, its place in the queue."""

from __future__ import annotations

from collections.abc import Callable

from firelane.api.errors import describe
from firelane.api.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from firelane.errors import FirelaneError
from firelane.gateway.choice import Choice
from firelane.gateway.deltas import Splitter
from firelane.gateway.engine_link import EngineLink
from firelane.gateway.exchange import retry_header
from firelane.gateway.forms import ChoiceResult, Form
from firelane.gateway.ledger import CLIENT_GONE, Outcome
from firelane.gateway.outlets import EventOutlet, Outlet, OutputOptions, ResultOutlet
from firelane.gateway.parts import Parts
from firelane.gateway.prompt import Prompt
from firelane.gateway.ticket import Ticket
from firelane.telemetry.traces import RequestTimes


class Generation:
    """Owns the choices, and gives the room in the queue back when the last of them ends."""

    def __init__(
        self,
        form: Form,
        options: OutputOptions,
        link: EngineLink,
        ticket: Ticket,
        parts: Parts,
        model: str,
    ) -> None:
        self.options = options
        self.tokenizer = parts.tokenizer
        self.accounting = parts.accounting
        self._timed = not ticket.exchange.request.background
        self.gaps = parts.accounting.gaps if self._timed else parts.accounting.unseen_gaps
        self._admission = parts.admission
        self._now_s = parts.now_s
        self._arrived_s = ticket.arrived_s
        self._exchange = exchange = ticket.exchange
        self._form = form
        self._link = link
        self._ticket = ticket
        self._model = model
        self._reason = ""
        self._choices: list[Choice] = []
        self._results: list[ChoiceResult] = []
        self._open = 0
        self._closed = False
        self._prompts: list[Prompt] = []
        self._first_choices: list[Choice] = []
        exchange.on_gone = self.cancel
        if options.live_usage is not None:
            options.live_usage.read = self.usage

    @property
    def began(self) -> bool:
        return any(choice.planned_s for choice in self._choices)

    def add_choice(self, prompt: Prompt, splitter: Callable[[], Splitter] | None, *, first: bool) -> Choice:
        """The next choice; `first` of those with this prompt."""
        index = len(self._choices)
        if self.options.stream:
            token_text = self.tokenizer.token_text if self.options.logprobs else None
            outlet: Outlet = EventOutlet(index, self._exchange, self._form, token_text)
        else:
            self._results.append(ChoiceResult(index))
            outlet = ResultOutlet(self._results[-1])
        split = None if splitter is None else splitter()
        choice = Choice(self._link.next_id(), self, prompt, outlet, split)
        self._choices.append(choice)
        self._open += 1
        if first:
            self._prompts.append(prompt)
            self._first_choices.append(choice)
        return choice

    def first_token(self, choice: Choice, now_s: float) -> None:
        if self._timed:
            self.accounting.first_token(now_s - self._arrived_s)
        if choice in self._first_choices:
            self.accounting.started(len(self._prompts[self._first_choices.index(choice)].ids))

    def choice_done(self, choice: Choice, reason: str, *, abort: bool) -> None:
        """`abort`: the engine still runs the sequence, which is no longer wanted."""
        if abort:
            self._link.abort(choice.id)
        self.accounting.ended(reason, self._lasted_s(), choice.generated)
        if choice.first_s and self._timed:
            self.accounting.phases(
                queue_s=choice.planned_s - self._arrived_s,
                prefill_s=choice.first_s - choice.planned_s,
                decode_s=choice.last_s - choice.first_s,
                generated_tokens=choice.generated,
            )
        self._reason = reason
        self._open -= 1
        if self._open == 0:
            self._complete()

    def _complete(self) -> None:
        self._closed = True
        self._settle(200, self._reason)
        self.accounting.responded(200)
        if not self.options.stream:
            with_logprobs = self.options.logprobs and not self.options.hide_logprobs
            self._exchange.respond(200, self._form.response(self._chosen(), self.usage(), with_logprobs))
        else:
            self._exchange.send(self._form.closing(self.usage()))
            self._exchange.end()
        self._forget()

    def _chosen(self) -> list[ChoiceResult]:
        """The results that the client gets, with what it wants to know of their prompts."""
        options = self.options
        for result, choice in zip(self._results, self._choices, strict=True):
            if options.prompt_logprobs:
                result.prompt_reports = choice.prompt_reports
            if options.echo and options.logprobs:
                result.echoed_tokens = choice.prompt_tokens
        return self._results if options.best_of is None else options.best_of.choose(self._results)

    def usage(self) -> Usage:
        prompt = sum(len(prompt.ids) for prompt in self._prompts)
        completion = sum(choice.generated for choice in self._choices)
        cached = sum(choice.cached_tokens for choice in self._first_choices)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(choice.reasoning_tokens for choice in self._choices)
            ),
        )

    def cancel(self) -> None:
        """The client has gone: free its sequences."""
        self._close("abort", CLIENT_GONE)

    def fail(self, error: FirelaneError) -> None:
        """End with an error: as a status when nothing was sent yet, else as an event."""
        if self._closed:
            return
        status, body = describe(error)
        self._close("error", status)
        self.accounting.responded(status)
        if self._exchange.started:
            self._exchange.send(self._form.failure(body))
            self._exchange.end()
        else:
            self._exchange.respond(status, body, headers=retry_header(error))

    def _close(self, reason: str, status: int) -> None:
        if self._closed:
            return
        self._closed = True
        for choice in self._choices:
            if not choice.done:
                choice.done = True
                self._link.abort(choice.id)
                self.accounting.ended(reason, self._lasted_s(), choice.generated)
        self._settle(status, reason)
        self._forget()

    def _lasted_s(self) -> float | None:
        return self._now_s() - self._arrived_s if self._timed else None

    def _forget(self) -> None:
        """Choices point to their owner: without this, only the garbage collector would free an answer."""
        self._choices, self._first_choices = [], []

    def _settle(self, status: int, reason: str) -> None:
        """Give back what the request held, and have it counted. Prompts that never started cost nothing."""
        prompt_tokens = cached_tokens = generated_tokens = 0
        times = RequestTimes(self._arrived_s, self._now_s())
        for choice in self._choices:
            generated_tokens += choice.generated
            times.add(choice.planned_s, choice.first_s, choice.last_s)
        for prompt, choice in zip(self._prompts, self._first_choices, strict=True):
            if choice.planned_s:
                prompt_tokens += len(prompt.ids)
                cached_tokens += choice.cached_tokens
        self._admission.left(self)
        self._ticket.close(
            Outcome(
                status=status,
                reason=reason,
                model=self._model,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                generated_tokens=generated_tokens,
                times=times,
            )
        )
