"""From what the engine reports about one sequence to its text, its tokens and its reason to end."""

from __future__ import annotations

from firelane.llm.outputs import CompletionOutput, Logprob, RequestOutput
from firelane.llm.params import SamplingParams
from firelane.text.tokens.detokenize import SequenceText
from firelane.text.tokens.tokenizer import Tokenizer
from firelane.wire.frames import NewRequest, TokenLogprobs


class PromptRun:
    """One prompt and its outputs."""

    def __init__(self, prompt: str | None, ids: list[int], params: SamplingParams, request_id: int) -> None:
        self.params = params
        self.choices: list[CompletionBuilder] = []
        self.result = RequestOutput(request_id, prompt, ids, [])
        if params.prompt_logprobs is not None:
            self.result.prompt_logprobs = [None]


class CompletionBuilder:
    """One sequence: turns what the engine reports into a CompletionOutput."""

    def __init__(
        self,
        request: NewRequest,
        run: PromptRun,
        index: int,
        tokenizer: Tokenizer,
        visible_special_ids: frozenset[int] = frozenset(),
    ) -> None:
        """visible_special_ids: special tokens whose names are part of the text."""
        self.request = request
        self.output = CompletionOutput(index)
        self._run = run
        self._tokenizer = tokenizer
        self._text = SequenceText(
            tokenizer.detokenizer(visible_special_ids),
            run.params.stops(),
            min_tokens=run.params.min_tokens,
        )
        if run.params.logprobs is not None:
            self.output.logprobs = []

    def on_started(self, cached_tokens: int) -> None:
        if self.output.index == 0:
            self._run.result.num_cached_tokens = cached_tokens

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        run = self._run
        if entry.position >= len(run.result.prompt_token_ids):
            assert self.output.logprobs is not None
            self.output.logprobs.append(self._logprobs(entry))
        elif self.output.index == 0 and run.result.prompt_logprobs is not None:
            run.result.prompt_logprobs.append(self._logprobs(entry))

    def on_token(self, token: int, *, is_stop: bool) -> None:
        self.output.token_ids.append(token)
        if is_stop:
            self.output.stop_reason = token
        else:
            self._append(*self._text.push(token))

    def on_end(self, reason: str) -> None:
        if self.output.finish_reason is None:
            self._append(*self._text.flush())
        if self.output.finish_reason is None:
            self.output.finish_reason = reason

    def _append(self, text: str, stopped: bool) -> None:
        self.output.text += text
        if stopped:
            self.output.finish_reason = "stop"

    def _logprobs(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        text_of = self._tokenizer.token_text
        found = {
            token: Logprob(logprob, rank, text_of(token))
            for rank, (token, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1)
        }
        found.setdefault(entry.token, Logprob(entry.logprob, None, text_of(entry.token)))
        return found
