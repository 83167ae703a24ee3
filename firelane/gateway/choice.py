"""One sequence of a request: its tokens to text, and to what the text is made of.

A choice's tokens come straight from the frame handler and leave as one write; there is no task and no queue
between.
"""

from __future__ import annotations

from typing import Protocol

from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.deltas import CallStart, Splitter
from firelane.gateway.detokenize import Detokenizer, StopMatcher, make_detokenizer
from firelane.gateway.forms import TokenReport
from firelane.gateway.outlets import Outlet, OutputOptions, Tokens
from firelane.gateway.prompt import Prompt
from firelane.gateway.tokenizer import Tokenizer
from firelane.wire.frames import FinishReason, TokenLogprobs


class Owner(Protocol):
    """What a choice wants of the request that it belongs to."""

    options: OutputOptions
    tokenizer: Tokenizer
    gaps: dict[float, int]

    def first_token(self, choice: Choice, now_s: float) -> None: ...
    def choice_done(self, choice: Choice, reason: str, *, abort: bool) -> None: ...
    def fail(self, error: FirelaneError) -> None: ...


class Choice:
    """The Sink of one sequence's tokens. `splitter`: None where all text is content."""

    __slots__ = (
        *("_called", "_detokenizer", "_gaps", "_generation", "_last_s", "_matcher", "_options", "_outlet"),
        *("_plain", "_prompt", "_prompt_reports", "_reason", "_reports", "_shown_tokens", "_splitter"),
        *("_tail", "_tokens", "cached_tokens", "done", "first_s", "generated", "id", "planned_s"),
        *("_late", "reasoning_tokens"),
    )

    def __init__(
        self, request_id: int, generation: Owner, prompt: Prompt, outlet: Outlet, splitter: Splitter | None
    ) -> None:
        options = generation.options
        self.id = request_id
        self.done = False
        self.generated = 0
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self._generation = generation
        self._prompt = prompt
        self._outlet = outlet
        self._options = options
        self._gaps = generation.gaps
        self._detokenizer: Detokenizer = make_detokenizer(generation.tokenizer, options.kept_ids)
        self._matcher = StopMatcher(list(options.stop), keep=options.keep_stop) if options.stop else None
        self._splitter = splitter
        self._called = False
        special = self._matcher is not None or splitter is not None
        self._plain = not (special or options.logprobs or options.hide_output or options.token_ids)
        # Of an answer in one piece: tokens that become text all at once, at the end.
        self._late: list[int] | None = [] if self._plain and not options.stream else None
        self._tokens: list[int] = []
        self._shown_tokens = 0
        self._prompt_reports: list[TokenReport] = []
        self._reports: list[TokenReport] = []
        self._reason: FinishReason | None = None
        self._tail = ""
        self._last_s = 0.0
        self.planned_s = self.first_s = 0.0

    @property
    def last_s(self) -> float:
        """When its last token came; 0 before the first."""
        return self._last_s

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt.ids)

    @property
    def prompt_reports(self) -> list[TokenReport]:
        """Of all tokens of the prompt; the first one has no log-probability."""
        return [TokenReport(self._prompt.ids[0], None, []), *self._prompt_reports]

    def on_started(self, cached_tokens: int, planned_s: float) -> None:
        self.cached_tokens, self.planned_s = cached_tokens, planned_s

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        top = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        report = TokenReport(entry.token, entry.logprob, top)
        if entry.position >= len(self._prompt.ids):
            self._reports.append(report)
            return
        if self._options.prompt_logprobs:
            self._prompt_reports.append(report)
        if self._options.echo and self._options.logprobs:
            self._reports.append(report)

    def on_embedding(self, values: bytes) -> None:
        """Nobody asked for one."""

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
            if self._late is not None:
                self._late.append(token)
                return
            text = self._detokenizer.push(token)
            if text:
                self._outlet.text(text)
        else:
            self._catch_up()
            self._on_special(token)

    def _catch_up(self) -> None:
        late, self._late = self._late, None
        if late:
            self._outlet.text(self._detokenizer.push_all(late))

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
        """A token that needs a closer look: the last one, or one of an answer that is more than text."""
        if self._options.token_ids and not self._options.hide_output:
            self._tokens.append(token)
        if self._options.hide_output or self._reason == "stop":
            del self._reports[-1:]  # a stop token is not part of the answer
            return
        if self._splitter is not None and self._splitter.thinking:
            self.reasoning_tokens += 1
        text = self._detokenizer.push(token)
        stopped = False
        if self._matcher is not None and self.generated > self._options.min_tokens:
            text, stopped = self._matcher.push(text)
        if stopped:
            self._finish(text, "stop", abort=True)
        elif self._reason is not None:
            self._tail = text
        elif text:
            self._emit(text)

    def _emit(self, text: str) -> None:
        """Text that is certain, and not the last."""
        if self._splitter is not None:
            text = self._split(text, self._splitter)
            if self._splitter.done:
                self._finish("", "stop", abort=True)
                return
        if self._options.logprobs or self._options.token_ids:
            self._outlet.reported(text, self._take_reports(), None, self._take_tokens())
        elif text:
            self._outlet.text(text)

    def _split(self, text: str, splitter: Splitter, *, last: bool = False) -> str:
        """Hand on what the text is made of; "" is left of it."""
        deltas = splitter.push(text) if text else []
        if last:
            deltas += splitter.flush()
        if deltas:
            self._called = self._called or any(isinstance(delta, CallStart) for delta in deltas)
            self._outlet.deltas(deltas)
        return ""

    def _take_reports(self) -> list[TokenReport]:
        reports, self._reports = self._reports, []
        return reports

    def _take_tokens(self) -> Tokens | None:
        if not self._options.token_ids:
            return None
        first = self._shown_tokens == 0
        self._shown_tokens += len(self._tokens)
        ids, self._tokens = self._tokens, []
        return Tokens(ids, self._prompt.ids if first else None)

    def on_end(self) -> None:
        if self._reason in ("abort", "error"):
            what = "is shutting down" if self._reason == "abort" else "failed on this request"
            self.on_failed(EngineDeadError(f"the engine {what}: try again"))
            return
        self._catch_up()
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
        if self._splitter is not None:
            text = self._split(text, self._splitter, last=True)
            if self._called and reason == "stop":
                reason = "tool_calls"
        self._outlet.reported(text, self._take_reports(), reason, self._take_tokens())
        self._generation.choice_done(self, reason, abort=abort)

    def on_failed(self, error: FirelaneError) -> None:
        self._generation.fail(error)
