"""The class that offline users meet."""

from __future__ import annotations

import logging
import secrets
import sys
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from firelane import env
from firelane.api.chat import ChatRequest
from firelane.engine_config import EngineConfig
from firelane.errors import RequestError, UsageError
from firelane.llm.channel import LocalChannel
from firelane.llm.choice import CompletionBuilder, PromptRun
from firelane.llm.outputs import RequestOutput
from firelane.llm.params import REST_OF_CONTEXT, SamplingParams, wire_grammar
from firelane.sources.draft import draft_directory
from firelane.sources.resolve import resolve
from firelane.text.chat.assistant import Assistant, RenderedChat
from firelane.text.deltas import Content, Delta
from firelane.text.model_files import ModelTextFiles, read_model_files
from firelane.text.prompt import FALLBACKS, Fallback, PromptBuilder, default_sampling, wire_sampling
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import tokenizer_directory
from firelane.weights.progress import Progress, silent
from firelane.wire.frames import NewRequest, Pooling, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from firelane.llm.isolated import IsolatedEngine
    from firelane.llm.local import LocalEngine

Prompt = str | Sequence[int]
log = logging.getLogger(__name__)


class LLM:
    """A loaded model. Not safe for several threads. Options are the fields of EngineConfig, and
    `chat_template`: a file in place of the model's own template; `progress`: told what a load does.

    `isolated=True` runs the engine in a process of its own, with the sandbox of a server's: for a model that
    somebody else has made. Tokens are the same. The process ends with the thread that made the LLM. Otherwise
    the engine runs here, with all rights of this process: then weights are data and not code, sizes and
    indices in files are checked, and templates and grammars are tried in processes without rights, but a
    fault in the engine's own code that a file makes use of is one of your program's. Isolated or not,
    config, tokenizer and a GGUF file's header are read by this process.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """model: a directory, a GGUF file, a hub id, or None for the embedded one. Raises FirelaneErrors."""
        isolated = bool(options.pop("isolated", False))
        progress: Progress = options.pop("progress", silent)
        chat_template = options.pop("chat_template", None)
        unknown = sorted(set(options) - set(EngineConfig.__struct_fields__))
        if unknown:
            known = ", ".join(EngineConfig.__struct_fields__)
            raise UsageError(f"LLM has no option {unknown[0]!r}: known are {known}")
        environment = env.read()
        for name in env.unknown():
            log.warning("environment variable %s means nothing here", name)
        options.setdefault("cache_dir", environment.cache_dir)
        options["cache_dir"] = Path(options["cache_dir"])
        model_dir = resolve(model, progress=progress, cache_dir=options["cache_dir"])
        tokenizer_dir = tokenizer_directory(model_dir, options["cache_dir"])
        options.setdefault("tokenizer_dir", tokenizer_dir)
        drafts = draft_directory(
            options.get("speculative", ""), options["tokenizer_dir"], options["cache_dir"], progress
        )
        options.setdefault("draft_dir", drafts)
        config = EngineConfig(model_dir=model_dir, **options)
        self._channel = LocalChannel()
        self._next_id = 0
        self._closed = False
        with ExitStack() as on_error:
            self._engine = _engine(config, self._channel, isolated=isolated)
            on_error.callback(self._engine.close)
            self._tokenizer = load_tokenizer(tokenizer_dir)
            self._files: ModelTextFiles = read_model_files(
                model_dir, None if chat_template is None else Path(chat_template)
            )
            self._tokenizer.check_vocab(self._files.vocab_size)
            self._prompts = PromptBuilder(self._tokenizer, self._files)
            self._assistant = Assistant(self._prompts)
            self._engine.load(progress)
            on_error.pop_all()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Complete each prompt; all run at the same time. Raises RequestError where one cannot be served."""
        runs = [self._run(prompt, sampling_params) for prompt in _listed(prompts)]
        running = [choice for run in runs for choice in run.choices]
        with _progress_bar(len(running), shown=use_tqdm) as bar:
            for ended in self._turns(running):
                bar.update(ended)
        return [run.result for run in runs]

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages), or each of several, by the model's chat template."""
        several = bool(messages) and not isinstance(messages[0], dict)
        prompts = [self._render(conversation) for conversation in (messages if several else [messages])]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """The text of one output, in pieces as they come. Closing the iterator stops the sequence."""
        yield from self._pieces(prompt, sampling_params)

    def stream_chat(
        self, messages: Sequence[Any], sampling_params: SamplingParams | None = None
    ) -> Iterator[str]:
        """The text of one output to a conversation, as `stream` gives it."""
        return self.stream(self._render(messages), sampling_params)

    def stream_deltas(
        self, messages: Sequence[Any], sampling_params: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """The answer to a conversation, as `stream` gives it, with reasoning apart from content."""
        chat = self._rendered(messages)
        splitter = None if chat.splitter is None else chat.splitter()
        for text in self._pieces(self._encoded(chat), sampling_params, chat.visible_special_ids):
            yield from [Content(text)] if splitter is None else splitter.push(text)
        yield from () if splitter is None else splitter.flush()

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
    ) -> list[NDArray[np.float32]]:
        """One vector a prompt, float32 [hidden size], of length 1 where `normalize`. pooling: None for the
        model's own kind, in which encoders always pool. Raises RequestError where a prompt cannot be
        served."""
        import numpy as np

        pooling = pooling or self._own_pooling()
        choices = [self._pooled(prompt, pooling) for prompt in _listed(prompts)]
        for _ in self._turns(choices):
            pass
        found = [np.frombuffer(self._channel.embeddings.pop(c.request.id), "<f4") for c in choices]
        return [_normalized(vector) for vector in found] if normalize else found

    def _own_pooling(self) -> Pooling:
        """Encoders pool by themselves, whatever is said here."""
        own = self._files.embedding.pooling
        if own in ("last", "mean"):
            return own
        if own is None or self._files.template is not None:
            raise UsageError("this model pools in a way that Firelane does not have: choose last or mean")
        return "last"

    def default_sampling(self, fallback: Fallback = "vllm") -> SamplingParams:
        """Sampling as the model's author advises it (generation_config.json, or the GGUF file), and what that
        leaves open as vLLM or llama.cpp do: see `firelane.text.prompt.Fallback`."""
        values = default_sampling(self._files.defaults, fallback)
        return SamplingParams(
            temperature=values["temperature"],
            top_p=values["top_p"],
            top_k=int(values["top_k"]),
            min_p=values["min_p"],
            repetition_penalty=values["repetition_penalty"],
        )

    def close(self) -> None:
        """Stop what runs and free the model; idempotent."""
        if not self._closed:
            self._closed = True
            self._prompts.close()
            self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _render(self, messages: Sequence[Any]) -> list[int]:
        return self._encoded(self._rendered(messages))

    def _rendered(self, messages: Sequence[Any]) -> RenderedChat:
        try:
            request = msgspec.convert({"messages": list(messages)}, ChatRequest)
        except msgspec.ValidationError as error:
            raise RequestError(f"messages: {error}") from error
        return self._assistant.chat_blocking(request)

    def _encoded(self, chat: RenderedChat) -> list[int]:
        return self._tokenizer.encode(chat.text, add_special_tokens=False)

    def _pieces(
        self, prompt: Prompt, params: SamplingParams | None, visible: frozenset[int] = frozenset()
    ) -> Iterator[str]:
        """Text of one output. visible: special tokens whose names are part of it."""
        choice = self._run(prompt, replace(params or self.default_sampling(), n=1), visible).choices[0]
        given = 0
        for _ in self._turns([choice]):
            text = choice.output.text
            if len(text) > given:
                yield text[given:]
                given = len(text)

    def _pooled(self, prompt: Prompt, pooling: Pooling) -> CompletionBuilder:
        run = self._run(prompt, SamplingParams())
        choice = run.choices[0]
        choice.request = msgspec.structs.replace(choice.request, pooling=pooling, sampling=Sampling())
        return choice

    def _run(
        self, prompt: Prompt, params: SamplingParams | None, visible: frozenset[int] = frozenset()
    ) -> PromptRun:
        params = params or self.default_sampling()
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        stop_ids = {*params.stop_token_ids, *(() if params.ignore_eos else self._prompts.eos_ids)}
        seed = secrets.randbits(63) if params.seed is None else params.seed
        run = PromptRun(prompt if isinstance(prompt, str) else None, ids, params, self._next_id)
        grammar, given = wire_grammar(params), _packed(ids)
        for index in range(params.n):
            sampling = wire_sampling(
                params,
                FALLBACKS["vllm"],
                seed=seed + index,
                max_tokens=REST_OF_CONTEXT if params.max_tokens is None else params.max_tokens,
                stop_token_ids=sorted(stop_ids),
                reports=params.reports,
            )
            request = NewRequest(
                id=self._next_id,
                prompt=given,
                sampling=sampling,
                grammar=grammar,
                most_drafted=-1 if params.speculative else 0,
                adapter=params.lora,
                salt=self._engine.adapters.get(params.lora, "").encode(),  # its pages are no other's
            )
            self._next_id += 1
            run.choices.append(CompletionBuilder(request, run, index, self._tokenizer, visible))
        run.result.outputs = [choice.output for choice in run.choices]
        return run

    def _turns(self, choices: list[CompletionBuilder]) -> Iterator[int]:
        """Engine turns until all `choices` have ended; yields how many ended in each. What remains is
        aborted."""
        self._channel.add(choices)
        pending = [choice.request.id for choice in choices]
        still_open = len(self._channel.open)
        try:
            while pending:
                self._engine.turn()
                self._channel.raise_rejected(choices)
                yield still_open - len(self._channel.open)
                still_open = len(self._channel.open)
                while pending and pending[-1] not in self._channel.open:
                    pending.pop()
        finally:
            self._channel.abort(pending)
            self._engine.tell()


def _engine(config: EngineConfig, channel: LocalChannel, *, isolated: bool) -> LocalEngine | IsolatedEngine:
    """The engine of this process or an isolated one; the imports of one are not made for the other."""
    if isolated:
        from firelane.llm.isolated import IsolatedEngine

        return IsolatedEngine(config, channel)
    from firelane.llm.local import LocalEngine

    return LocalEngine(config, channel)


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)


def _packed(ids: list[int]) -> bytes:
    """Token ids as NewRequest.prompt has them."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _normalized(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Computed in float64; a vector of zeros stays as it is."""
    import numpy as np

    wide = vector.astype(np.float64)
    length = np.sqrt((wide * wide).sum())
    return (wide / length).astype(np.float32) if length else vector


class _NoBar:
    """Stands for a progress bar that is not wanted."""

    def update(self, n: float) -> None:
        del n


@contextmanager
def _progress_bar(total: int, *, shown: bool) -> Generator[Any]:
    if not shown:
        yield _NoBar()
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="seq") as bar:
        yield bar
