"""One sequence of a request: its tokens to text, and to what the text is made of.

A choice's tokens come straight from the frame handler and leave as one write; there is no task and no queue
between.
"""

from __future__ import annotations

from collections.abc import Sequence

from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.requests.formats import TokenReport
from firelane.gateway.requests.run import RequestRun, SequenceStats
from firelane.gateway.requests.sinks import OutputOptions, PieceTokens, ResponseSink
from firelane.text.deltas import CallStart
from firelane.text.prompt import Prompt
from firelane.text.tokens.detokenize import Detokenizer, SequenceText
from firelane.text.tokens.tokenizer import Tokenizer
from firelane.text.tools.stream_buffer import OutputParser
from firelane.wire.frames import Finished, FinishReason, PagesAt, Started, TokenLogprobs


class Choice:
    """The Sink of one sequence's tokens. `splitter`: None where all text is content."""

    __slots__ = (
        *(
            "_called",
            "_detokenizer",
            "_gaps",
            "_has_line",
            "_held_at",
            "_late",
            "_options",
            "_pages",
            "_plain",
            "_prompt",
        ),
        *("_prompt_reports", "_reason", "_reports", "_run", "_shown_tokens", "_sink", "_splitter", "_tail"),
        *("_text", "_tokenizer", "_tokens", "stats"),
    )

    def __init__(
        self,
        stats: SequenceStats,
        run: RequestRun,
        prompt: Prompt,
        sink: ResponseSink,
        splitter: OutputParser | None,
        options: OutputOptions,
        tokenizer: Tokenizer,
    ) -> None:
        self.stats = stats
        self._pages: PagesAt | None = None
        self._run = run
        self._prompt = prompt
        self._sink = sink
        self._options = options
        self._tokenizer = tokenizer
        self._gaps = run.gaps
        self._detokenizer: Detokenizer = tokenizer.detokenizer(options.visible_special_ids)
        self._text = SequenceText(
            self._detokenizer,
            list(options.stop),
            keep_stop=options.keep_stop,
            min_tokens=options.min_tokens,
        )
        self._splitter = splitter
        self._called = self._has_line = False
        special = bool(options.stop) or splitter is not None
        special |= options.stream and options.live_usage is not None  # of each token
        special |= options.time_limit_s > 0
        self._plain = not (special or options.logprobs or options.hide_output or options.token_ids)
        # Of an answer in one piece: tokens that become text all at once, at the end.
        self._late: list[int] | None = [] if self._plain and not options.stream else None
        self._tokens: list[int] = []
        self._shown_tokens = 0
        self._prompt_reports: list[TokenReport] = []
        self._reports: list[TokenReport] = []
        self._reason: FinishReason | None = None
        self._tail = ""
        self._held_at: int | None = None  # tokens before those of which the sink keeps what they make

    def on_started(self, started: Started, planned_s: float) -> None:
        stats = self.stats
        stats.cached_tokens, stats.planned_s = started.cached_tokens, planned_s
        stats.host_tokens, stats.disk_tokens = started.host_tokens, started.disk_tokens
        stats.peer_tokens = started.peer_tokens

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        top = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        report = TokenReport(entry.token, entry.logprob, top)
        if entry.position >= len(self._prompt):
            self._reports.append(report)
            return
        if self._options.prompt_logprobs:
            self._prompt_reports.append(report)
        if self._options.echo and self._options.logprobs:
            self._reports.append(report)

    def on_embedding(self, values: bytes) -> None:
        """Nobody asked for one."""

    def ending(self, finished: Finished) -> None:
        self._reason, self.stats.rejected_drafts = finished.reason, finished.rejected_drafts

    def hold(self) -> None:
        self._held_at = self.stats.generated
        self._sink.merge()

    def release(self) -> None:
        if self._held_at is not None:
            self.stats.accepted_drafts += self.stats.generated - self._held_at - 1
            self._held_at = None
            self._sink.flush()

    def on_waiting(self) -> None:
        self._sink.waiting()

    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None:
        stats, more = self.stats, len(tokens) - 1
        stats.generated += 1
        last_s, stats.last_s = stats.last_s, now_s
        if last_s:
            self._gaps[last_s] += 1
        else:
            self._begin(now_s)
        if more:
            self._gaps[now_s] += more
        if not self._plain or self._reason is not None:
            self._catch_up()
            self._on_specials(tokens)
            return
        stats.generated += more
        if self._late is not None:
            self._late += tokens
        elif texts := self._detokenizer.texts(tokens):
            self._sink.texts(texts)

    def _catch_up(self) -> None:
        late, self._late = self._late, None
        if late:
            self._sink.texts([self._detokenizer.push_all(late)])

    def _begin(self, now_s: float) -> None:
        self.stats.first_s = now_s
        self._run.first_token(self.stats, now_s)
        self._sink.begin()
        if self._options.prefix:
            self._sink.texts([self._options.prefix])
        if not self._options.echo:
            return
        prompt = self._prompt
        text = prompt.text if prompt.text is not None else self._tokenizer.decode(prompt.ids.tolist())
        if not self._options.logprobs:
            self._sink.texts([text])
            return
        split = len(prompt) - 1  # the first prompt token has no log-probability
        reports = [TokenReport(prompt.ids[0], None, []), *self._reports[:split]]
        self._reports = self._reports[split:]
        self._sink.reported(text, reports, None)

    def _on_specials(self, tokens: Sequence[int]) -> None:
        """Events of several tokens are one write. What comes behind the end is not part of the answer."""
        if len(tokens) > 1:
            self._sink.hold()
        try:
            for i, token in enumerate(tokens):
                if self.stats.done:
                    break
                self.stats.generated += i > 0
                self._on_special(token)
        finally:
            self._sink.release()

    def _on_special(self, token: int) -> None:
        """A token that needs a closer look: the last one, or one of an answer that is more than text."""
        if self._options.token_ids and not self._options.hide_output:
            self._tokens.append(token)
        if self._options.hide_output or self._reason == "stop":
            del self._reports[-1:]  # a stop token is not part of the answer
            return
        if self._splitter is not None and self._splitter.in_reasoning:
            self.stats.reasoning_tokens += 1
        text, stopped = self._text.push(token)
        if stopped:
            self._finish(text, "stop", abort=True)
        elif self._reason is not None:
            self._tail = text
        elif self._options.time_limit_s and self._is_late(text):
            self._finish(text, "length", abort=True)
        elif text:
            self._emit(text)

    def _is_late(self, text: str) -> bool:
        """Whether an answer that has a line has taken its time."""
        self._has_line |= "\n" in text
        return self._has_line and self.stats.last_s - self.stats.first_s > self._options.time_limit_s

    def _emit(self, text: str) -> None:
        """Text that is certain, and not the last."""
        if self._splitter is not None:
            text = self._split(text, self._splitter)
            if self._splitter.done:
                self._finish("", "stop", abort=True)
                return
        if self._options.logprobs or self._options.token_ids:
            self._sink.reported(text, self._take_reports(), None, self._take_tokens())
        elif text:
            self._sink.texts([text])

    def _split(self, text: str, splitter: OutputParser, *, last: bool = False) -> str:
        """Hand on what the text is made of; "" is left of it."""
        deltas = splitter.push(text) if text else []
        if last:
            deltas += splitter.flush()
        if deltas:
            self._called = self._called or any(isinstance(delta, CallStart) for delta in deltas)
            self._sink.deltas(deltas)
        return ""

    def _take_reports(self) -> list[TokenReport]:
        reports, self._reports = self._reports, []
        return reports

    def _take_tokens(self) -> PieceTokens | None:
        if not self._options.token_ids:
            return None
        first = self._shown_tokens == 0
        self._shown_tokens += len(self._tokens)
        ids, self._tokens = self._tokens, []
        return PieceTokens(ids, self._prompt.ids.tolist() if first else None)

    def on_pages(self, pages: PagesAt) -> None:
        self._pages = pages

    def on_end(self) -> None:
        if self._reason == "error":
            self.on_failed(EngineDeadError("the engine failed on this request: try again"))
            return
        self._catch_up()
        rest, stopped = self._text.flush()
        self._finish(self._tail + rest, "stop" if stopped else str(self._reason), abort=False)

    def _finish(self, text: str, reason: str, *, abort: bool) -> None:
        if self.stats.done:
            return
        self.stats.done = True
        if not self.stats.last_s:  # ended without a token
            self._sink.begin()
        if self._splitter is not None:
            text = self._split(text, self._splitter, last=True)
            if self._called and reason == "stop":
                reason = "tool_calls"
        self.release()
        if self._options.hide_output:
            self.stats.generated = 0
        self._sink.reported(
            text, self._take_reports(), reason, self._take_tokens(), stop=self._text.stop_found
        )
        if self._options.prompt_logprobs:  # the first token of a prompt has no log-probability
            self._prompt_reports.insert(0, TokenReport(self._prompt.ids[0], None, []))
        self._sink.ended(self._prompt_reports if self._options.prompt_logprobs else None, self._pages)
        self._run.sequence_done(self.stats, reason, abort=abort)

    def on_failed(self, error: FirelaneError) -> None:
        self._run.fail(error)
