"""One client request in flight: its choices, its answer, its place in the queue."""

from __future__ import annotations

from collections.abc import Callable

from firelane.api.errors import describe
from firelane.api.usage import PromptTokensDetails, Usage
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
        self._admission = parts.admission
        self._now_s = parts.now_s
        self._arrived_s = parts.now_s()
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
        self._reason = reason
        self._open -= 1
        if self._open == 0:
            self._complete()

    def _complete(self) -> None:
        self._closed = True
        self._settle(200, self._reason)
        self.accounting.responded(200)
        if not self.options.stream:
            body = self._form.response(self._results, self.usage(), self.options.logprobs)
            self._exchange.respond(200, body)
            return
        self._exchange.send(self._form.closing(self.usage()))
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
                self.accounting.ended(reason, self._now_s() - self._arrived_s, choice.generated)
        self._settle(status, reason)

    def _settle(self, status: int, reason: str) -> None:
        """Give back what the request held, and have it counted. Prompts that never started cost nothing."""
        started = [
            (prompt, choice)
            for prompt, choice in zip(self._prompts, self._first_choices, strict=True)
            if choice.planned_s
        ]
        begun = [choice for choice in self._choices if choice.first_s]
        times = RequestTimes(
            arrived_s=self._arrived_s,
            planned_s=min((choice.planned_s for choice in begun), default=None),
            first_s=min((choice.first_s for choice in begun), default=None),
            last_s=max((choice.last_s for choice in begun), default=None),
            ended_s=self._now_s(),
        )
        self._admission.left(self)
        self._ticket.close(
            Outcome(
                status=status,
                reason=reason,
                model=self._model,
                prompt_tokens=sum(len(prompt.ids) for prompt, _ in started),
                cached_tokens=sum(choice.cached_tokens for _, choice in started),
                generated_tokens=sum(choice.generated for choice in self._choices),
                times=times,
            )
        )
