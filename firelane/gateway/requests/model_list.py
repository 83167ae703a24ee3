"""All served models of a gateway, and which of them a request means."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.models import LATEST, ServedModel, not_served
from firelane.gateway.tenants.tenant import Tenant

TEMPLATES_AFTER_S = 1.0
"""After the gateway's start: an engine that loads meanwhile comes first."""


class Models:
    """All models of a gateway, in the order of its configuration. any_name: requests that name no model that
    there is get the first one, too.
    """

    def __init__(self, models: Sequence[ServedModel], *, any_name: bool = False) -> None:
        self._models = tuple(models)
        self._any_name = any_name
        self._by_name: dict[str, ServedModel] = {}
        self.index()

    async def start_templates(self) -> None:
        """Start the processes that conversations need and that the start has not waited for."""
        await asyncio.sleep(TEMPLATES_AFTER_S)
        for model in self._models:
            template = None if model.text is None else model.text.prompts.template
            if template is not None:
                await template.start()

    def index(self) -> None:
        """To be called when a model's names have changed."""
        self._by_name = {name: m for m in self._models for name in (*m.names, *m.aliases)}

    def add(self, model: ServedModel) -> None:
        self._models = (*self._models, model)
        self.index()

    def replace(self, old: ServedModel, new: ServedModel) -> None:
        """Requests that have begun go on with the old one."""
        self._models = tuple(new if one is old else one for one in self._models)
        old.successor = new
        self.index()

    def remove(self, model: ServedModel) -> None:
        """Requests that have begun go on."""
        self._models = tuple(one for one in self._models if one is not model)
        self.index()

    def names(self) -> set[str]:
        """All names that requests may give."""
        return {name for model in self._models for name in model.all_names}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> ServedModel:
        return self._models[0]

    def find(self, name: str | None, tenant: Tenant) -> ServedModel:
        """The model of a name; without a name the first one. Raises ModelNotServedError, also where the
        tenant has no access.
        """
        known = self._known(name)
        model = self._get(known)
        if model is None or not model.open_to(tenant, known):
            raise not_served(name or known)
        return model

    def _get(self, name: str) -> ServedModel | None:
        """Adapters come and go with what the engines tell."""
        found = self._by_name.get(name)
        return found or next((model for model in self._models if name in model.adapters), None)

    def _known(self, name: str | None) -> str:
        """The name that stands for what a request says."""
        if name is None or (self._any_name and self._get(name) is None):
            return self.default.name
        return name

    async def find_loaded(
        self, name: str | None, exchange: Exchange, *, streams: bool | None = False
    ) -> ServedModel:
        """Find the model of a request of `exchange` that needs an engine: waits where the model loads."""
        model = self.find(name, exchange.request.tenant)
        return await model.until_loaded(exchange, streams=streams is True)

    def find_tagged(self, name: str, tenant: Tenant) -> ServedModel:
        """Find a model where the tag `latest` may be there or not, as in Ollama."""
        other = name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST
        known = self._get(name) is not None or self._get(other) is None
        return self.find(name if known else other, tenant)

    def named(self, name: str) -> ServedModel:
        """The model of a name, whoever asks. Raises ModelNotServedError."""
        model = self._get(name)
        if model is None:
            raise not_served(name)
        return model

    def open_named(self, name: str, tenant: Tenant) -> ServedModel:
        """The model of a name. Raises ModelNotServedError, also where the tenant has no access."""
        model = self.named(name)
        if not model.open_to(tenant, name):
            raise not_served(name)
        return model


def tagged(name: str) -> str:
    """The name with its tag."""
    return name if ":" in name[name.rfind("/") + 1 :] else name + LATEST
