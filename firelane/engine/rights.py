"""Rights of an engine process: all of its user's, or what the sandbox leaves of them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from firelane import env
from firelane.backends import AUTO, choose
from firelane.engine.grammar.trial_process import ChildTrial, StartTrial, TrialHelper
from firelane.engine_config import EngineConfig
from firelane.errors import FirelaneError
from firelane.sandbox.confine import confine, forbid_network, forbid_programs
from firelane.sandbox.system import this_machine

log = logging.getLogger(__name__)
STORE_INDEX = "store.json"
"""In the directory of a model whose weights lie in an object store. Whoever reads it is not imported here:
NumPy starts threads."""
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


def rights_of(config: EngineConfig) -> Rights:
    """Close the sandbox, where there is to be one. Called before anything starts a thread."""
    if not config.sandbox or this_machine() is None:
        return ALL_RIGHTS
    if (choose() if config.backend == AUTO else config.backend) == "cuda":
        log.info("sandbox: engines on a GPU have none, its driver needs too much")
        return ALL_RIGHTS
    models = [config.model_dir, *([config.tokenizer_dir] if config.tokenizer_dir is not None else [])]
    network = (config.model_dir / STORE_INDEX).exists()
    confine(env.read(), config.cache_dir, models, network=network)
    return Rights(TrialHelper.fork().start, is_confined=True, network=network)


def _forbid_later(settle: Settle) -> None:
    with contextlib.suppress(FirelaneError):  # the next step tells it
        settle()
    forbid_network()
