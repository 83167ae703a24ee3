"""All models of a server: their engines, their places in the node and in the gateway, and what a new file
changes of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from firelane.backends import takes_gpu
from firelane.errors import FirelaneError
from firelane.node.fleet import GroupOf
from firelane.node.memory_groups import EngineGroup
from firelane.node.model import NodeModel
from firelane.node.node import Node
from firelane.node.states import RESTS
from firelane.server.engine_sharing import NOT_SHARED, EngineSharing
from firelane.server.model_engines import ModelEngines
from firelane.server.model_files import SourceFiles
from firelane.server.node_plan import ModelSetup, NodePlan, PackedFile, differing
from firelane.server.residence import NodeResidence

if TYPE_CHECKING:
    from firelane.engine_state import EngineEvent
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.gateway.server import Gateway

log = logging.getLogger(__name__)
CHANGE_S = 600.0
"""Time that requests of a model which is changed, or taken away, have to end."""


class ModelSet:
    """Engines by the model's name. Models that were taken away keep their metrics, and get them back."""

    def __init__(
        self,
        tell: Callable[[str, EngineEvent], None],
        plan: NodePlan,
        models: Iterable[ModelSetup],
        sharing: EngineSharing = NOT_SHARED,
    ) -> None:
        """tell: gets each event of the engines, with the name of their model."""
        self._sharing = sharing
        self.node = Node(plan.policy)
        self.setups: dict[str, ModelSetup] = {}
        self._engines: dict[str, ModelEngines] = {}
        self._retired: dict[str, ModelEngines] = {}
        self._tell, self._plan = tell, plan
        self._gateway: Gateway | None = None
        self._turn, self._connected = asyncio.Lock(), asyncio.Event()
        for model in models:
            self._add(model)

    def __iter__(self) -> Iterator[ModelEngines]:
        return iter(self._engines.values())

    def __getitem__(self, name: str) -> ModelEngines:
        return self._engines[name]

    async def connect(
        self, make: Callable[[list[ReplicaSet]], Gateway], listen: Callable[[Gateway], Awaitable[None]]
    ) -> Gateway:
        """Make the gateway, have it listen, and give it all engines."""
        gateway = self._gateway = make([engines.make_replicas() for engines in self])
        await listen(gateway)
        for engines in self:
            self._place(engines)
            await engines.connect()
        self._sharing.follow(gateway.services.models)
        self._connected.set()
        return gateway

    async def apply(self, plan: NodePlan, models: Iterable[ModelSetup]) -> None:
        """Changes to what is there now, with a line of the log for each. A model that cannot be changed stays
        as it is.
        """
        async with self._turn:
            wanted = {model.name: model for model in models}
            if plan.policy != self.node.policy:
                log.info("node_changed %s", differing(self.node.policy, plan.policy))
                self.node.policy = plan.policy
            for name in [name for name in self.setups if name not in wanted]:
                await self._logged("model_removed", name, self._remove)
            for name, setup in wanted.items():
                if name not in self.setups:
                    await self._logged("model_added", name, lambda _, setup=setup: self._add_late(setup))
                else:
                    await self._change(setup)

    async def _logged(self, what: str, name: str, work: Callable[[str], object]) -> None:
        try:
            done = work(name)
            if asyncio.iscoroutine(done):
                await done
        except FirelaneError as error:
            log.error("reload_failed model=%s error=%r", name, str(error))
        else:
            log.info("%s model=%s", what, name)

    def _add(self, setup: ModelSetup) -> ModelEngines:
        engines = self._retired.pop(setup.name, None)
        if engines is None:
            engines = ModelEngines(
                setup.name, setup.engines, self._tell, self._sharing, self._group_of(setup.name)
            )
        self.setups[setup.name] = setup
        self._engines[setup.name] = engines
        name = setup.name
        files = SourceFiles(
            lambda: self.setups[name], lambda: self._arrive(name), lambda: self._user_beside(name)
        )
        mark = PackedFile(setup.engines)
        self.node.add(NodeModel(name, engines, setup.policy, mark=mark, files=files))
        return engines

    def _group_of(self, name: str) -> GroupOf:
        def of(replica: str) -> EngineGroup:
            return self._plan.groups.group(f"{name}-{replica}", lambda: self._share_bytes(name))

        return of

    def _share_bytes(self, name: str) -> int:
        """Memory of each replica of this model; 0 on a GPU, whose memory is none of a control group's."""
        options, model = self.setups[name].engines, self.node[name]
        if takes_gpu(options.engine.backend):
            return 0
        return max(model.policy.need_bytes, model.engines.ready_bytes) // options.replicas

    async def _arrive(self, name: str) -> None:
        """A model's files have come: from now on it is what they say. Raises FirelaneError."""
        await self._connected.wait()
        async with self._turn:
            when_here = self.setups[name].when_here
            if when_here is not None:
                await self._become(await asyncio.to_thread(when_here))

    def _user_beside(self, name: str) -> str:
        """Another model of the same source that is in memory; "" of none."""
        source = self.setups[name].source
        others = [one for one in self.setups if one != name and self.setups[one].source == source]
        return next((one for one in others if self.node[one].state not in RESTS), "")

    async def _add_late(self, setup: ModelSetup) -> None:
        """Raises TokenizerError and what else is wrong with the model's files."""
        assert self._gateway is not None
        was_here = setup.name in self._retired
        engines = self._add(setup)
        try:
            self._gateway.add_model(setup.gateway, engines.make_replicas(), engines.served)
            self._place(engines)
            self._sharing.add_model(setup)
            await (engines.reconfigure(setup.engines) if was_here else engines.connect())
        except FirelaneError:
            self._forget(setup.name)
            raise
        if setup.policy.loads_first:
            self.node.bring(self.node[setup.name])

    async def _remove(self, name: str) -> None:
        """New requests get 404 at once; those in flight may end."""
        assert self._gateway is not None
        self._gateway.services.models.remove(self._gateway.services.models.named(name))
        self._sharing.remove_model(name)
        await self.node.unload(self.node[name], CHANGE_S)
        self._retired[name] = self._engines[name]
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.node.remove(name)
        del self._engines[name], self.setups[name]

    async def _change(self, setup: ModelSetup) -> None:
        name, before = setup.name, self.setups[setup.name]
        if not (difference := before.difference(setup)):
            self.setups[name] = setup
            return
        log.info("model_changed model=%s %s", name, difference)
        try:
            if setup.engines_differ(before) or setup.source != before.source:
                await self.node.unload(self.node[name], CHANGE_S)
            await self._become(setup)
        except FirelaneError as error:
            log.error("reload_failed model=%s error=%r", name, str(error))
        if setup.policy.loads_first:
            self.node.bring(self.node[name])

    async def _become(self, setup: ModelSetup) -> None:
        """Another setup of a model, which has no engine where its engines differ. Raises FirelaneError, and
        leaves it as it was."""
        name, before = setup.name, self.setups[setup.name]
        model = self.node[name]
        if setup.gateway != before.gateway and self._gateway is not None:
            self._gateway.change_model(name, setup.gateway)
            self._sharing.change_model(setup)
        self.setups[name], model.policy = setup, setup.policy
        model.files.look()
        if setup.engines_differ(before):
            await self._engines[name].reconfigure(setup.engines)
            model.mark_with(PackedFile(setup.engines))

    def _place(self, engines: ModelEngines) -> None:
        assert self._gateway is not None
        served = engines.served = self._gateway.services.models.named(engines.name)
        waits = not self._plan.is_fixed
        served.residence = NodeResidence(self.node, self.node[engines.name], waits=waits)
