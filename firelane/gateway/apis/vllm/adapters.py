"""Adapters that come and go while a server runs, in the forms of vLLM, SGLang and llama-server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from firelane.api.decode import BodyDecoder
from firelane.api.models import ModelQuery
from firelane.api.stored.paging import read_query
from firelane.errors import RequestError
from firelane.gateway.config.model import MOST_NAME
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services

TEXT = "text/plain"
Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]


class LoadLoraRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """lora_name: the name that requests give; lora_path: a directory of the server's machine. load_inplace:
    in place of an adapter that has the name. model: the base; null: the first model. The other fields of
    vLLM and SGLang change nothing: what an adapter is, its files say.
    """

    lora_name: Name
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    load_inplace: bool = False
    model: str | None = None
    base_model_name: str | None = None
    lora_int_id: int | None = None
    pinned: bool | None = None
    is_3d_lora_weight: bool | None = None

    def check(self) -> None:
        """Raises RequestError."""
        if not self.lora_name.isprintable() or not self.lora_name.strip():
            raise RequestError("`lora_name` must be of printable characters", param="lora_name")
        if "\0" in self.lora_path or not self.lora_path.startswith("/"):
            raise RequestError("`lora_path` must be the full path of a directory", param="lora_path")
        if self.is_3d_lora_weight:
            raise RequestError("adapters of fused experts are not computed", param="is_3d_lora_weight")


class UnloadLoraRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """lora_name: of the adapter. lora_int_id changes nothing. model: the base; null: the one that has it."""

    lora_name: Name
    lora_int_id: Any = None
    model: str | None = None

    def check(self) -> None:
        """All that the types allow is allowed."""


class LoadedAdapters(msgspec.Struct, frozen=True, kw_only=True):
    """loaded_adapters: names, each with itself: where their files lie is the server's business."""

    success: bool
    loaded_adapters: dict[str, str]


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True):
    """path: the adapter's name. scale: 1 for a request that names it."""

    id: int
    path: str
    scale: float = 1.0


class AdapterHandler:
    """Names of all models and adapters are apart from each other."""

    def __init__(self, services: Services) -> None:
        self._models, self._control = services.models, services.control
        self._bodies, self._replies = services.bodies, services.replies
        self._loads: BodyDecoder[LoadLoraRequest] = BodyDecoder(LoadLoraRequest)
        self._unloads: BodyDecoder[UnloadLoraRequest] = BodyDecoder(UnloadLoraRequest)

    def routes(self) -> Iterable[Route]:
        load = Doc(summary="Load an adapter (vLLM's form)", body=LoadLoraRequest, answer_type=TEXT)
        unload = Doc(summary="Unload an adapter (vLLM's form)", body=UnloadLoraRequest, answer_type=TEXT)
        yield Route("POST", "/v1/load_lora_adapter", self.load, admin=True, doc=load)
        yield Route("POST", "/v1/unload_lora_adapter", self.unload, admin=True, doc=unload)
        load = Doc(summary="Load an adapter (SGLang's form)", body=LoadLoraRequest, answer=LoadedAdapters)
        unload = Doc(
            summary="Unload an adapter (SGLang's form)", body=UnloadLoraRequest, answer=LoadedAdapters
        )
        yield Route("POST", "/load_lora_adapter", self.load_for_sglang, admin=True, doc=load)
        yield Route("POST", "/unload_lora_adapter", self.unload_for_sglang, admin=True, doc=unload)
        report = Doc(
            summary="A model's adapters (llama-server's form)", answer=list[AdapterReport], query=ModelQuery
        )
        yield Route("GET", "/lora-adapters", self.report, doc=report)

    async def load(self, exchange: Exchange) -> None:
        _, name = await self._load(exchange)
        self._say(exchange, f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, exchange: Exchange) -> None:
        _, name = await self._unload(exchange)
        self._say(exchange, f"Success: LoRA adapter '{name}' removed successfully.")

    async def load_for_sglang(self, exchange: Exchange) -> None:
        model, _ = await self._load(exchange)
        self._tell(exchange, model)

    async def unload_for_sglang(self, exchange: Exchange) -> None:
        model, _ = await self._unload(exchange)
        self._tell(exchange, model)

    def report(self, exchange: Exchange) -> None:
        tenant = exchange.request.tenant
        model = self._models.find(read_query(exchange.request.query, ("model",)).get("model"), tenant)
        names = [(i, name) for i, name in enumerate(model.adapters) if model.open_to(tenant, name)]
        self._replies.json(exchange, [AdapterReport(id=i, path=name) for i, name in names])

    async def _load(self, exchange: Exchange) -> tuple[ServedModel, str]:
        request = await self._bodies.read(exchange, self._loads)
        name = request.lora_name
        model = self._models.default if request.model is None else self._models.named(request.model)
        if name in self._models.names() and name not in model.adapters:
            raise RequestError(
                f"{name} is the name of a model: give the adapter another one", param="lora_name"
            )
        model = await model.until_loaded(exchange)
        await self._control.load_adapter(model, name, Path(request.lora_path), in_place=request.load_inplace)
        return model, name

    async def _unload(self, exchange: Exchange) -> tuple[ServedModel, str]:
        request = await self._bodies.read(exchange, self._unloads)
        name = request.lora_name
        owner = next((one for one in self._models if name in one.adapters), self._models.default)
        model = owner if request.model is None else self._models.named(request.model)
        await self._control.unload_adapter(model, name)
        return model, name

    def _say(self, exchange: Exchange, text: str) -> None:
        self._replies.send(exchange, text.encode(), content_type=b"text/plain; charset=utf-8")

    def _tell(self, exchange: Exchange, model: ServedModel) -> None:
        names = {name: name for name in model.adapters}
        self._replies.json(exchange, LoadedAdapters(success=True, loaded_adapters=names))
