"""Rights of an engine process: all of its user's, or what the sandbox leaves of them."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from firelane import env
from firelane.backends import takes_gpu
from firelane.child_process import Replacements
from firelane.child_process.worker import StartWorker
from firelane.engine.grammar.trial_process import fork_trials, start_trial
from firelane.engine.process.bytecode import BytecodeHelper
from firelane.engine_config import EngineConfig
from firelane.errors import FirelaneError
from firelane.native.compile_service import fork_service
from firelane.nixl.processes import HelperAgents
from firelane.sandbox.confine import (
    confine,
    confine_bytecode,
    confine_compiler,
    forbid_changes,
    forbid_network,
    has_bytecode,
    serve_only,
)
from firelane.sandbox.paths import ADAPTERS, made
from firelane.sandbox.system import this_machine
from firelane.weights.storage import checked_json

log = logging.getLogger(__name__)
GGUF_INDEX = "gguf.json"
"""In the directory of a model whose weights lie in GGUF files. Whoever reads it is not imported here: NumPy
starts threads."""
Settle = Callable[[], None]


@dataclass(frozen=True)
class Rights:
    """Rights of the process that runs an engine. start_trial: of processes that try grammars out; replaced:
    notes children that were lost. is_confined: the sandbox is
    closed. network: it is open still. agents: processes of NIXL, which keep the network; None: there are to
    be none. bytecode: a helper for modules that lie uncompiled."""

    start_trial: StartWorker = start_trial
    replaced: Replacements = field(default_factory=Replacements)
    checks: tuple[Callable[[], None], ...] = ()
    is_confined: bool = False
    network: bool = False
    agents: HelperAgents | None = None
    bytecode: BytecodeHelper | None = None

    def check_helpers(self) -> None:
        """Replace helpers that have ended. Any thread may call it; it does not wait for one that hangs."""
        for check in self.checks:
            check()

    def loaded(self) -> None:
        """The model is there: no program needs to be started any more."""
        if self.is_confined:
            serve_only(network=self.network)

    def serves(self, settle: Settle) -> None:
        """All modules are imported, and all files are open that serving writes to. settle: returns when no
        weights are read or written any more."""
        if self.is_confined:
            threading.Thread(target=self._give_up, args=(settle,), name="sandbox", daemon=True).start()

    def _give_up(self, settle: Settle) -> None:
        """Rights that only the beginning needs."""
        if self.bytecode is not None:
            self.bytecode.tell()
        with contextlib.suppress(FirelaneError):  # the next step tells it
            settle()
        forbid_changes()
        if self.network:
            forbid_network()


def rights_of(config: EngineConfig, *, has_grammars: bool = True) -> Rights:
    """Close the sandbox, where there is to be one. Called before anything starts a thread. has_grammars: it
    needs a helper that tries them out."""
    is_confined = config.sandbox and this_machine() is not None
    # Before: an engine without network starts nothing that has it.
    given = Rights()
    if config.kv_transport == "nixl":
        agents = HelperAgents(confined=is_confined, replaced=given.replaced)
        given = replace(given, agents=agents, checks=(agents.check,))
    if not is_confined:
        return given
    if takes_gpu(config.backend):
        log.info("sandbox: engines on a GPU have none, its driver needs too much")
        return given
    network = config.reads_store or config.hosts is not None
    settings = env.read()
    # Before: an engine writes no compiled code.
    env.set_compiler(fork_service(config.cache_dir, partial(confine_compiler, settings, config.cache_dir)))
    if not has_bytecode() and not sys.dont_write_bytecode:
        bytecode = BytecodeHelper.fork(partial(confine_bytecode, config.cache_dir))
        given = replace(given, bytecode=bytecode, checks=(*given.checks, bytecode.check))
    confine(settings, config.cache_dir, *_files(config), network=network)
    given = replace(given, is_confined=True, network=network)
    if not has_grammars:
        return given
    trials = fork_trials(given.replaced)
    return replace(given, start_trial=trials.connected, checks=(*given.checks, trials.check))


def _files(config: EngineConfig) -> tuple[list[Path], list[Path]]:
    """Files that an engine reads, and directories that it also writes to, beside its caches."""
    models = [config.model_dir, *([] if config.second_dir is None else [config.second_dir])]
    models += [Path(directory) for _, directory in config.loras]
    models += [made(config.cache_dir, ADAPTERS)] if config.adapters_option else []
    reads = [*models, *(path for model in models for path in _files_of_gguf(model, config.cache_dir))]
    tiers = config.tiers
    further = (
        config.tokenizer_dir,
        None if config.hosts is None else config.hosts.key_file,
        None if tiers is None else tiers.disk_key_file,
    )
    writes = [] if tiers is None or tiers.disk is None else [tiers.disk]
    return [*reads, *(path for path in further if path is not None)], writes


class _GgufFile(msgspec.Struct):
    path: str


class _GgufIndex(msgspec.Struct):
    files: list[_GgufFile]


def _files_of_gguf(model_dir: Path, cache_dir: Path) -> list[Path]:
    """Files that the index of a model names that was made from GGUF files. One that came with a model from
    elsewhere might mean any file: only what this machine has made is looked at."""
    if cache_dir.resolve() not in model_dir.resolve().parents:
        return []
    index = checked_json.read(model_dir / GGUF_INDEX, _GgufIndex)
    return [] if index is None else [Path(file.path) for file in index.files]
