"""Models of a server of several gateway processes: which there are, and whether they are in memory. The owner
of the engines tells it to all, and is told what is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.config import ModelConfig
from firelane.gateway.processes.config_text import to_text
from firelane.gateway.processes.control import Gone, Resident, ServeModel, Used, Want, WantReply
from firelane.gateway.processes.gateway_child import GatewayChild
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel


class ModelFollower:
    """Follows the models of the owner's gateway. children: the processes that run. configs: of the models
    that there are."""

    def __init__(
        self, children: Callable[[], Iterable[GatewayChild]], configs: Iterable[ModelConfig]
    ) -> None:
        self._children = children
        self.configs = {config.names[0]: config for config in configs}
        self._models: Models | None = None
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._wants: set[asyncio.Task[None]] = set()

    def follow(self, models: Models) -> None:
        """All residences are there."""
        self._models = models
        for model in models:
            self._follow(model)

    def put(self, config: ModelConfig) -> None:
        """There is one more model, with a residence, or one is served in another way."""
        name = config.names[0]
        self.configs[name] = config
        for child in self._children():
            child.control.send(ServeModel(to_text(config)))
        if self._models is not None and name not in self._followers:
            self._follow(self._models.named(name))

    def remove(self, name: str) -> None:
        self.configs.pop(name, None)
        follower = self._followers.pop(name, None)
        if follower is not None:
            follower.cancel()
        for child in self._children():
            child.control.send(Gone(name))

    def tell(self, child: GatewayChild) -> None:
        """A new process: all that is known."""
        for model in self._models or ():
            child.control.send(_resident(model))

    def used(self, message: Used) -> None:
        """A request came to another process."""
        model = self._find(message.model)
        if model is not None:
            model.residence.used(message.keep_s)

    def want(self, child: GatewayChild, message: Want) -> None:
        """A request waits for a model there."""
        task = asyncio.get_running_loop().create_task(self._bring(child, message))
        self._wants.add(task)
        task.add_done_callback(self._wants.discard)

    def close(self) -> None:
        for task in (*self._followers.values(), *self._wants):
            task.cancel()

    async def _bring(self, child: GatewayChild, message: Want) -> None:
        model, error, retry_s = self._find(message.model), "", None
        try:
            if model is None:
                raise EngineDeadError("the model is not served any more")
            await model.residence.want()
            child.control.send(_resident(model))
        except FirelaneError as failed:
            error, retry_s = str(failed), getattr(failed, "retry_after_s", None)
        child.control.send(WantReply(message.turn, message.model, error, retry_s))

    def _find(self, name: str) -> ServedModel | None:
        return next((model for model in self._models or () if model.name == name), None)

    def _follow(self, model: ServedModel) -> None:
        task = asyncio.get_running_loop().create_task(self._tell_changes(model))
        self._followers[model.name] = task

    async def _tell_changes(self, model: ServedModel) -> None:
        while True:
            news = _resident(model)
            for child in self._children():
                child.control.send(news)
            await model.residence.changed()


def _resident(model: ServedModel) -> Resident:
    residence = model.residence
    return Resident(
        model=model.name,
        is_cold=residence.is_cold,
        state=residence.state,
        reason=residence.reason,
        left_s=residence.left_s,
        leaves=residence.leaves,
        deadline_s=residence.deadline_s,
    )
