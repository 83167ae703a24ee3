"""An engine's loop as its configuration wants it, in a process of its own and in that of a caller."""

from __future__ import annotations

from firelane.contract import Executor
from firelane.engine.adapters.places import AdapterPlaces
from firelane.engine.core import EngineChannel, EngineCore
from firelane.engine.policies import make_policy
from firelane.engine.sequences.prerequisites import Prerequisites
from firelane.engine.speculation.choice import SecondModel, make_proposer
from firelane.engine_config import EngineConfig
from firelane.kv import SnapshotRule


def make_core(
    config: EngineConfig,
    executor: Executor,
    channel: EngineChannel,
    grammars: Prerequisites,
    second: SecondModel | None = None,
    adapters: AdapterPlaces | None = None,
) -> EngineCore:
    """The loop reads no configuration itself: every option with an effect in it is given to it here. second:
    what drafts beside it; the caller keeps both executors. adapters: in the executor's memory. Raises
    UsageError for options that do not go together with the model."""
    return EngineCore(
        executor,
        channel,
        prefix_cache=config.prefix_cache,
        prerequisites=grammars,
        policy=make_policy(config.scheduling_policy, executor.limits.max_num_batched_tokens),
        proposer=make_proposer(config, executor, second),
        snapshots=SnapshotRule(interval=config.state_snapshot_interval),
        adapters=adapters,
    )
