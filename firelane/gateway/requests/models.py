"""Served models: what a gateway knows of each."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from firelane.api.sampling import RunOptions, SamplingFields
from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError, ModelNotServedError, QueueTimeoutError, RequestError
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.roles.role_control import NO_ROLE_CONTROL, NoRoleControl, RoleControl
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.admission import AdmissionController, Reservation
from firelane.gateway.requests.metrics import ModelMetrics
from firelane.gateway.requests.pause import Pause
from firelane.gateway.requests.residence import ALWAYS, Residence, WakeSigns, rejects_cold
from firelane.gateway.requests.running import RunningRequests
from firelane.gateway.requests.text_side import TextSide
from firelane.gateway.tenants.tenant import Tenant
from firelane.gateway.urgency import check_in_time
from firelane.text.chat.assistant import Assistant
from firelane.text.prompt import PromptBuilder, tokens_to_keep
from firelane.text.tokens.tokenizer import COUNTED_TOKENS, TextRoom, Tokenizer
from firelane.wire.frames import Ready

LATEST = ":latest"
"""The tag of a name without one, in Ollama's way of naming models."""


class ModelState(enum.Enum):
    """State of a model. down: its engine has ended, and another one may be on its way."""

    STARTING = "loading"
    READY = "ready"
    STANDBY = "standby"
    DRAINING = "draining"
    DOWN = "down"


_STATES = {
    LinkState.STARTING: ModelState.STARTING,
    LinkState.READY: ModelState.READY,
    LinkState.STANDBY: ModelState.STANDBY,
    LinkState.DEAD: ModelState.DOWN,
}


@dataclass(kw_only=True, eq=False)
class ServedModel:
    """One model of a gateway, which owns it: text side, engines, admission, metrics."""

    names: tuple[str, ...]
    """Served names; the first is reported."""
    aliases: dict[str, str]
    """Further names, to the served names that they mean."""
    text: TextSide | None
    """None while its files are not here."""
    engines: ReplicaSet
    admission: AdmissionController
    metrics: ModelMetrics
    version: str
    """Version of the program, a part of the fingerprint."""
    weights: str = ""
    """The version of the weights, as an update has named it. Requests that have this object get these."""
    first_adapters: tuple[str, ...] = ()
    """Names of adapters that its engines are started with."""
    waits: bool = False
    """Requests that come while it loads wait for it."""
    tenants: frozenset[str] | None = None
    """Tenants that may use it; None: all."""
    pause: Pause = field(default_factory=Pause)
    successor: ServedModel | None = None
    """The model with other weights, once new requests get these."""
    running: RunningRequests = field(default_factory=RunningRequests)
    residence: Residence = ALWAYS
    role_control: RoleControl | NoRoleControl = NO_ROLE_CONTROL

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def prompts(self) -> PromptBuilder:
        """Raises EngineDeadError while the model's files are not here."""
        return self._text.prompts

    @property
    def assistant(self) -> Assistant:
        """The chat side of the model; raises like `prompts`."""
        return self._text.assistant

    @property
    def _text(self) -> TextSide:
        if self.text is None:
            raise EngineDeadError(
                f"{self.name} is {self.status}: its files come with the first request that needs an engine, "
                "or with `firelane pull`",
                retry_after_s=self.residence.left_s,
            )
        return self.text

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prompts.tokenizer

    @property
    def max_model_len(self) -> int | None:
        """Tokens; None until an engine is ready."""
        return None if self.engines.ready is None else self.engines.ready.max_model_len

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the model's name and the program's version, with the name of its weights where these were
        updated: equal seeds give equal answers while it stays.
        """
        digest = hashlib.blake2b(f"{self.name}\0{self.version}".encode(), digest_size=6)
        return "_".join(part for part in ("fp", digest.hexdigest(), self.weights) if part)

    @property
    def state(self) -> ModelState:
        return ModelState.DRAINING if self.admission.draining else _STATES[self.engines.state]

    @property
    def reason(self) -> str:
        """The reason why it does not answer, in words; "" where it does."""
        if self.admission.draining:
            return "shutting down"
        progress = self.engines.figures.progress
        if self.engines.state is LinkState.STARTING and progress is not None:
            unit = f" {progress.unit}" if progress.unit else ""
            return f"{progress.stage} {progress.done:g} of {progress.total:g}{unit}"
        return self.engines.reason

    def serving(self) -> Ready:
        """The limits of its engines. Raises EngineDeadError where none serves, and none will soon."""
        ready = self.engines.takes
        if ready is None:
            raise EngineDeadError(
                f"the engine does not serve ({self.state.value}): {self.reason}",
                retry_after_s=self.engines.figures.left_s,
            )
        return ready

    @property
    def status(self) -> str:
        """State in words: that of its residence where it has one."""
        own = "" if self.admission.draining else self.residence.state
        return own or self.state.value

    async def until_loaded(
        self, exchange: Exchange, *, keep_s: float | None = None, streams: bool = False
    ) -> ServedModel:
        """Wait while the model is paused, comes to memory, or its first engine loads where the server is to
        do that: a place in the queue is held meanwhile. Returns the model as new requests get it then.
        keep_s: as in Residence.used. streams: the answer is a stream of events. Raises QueueFullError, and
        QueueTimeoutError after its time; EngineDeadError where the model does not come, or the client does
        not wait.
        """
        residence = self.residence
        if self.pause.is_on:
            place = (
                contextlib.nullcontext() if exchange.request.background else self.admission.early(exchange)
            )
            with place:
                await self._until(self.pause.over(), exchange, self.admission.max_age_s)
        while residence.is_cold and not exchange.gone:
            await self._until_resident(exchange, streams)
        residence.used(keep_s)
        loads = self.engines.takes is None and self.state is ModelState.STARTING
        if loads and self.waits and not exchange.request.background:
            with self.admission.early(exchange):
                await self._until(self.engines.until_loaded(), exchange, self.admission.max_age_s)
        found = self
        while found.successor is not None:
            found = found.successor
        return found

    def _tell_coming(self) -> str:
        """Progress of the model while it comes to memory."""
        progress = self.engines.figures.progress
        if self.engines.state is LinkState.STARTING and progress is not None:
            return f"{self.name}: {self.reason}"
        return f"{self.name}: {self.residence.state or self.state.value}"

    async def _until_resident(self, exchange: Exchange, streams: bool) -> None:
        residence, request = self.residence, exchange.request
        if rejects_cold(request.headers):
            raise EngineDeadError(
                f"{self.name} is not in memory ({residence.state}), and the request does not wait for it",
                retry_after_s=residence.left_s,
            )
        place = contextlib.nullcontext() if request.background else self.admission.early(exchange)
        signs = WakeSigns(exchange, self._tell_coming) if streams else contextlib.nullcontext()
        with place, signs:
            await self._until(residence.want(), exchange, residence.deadline_s)

    async def _until(self, loaded: Coroutine[Any, Any, None], exchange: Exchange, most_s: float) -> None:
        """Return early where the client goes. Raises QueueTimeoutError, and DeadlineError where the request's
        own time is over before."""
        waiting = asyncio.ensure_future(loaded)

        def stop() -> None:
            waiting.cancel()

        exchange.on_gone = stop
        left_s = max(0.0, exchange.request.due_s - time.monotonic())
        try:
            done, _ = await asyncio.wait([waiting], timeout=min(most_s, left_s))
        finally:
            exchange.on_gone = None
            waiting.cancel()
        if done and not waiting.cancelled():
            waiting.result()
        if not done:
            check_in_time(exchange.request, self.metrics)
            raise QueueTimeoutError(f"the model has not been loaded within {most_s:g} s: try again later")

    def text_room(self, exchange: Exchange, part: str, fields: SamplingFields | None = None) -> TextRoom:
        """Room for a request's texts. part: as in TextRoom. Raises EngineDeadError."""
        ready = self.serving()
        most = ready.max_model_len
        return TextRoom(
            max_tokens=most,
            images=ready.images,
            part=part,
            gone=lambda: exchange.gone,
            keep=None if fields is None else tokens_to_keep(fields, most),
            from_start=fields is not None and fields.truncation_side == "right",
        )

    def counting_room(self, exchange: Exchange, part: str) -> TextRoom:
        """Room for texts whose tokens are only wanted to be known, also without an engine."""
        most = max(COUNTED_TOKENS, self.max_model_len or 0)
        limit = "The most that is tokenised at once"
        images = self.engines.ready.images if self.engines.ready else None
        return TextRoom(max_tokens=most, part=part, gone=lambda: exchange.gone, limit=limit, images=images)

    def reserve(self, exchange: Exchange, sequences: int, options: RunOptions | None = None) -> Reservation:
        """Admit a request. Raises EngineDeadError, RateLimitError, QueueFullError and RequestError."""
        busy = options is not None and options.reject_if_busy is True
        return self.admission.reserve(exchange, sequences, self.serving().max_num_seqs, reject_if_busy=busy)

    def reserve_text(self, exchange: Exchange) -> Reservation:
        """Count a request that is answered without an engine: its tenant's quota holds for it too, and while
        it runs it counts among those that the tenant may have at a time. Raises RateLimitError, and
        EngineDeadError while the server shuts down.
        """
        return self.admission.reserve(exchange, 0, self.admission.held)

    def open_to(self, tenant: Tenant, name: str) -> bool:
        """Whether a tenant may ask for the model by this name of it."""
        if self.tenants is not None and tenant.name not in self.tenants:
            return False
        return tenant.may_use(name) or tenant.may_use(self.aliases.get(name, name))

    def names_for(self, tenant: Tenant) -> list[str]:
        return [name for name in self.all_names if self.open_to(tenant, name)]

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, *self.aliases, *self.adapters)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of adapters, which requests give as the model's: those that its engines have, or had last."""
        sizes = self.engines.figures.sizes
        return self.first_adapters if sizes is None else tuple(sizes.adapters)

    def adapter(self, name: str | None) -> str:
        """The adapter that a request means by a name of the model; "" for none."""
        known = "" if name is None else name if name in self.adapters else name.removesuffix(LATEST)
        return known if known in self.adapters else ""

    def asked_adapter(self, name: str | None, path: str | None, tenant: Tenant) -> str:
        """The digest of the adapter that a request is computed with; "" of none. name: of the model; path:
        SGLang's `lora_path`, the name of an adapter. Raises RequestError, and EngineDeadError where the
        engines do not have it."""
        adapter = self.adapter(name)
        if path:
            if path not in self.adapters or not self.open_to(tenant, path):
                raise not_served(path, param="lora_path")
            if adapter not in ("", path):
                raise RequestError(
                    f"`model` names the adapter {adapter}, and `lora_path` another one: give one of them",
                    param="lora_path",
                )
            adapter = path
        if not adapter:
            return ""
        digest = self.serving().adapters.get(adapter)
        if digest is None:
            raise EngineDeadError(f"no engine has the adapter {adapter} now: try again, or load it")
        return digest

    def check_plain(self, name: str | None) -> None:
        """Raises RequestError for the name of an adapter, on a path that knows none."""
        if self.adapter(name):
            raise RequestError(
                f"{name} is an adapter, and this path does not use adapters: name {self.name}", param="model"
            )


def adapted_salt(salt: bytes, digest: str) -> bytes:
    """The salt of requests with the adapter of this digest: its pages are no other's."""
    if not digest:
        return salt
    return hashlib.blake2b(salt + digest.encode(), digest_size=16, person=b"firelane.lora").digest()


def not_served(name: str, param: str = "model") -> ModelNotServedError:
    """The error for the name of a model, or an adapter, that a tenant may not use or that is not there."""
    return ModelNotServedError(
        f"The model `{name[:200]}` does not exist or you do not have access to it: see /v1/models",
        param=param,
        code="model_not_found",
    )
