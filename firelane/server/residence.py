"""Residence of a model of a node, for the gateway."""

from __future__ import annotations

from firelane.node.model import NodeModel
from firelane.node.node import Node
from firelane.node.states import State


class NodeResidence:
    """The residence of a model on a node. waits: requests that come while the model loads for the first time
    wait for it, whatever the gateway's own rule says."""

    def __init__(self, node: Node, model: NodeModel, *, waits: bool) -> None:
        self._node, self._model, self._waits = node, model, waits

    @property
    def is_cold(self) -> bool:
        model = self._model
        return not model.serves and (self._waits or model.state is not State.LOADING)

    @property
    def state(self) -> str:
        model = self._model
        if model.state is State.PULLING and model.pulled[1]:
            done, total = (nbytes / 1e6 for nbytes in model.pulled)
            return f"{model.state.value} {done:.0f} of {total:.0f} MB"
        return "" if model.state in (State.READY, State.LOADING) else model.state.value

    @property
    def reason(self) -> str:
        return self._model.reason

    @property
    def left_s(self) -> int:
        return max(1, round(self._model.left_s))

    @property
    def leaves(self) -> bool:
        return not self._model.policy.pinned

    @property
    def deadline_s(self) -> float:
        return self._node.policy.wake_deadline_s

    def used(self, keep_s: float | None) -> None:
        self._node.used(self._model, keep_s)

    async def want(self) -> None:
        await self._node.want(self._model)

    async def changed(self) -> None:
        await self._model.lifecycle.changed()
