"""Rights of an engine process: all of its user's, or what the sandbox leaves of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from firelane import env
from firelane.backends import AUTO, choose
from firelane.engine.grammar.trial_process import ChildTrial, StartTrial, TrialHelper
from firelane.engine_config import EngineConfig
from firelane.sandbox.confine import confine, forbid_programs
from firelane.sandbox.system import this_machine

log = logging.getLogger(__name__)


def _keep() -> None:
    """Nothing is given up."""


@dataclass(frozen=True)
class Rights:
    """Of the process that runs an engine. start_trial: of processes that try grammars out. when_loaded:
    called once no program needs to be started any more."""

    start_trial: StartTrial = ChildTrial
    when_loaded: Callable[[], None] = _keep


ALL_RIGHTS = Rights()


def rights_of(config: EngineConfig) -> Rights:
    """Close the sandbox, where there is to be one. Called before anything starts a thread."""
    if not config.sandbox or this_machine() is None:
        return ALL_RIGHTS
    if (choose() if config.backend == AUTO else config.backend) == "cuda":
        log.info("sandbox: engines on a GPU have none, its driver needs too much")
        return ALL_RIGHTS
    models = [config.model_dir, *([config.tokenizer_dir] if config.tokenizer_dir is not None else [])]
    confine(env.read(), config.cache_dir, models)
    return Rights(TrialHelper.fork().start, forbid_programs)
