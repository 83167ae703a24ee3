"""An engine in this process."""

from __future__ import annotations

from contextlib import ExitStack

from firelane.contract import Executor
from firelane.engine.adapters.places import load_adapters
from firelane.engine.configured import make_core
from firelane.engine.core import EngineCore
from firelane.engine.grammar.queue import grammar_queue
from firelane.engine.process.draft_load import load_second
from firelane.engine.process.identity import checkpoint_identity, model_identity
from firelane.engine.process.load import load_executor, read_program, rotation_identity
from firelane.engine.process.tiers import files_identity, open_tiers
from firelane.engine_config import EngineConfig
from firelane.llm.channel import LocalChannel
from firelane.weights.progress import Progress


class LocalEngine:
    """The engine of an LLM that is not isolated: it has all rights of this process. Works for the choices
    that are open in one LocalChannel. A turn is a step.
    """

    core: EngineCore
    executor: Executor

    def __init__(self, config: EngineConfig, channel: LocalChannel) -> None:
        self.adapters: dict[str, str] = {}
        """Digests of the adapters' content, by name, once it is loaded."""
        self._config, self._channel = config, channel
        self._loaded = ExitStack()
        self._is_loaded = False

    def load(self, progress: Progress) -> None:
        """Raises a FirelaneError that says why the model cannot be had."""
        config = self._config
        program = read_program(config)
        checkpoint = checkpoint_identity(config.model_dir) + rotation_identity(program)
        files = files_identity(config)
        executor = self.executor = load_executor(config, progress, program=program)
        self._loaded.callback(executor.release)
        adapters = load_adapters(executor, config)
        self.adapters = adapters.digests
        second = load_second(config, program, executor, progress)
        if second is not None:
            self._loaded.callback(second.release)
        grammars = grammar_queue(config.tokenizer_dir or config.model_dir, executor.vocab_size)
        self._loaded.callback(grammars.close)
        self.core = make_core(config, executor, self._channel, grammars, second, adapters)
        identity = model_identity(checkpoint, executor, config)
        pages, states = executor.page_memory, executor.state_memory
        tiers = open_tiers(config.tiers, self.core, pages, states, identity + files)
        self._loaded.callback(tiers.close)
        self._is_loaded = True

    def turn(self) -> None:
        """Go on; with no open choice, do what there is. Raises a FirelaneError where it cannot go on."""
        self.core.step()

    def tell(self) -> None:
        """The next turn does it: nothing runs before."""

    def close(self) -> None:
        """Free the model; idempotent. Whatever ran is aborted."""
        if self._is_loaded:
            self._is_loaded = False
            self._channel.abort(list(self._channel.open))
            while not self.core.is_idle:
                self.core.step()
        self._loaded.close()
