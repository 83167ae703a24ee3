"""Rights of an engine process: all of its user's, or what the sandbox leaves of them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane import env
from firelane.backends import takes_gpu
from firelane.engine.grammar.trial_process import ChildTrial, StartTrial, TrialHelper
from firelane.engine_config import EngineConfig
from firelane.errors import FirelaneError
from firelane.sandbox.confine import confine, forbid_network, forbid_programs
from firelane.sandbox.system import this_machine
from firelane.weights import checked_json

log = logging.getLogger(__name__)
GGUF_INDEX, STORE_INDEX = "gguf.json", ".store.json"
"""In the directory of a model whose weights lie in GGUF files, or in an object store. Whoever reads them is
not imported here: NumPy starts threads."""
Settle = Callable[[], None]


@dataclass(frozen=True)
class Rights:
    """Of the process that runs an engine. start_trial: of processes that try grammars out. is_confined: the
    sandbox is closed. network: it is open still."""

    start_trial: StartTrial = ChildTrial
    is_confined: bool = False
    network: bool = False

    def loaded(self, settle: Settle) -> None:
        """No program needs to be started any more. settle: returns when no weights are read any more."""
        if self.is_confined:
            forbid_programs()
        if self.network:
            threading.Thread(target=_forbid_later, args=(settle,), name="sandbox", daemon=True).start()


ALL_RIGHTS = Rights()


def rights_of(config: EngineConfig, *, has_grammars: bool = True) -> Rights:
    """Close the sandbox, where there is to be one. Called before anything starts a thread. has_grammars: it
    needs a helper that tries them out."""
    if not config.sandbox or this_machine() is None:
        return ALL_RIGHTS
    if takes_gpu(config.backend):
        log.info("sandbox: engines on a GPU have none, its driver needs too much")
        return ALL_RIGHTS
    models = [config.model_dir, *_files_of_gguf(config)]
    if config.tokenizer_dir is not None:
        models.append(config.tokenizer_dir)
    if config.hosts is not None and config.hosts.key_file is not None:
        models.append(config.hosts.key_file)
    writes = [config.tiers.disk] if config.tiers is not None and config.tiers.disk is not None else []
    if config.tiers is not None and config.tiers.disk_key_file is not None:
        models.append(config.tiers.disk_key_file)
    network = (config.model_dir / STORE_INDEX).exists() or config.hosts is not None
    confine(env.read(), config.cache_dir, models, writes, network=network)
    start_trial = TrialHelper.fork().start if has_grammars else ChildTrial
    return Rights(start_trial, is_confined=True, network=network)


class _GgufFile(msgspec.Struct):
    path: str


class _GgufIndex(msgspec.Struct):
    files: list[_GgufFile]


def _files_of_gguf(config: EngineConfig) -> list[Path]:
    """What the index of a model means that was made from GGUF files. One that came with a model from
    elsewhere might mean any file: only what this machine has made is looked at."""
    if config.cache_dir.resolve() not in config.model_dir.resolve().parents:
        return []
    index = checked_json.read(config.model_dir / GGUF_INDEX, _GgufIndex)
    return [] if index is None else [Path(file.path) for file in index.files]


def _forbid_later(settle: Settle) -> None:
    with contextlib.suppress(FirelaneError):  # the next step tells it
        settle()
    forbid_network()
