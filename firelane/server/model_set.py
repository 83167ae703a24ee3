"""All models of a server: their engines, their places in the node and in the gateway, and what a new file
changes of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from firelane.backends import takes_gpu
from firelane.errors import CacheError, EngineDeadError, FirelaneError, ModelError, RequestError, UsageError
from firelane.node.fleet import Fleet
from firelane.node.memory_groups import EngineGroup
from firelane.node.model import NodeModel
from firelane.node.node import Node
from firelane.node.states import RESTS
from firelane.server.engine_sharing import NOT_SHARED, EngineSharing
from firelane.server.model import Model
from firelane.server.model_files import PackedFile, SourceFiles
from firelane.server.model_spec import ModelSpec, differing
from firelane.server.node_plan import NodePlan

if TYPE_CHECKING:
    from pathlib import Path

    from firelane.engine_state import EngineEvent
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.gateway.requests.text_side import TextSide
    from firelane.gateway.server import Gateway

log = logging.getLogger(__name__)
CHANGE_S = 600.0
"""Time that requests of a model which is changed, or taken away, have to end."""


class ModelSet:
    """Models by their names. Those that were taken away keep their metrics, and get them back."""

    def __init__(
        self,
        tell: Callable[[str, EngineEvent], None],
        plan: NodePlan,
        specs: Iterable[ModelSpec],
        sharing: EngineSharing = NOT_SHARED,
    ) -> None:
        """tell: gets each event of the engines, with the name of their model."""
        self._sharing = sharing
        self.node = Node(plan.policy)
        self._models: dict[str, Model] = {}
        self._retired: dict[str, Model] = {}
        self._tell, self._plan = tell, plan
        self._gateway: Gateway | None = None
        self._turn, self._connected = asyncio.Lock(), asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        for spec in specs:
            self._add(spec)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    async def connect(
        self, make: Callable[[list[ReplicaSet]], Gateway], listen: Callable[[Gateway], Awaitable[None]]
    ) -> Gateway:
        """Make the gateway, have it listen, and give it all engines."""
        gateway = self._gateway = make([model.make_replicas() for model in self])
        await listen(gateway)
        for model in self:
            self._place(model)
            await model.connect()
        self._sharing.follow(gateway.services.models)
        self._connected.set()
        return gateway

    async def apply(self, plan: NodePlan, specs: Iterable[ModelSpec]) -> None:
        """Changes to what is there now, with a line of the log for each. A model that cannot be changed stays
        as it is.
        """
        async with self._turn:
            wanted = {spec.name: spec for spec in specs}
            if plan.policy != self.node.policy:
                log.info("node_changed %s", differing(self.node.policy, plan.policy))
                self.node.policy = plan.policy
            for name in [name for name in self._models if name not in wanted]:
                await self._logged("model_removed", name, self._remove(name))
            for name, spec in wanted.items():
                if name not in self._models:
                    await self._logged("model_added", name, self._add_late(spec))
                else:
                    await self._change(spec)

    async def _logged(self, what: str, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except FirelaneError as error:
            log.error("reload_failed model=%s error=%r", name, str(error))
        else:
            log.info("%s model=%s", what, name)

    def _add(self, spec: ModelSpec) -> Model:
        """A model that was here before has the engines that it had then."""
        name = spec.name
        model = self._retired.pop(name, None)
        if model is None:
            start = self._plan.start
            model = Model(spec, self._tell, self._sharing, lambda replica: self._group(name, replica), start)
        self._models[name] = model
        files = SourceFiles(
            lambda: self._models[name].spec, lambda: self._arrive(name), lambda: self._user_beside(name)
        )
        mark = PackedFile(spec.engines)
        self.node.add(NodeModel(name, model, spec.policy, mark=mark, files=files))
        return model

    def _group(self, name: str, replica: str) -> EngineGroup:
        return self._plan.groups.group(f"{name}-{replica}", lambda: self._share_bytes(name))

    def _share_bytes(self, name: str) -> int:
        """Memory of each replica of this model; 0 on a GPU, whose memory is none of a control group's."""
        model = self._models[name]
        if takes_gpu(model.options.engine.backend):
            return 0
        return max(self.node[name].policy.need_bytes, model.ready_bytes) // model.options.replicas

    async def _arrive(self, name: str) -> None:
        """A model's files have come: from now on it is what they say. Raises FirelaneError."""
        await self._connected.wait()
        async with self._turn:
            when_here = self._models[name].spec.when_here
            if when_here is not None:
                await self._become(await asyncio.to_thread(when_here))

    def _user_beside(self, name: str) -> str:
        """Another model of the same source that is in memory; "" of none."""
        source = self._models[name].spec.source
        others = [one.name for one in self if one.name != name and one.spec.source == source]
        return next((one for one in others if self.node[one].state not in RESTS), "")

    async def _add_late(self, spec: ModelSpec) -> None:
        """Raises TokenizerError and what else is wrong with the model's files."""
        assert self._gateway is not None
        was_here = spec.name in self._retired
        model = self._add(spec)
        try:
            self._gateway.add_model(spec.gateway, model.make_replicas(), model.served)
            self._place(model)
            self._sharing.put_model(spec.gateway)
            await (model.come_back(spec) if was_here else model.connect())
        except FirelaneError:
            self._forget(spec.name)
            raise
        if spec.policy.loads_first:
            self.node.bring(self.node[spec.name])

    async def _remove(self, name: str) -> None:
        """New requests get 404 at once; those in flight may end."""
        assert self._gateway is not None
        self._gateway.services.models.remove(self._gateway.services.models.named(name))
        self._sharing.remove_model(name)
        await self.node.unload(self.node[name], CHANGE_S)
        self._retired[name] = self._models[name]
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.node.remove(name)
        del self._models[name]

    async def _change(self, spec: ModelSpec) -> None:
        model = self._models[spec.name]
        before, in_node = model.spec, self.node[spec.name]
        if not (difference := before.difference(spec)):
            model.spec = spec
            return
        log.info("model_changed model=%s %s", spec.name, difference)
        try:
            if spec.engines_differ(before) or spec.source != before.source:
                await self.node.unload(in_node, CHANGE_S)
            await self._become(spec)
        except FirelaneError as error:
            log.error("reload_failed model=%s error=%r", spec.name, str(error))
        if spec.policy.loads_first:
            self.node.bring(in_node)

    async def update(self, name: str, source: str, version: str, within_s: float) -> None:
        """Have new requests of a model get the weights of another source, under the name `version`; those
        that run end with what they have. Raises RequestError where it cannot be, EngineDeadError where the
        new engines do not serve, each with all as it was."""
        async with self._turn:
            model = self._models[name]
            self._check_update(model, version)
            try:
                directory, tokenizer_dir = await asyncio.to_thread(
                    _files, source, model.options.engine.cache_dir
                )
                spec = model.spec.with_weights(directory, tokenizer_dir, version)
                reason = await model.update(spec, lambda: self._switch(spec), within_s)
            except (ModelError, UsageError, CacheError) as error:
                raise RequestError(f"{name} stays as it is: {error}", param="source") from None
            if reason:
                raise EngineDeadError(f"{name} stays as it is: the new version does not serve: {reason}")
            self.node[name].files.look()
            self.node[name].mark_with(PackedFile(spec.engines))
            log.info("model_updated model=%s version=%s", name, version)

    def _check_update(self, model: Model, version: str) -> None:
        """Raises RequestError."""
        why = ""
        if self._sharing.is_shared or model.options.remote is not None:
            why = "engines of several gateway processes or hosts are restarted to change their weights"
        elif not isinstance(model.fleet, Fleet) or not model.serves:
            why = "it is not in memory: load it first"
        elif model.fleet.is_leaving:
            why = "requests of the version before still run: try again when they have ended"
        elif version == model.options.engine.version:
            why = f"its weights are named {version} already: give the new ones another name"
        elif not self.node.has_room(model.ready_bytes):
            why = "both versions are in memory for a while, and the node's budget has no room for that"
        if why:
            raise RequestError(f"{model.name} stays as it is: {why}")

    def _switch(self, spec: ModelSpec) -> None:
        """From now on requests get what `spec` says. Raises TokenizerError."""
        assert self._gateway is not None
        model = self._models[spec.name]
        model.served, text = self._gateway.update_model(spec.name, spec.gateway)
        task = asyncio.get_running_loop().create_task(self._end_before(model, text))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_before(self, model: Model, text: TextSide | None) -> None:
        """The end of a version: that of its requests."""
        await asyncio.sleep(0)  # its engines leave their places first
        if isinstance(model.fleet, Fleet):
            await model.fleet.end_leaving()
        if text is not None:
            text.prompts.close()
        log.info("model_version_ended model=%s", model.name)

    async def _become(self, spec: ModelSpec) -> None:
        """Another description of a model, which has no engine where its engines differ. Raises FirelaneError,
        and leaves it as it was."""
        model, in_node = self._models[spec.name], self.node[spec.name]
        before = model.spec
        if spec.gateway != before.gateway and self._gateway is not None:
            self._gateway.change_model(spec.name, spec.gateway)
            self._sharing.put_model(spec.gateway)
        in_node.policy = spec.policy
        await model.become(spec)
        in_node.files.look()
        if spec.engines_differ(before):
            in_node.mark_with(PackedFile(spec.engines))

    def _place(self, model: Model) -> None:
        assert self._gateway is not None
        served = model.served = self._gateway.services.models.named(model.name)
        waits = not self._plan.is_fixed
        served.residence = self.node.residence(model.name, waits=waits)


def _files(source: str, cache_dir: Path) -> tuple[Path, Path]:
    """The directories of a model and of its tokenizer. Raises ModelError and CacheError."""
    from firelane.sources.resolve import resolve  # here: few servers fetch anything while they serve
    from firelane.text.tokens.tokenizer_source import tokenizer_directory

    directory = resolve(source, cache_dir=cache_dir)
    return directory, tokenizer_directory(directory, cache_dir)
