"""Adapters of one model that come and go while its engines serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.errors import EngineDeadError, NotFoundError, RequestError
from firelane.server.adapter_copies import AdapterCopies
from firelane.wire.adapters import AdapterChange, AdaptersServed, LoadAdapter, UnloadAdapter

if TYPE_CHECKING:
    from firelane.engine_config import EngineConfig
    from firelane.gateway.engines.link.link import EngineLink
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.wire.frames import Ready

log = logging.getLogger(__name__)
ANSWER_S = 120.0
"""Time in which all engines have to answer."""
Loras = Mapping[str, str]
"""Directories of adapters, by name."""


class ModelAdapters:
    """The adapters that a model's engines are to have: those of the start, and what was changed since. An
    engine that starts later gets them all, before requests that name them go there."""

    def __init__(
        self,
        engine: EngineConfig,
        engines: Callable[[], ReplicaSet],
        configure: Callable[[Loras], None],
        *,
        is_remote: bool = False,
    ) -> None:
        """engine: the configuration of one of them; configure: has engines that start from now on have these
        adapters. is_remote: they are on other hosts, whose files are not this one's."""
        self._places = max(engine.max_loras, len(engine.loras))
        self._engines, self._configure, self._is_remote = engines, configure, is_remote
        self._served: dict[str, str] = dict(engine.loras)
        self._digests: dict[str, str] = {}
        """Content of those that were loaded since the start, by name."""
        self._copies = AdapterCopies(engine.cache_dir)
        self._turn = asyncio.Lock()

    async def load(self, name: str, directory: Path, *, in_place: bool) -> None:
        """Have all engines serve an adapter by this name; where it is taken, only `in_place`. Raises
        RequestError that says what is wrong with it, with all as it was, and EngineDeadError."""
        self._check_room()
        async with self._turn:
            if name in self._served and not in_place:
                raise RequestError(
                    f"the adapter {name} is loaded already: unload it first, or give `load_inplace`",
                    param="lora_name",
                )
            if len(self._served.keys() | {name}) > self._places:
                raise RequestError(
                    f"all {self._places} places for adapters are taken: unload one, or start the server with "
                    "a larger --max-loras"
                )
            copy = await asyncio.to_thread(self._copies.make, directory)
            try:
                await self._load_copy(name, str(copy))
            except BaseException:
                self._copies.remove(copy)
                raise

    async def unload(self, name: str) -> None:
        """Have all engines take no new requests for it. Raises NotFoundError where there is none."""
        async with self._turn:
            if name not in self._served:
                raise NotFoundError(f"there is no adapter {name[:80]}", param="lora_name")
            before = self._served[name]
            self._keep({other: path for other, path in self._served.items() if other != name})
            await self._ask(lambda number: UnloadAdapter(number, name))
            self._digests.pop(name, None)
            self._copies.remove(Path(before))
            log.info("adapter_unloaded name=%s", name)

    def on_ready(self, link: EngineLink, ready: Ready) -> None:
        """An engine that was on its way while adapters changed gets what it lacks, and gives up the rest."""
        next_id = self._engines().next_id
        for name in ready.adapters.keys() - self._served.keys():
            link.commands.change_adapters(UnloadAdapter(next_id(), name))
        for name, path in self._served.items():
            has = ready.adapters.get(name)
            if has is None or has != self._digests.get(name, has):
                link.commands.change_adapters(LoadAdapter(next_id(), name, path))

    async def _load_copy(self, name: str, copy: str) -> None:
        before = self._served.get(name)
        answers = await self._ask(lambda number: LoadAdapter(number, name, copy))
        error = next((answer.error for answer in answers if answer.error), "")
        if error or not answers:
            await self._ask(lambda number: _back(number, name, before))
            raise RequestError(error) if error else EngineDeadError("no engine has taken the adapter")
        self._keep({**self._served, name: copy})
        self._digests[name] = answers[0].adapters[name]
        if before is not None:
            self._copies.remove(Path(before))
        log.info("adapter_loaded name=%s digest=%s", name, self._digests[name])

    async def _ask(self, asked: Callable[[int], AdapterChange]) -> list[AdaptersServed]:
        """The answers of all engines; those that end meanwhile give none."""
        engines = self._engines()
        waiting = [
            answer
            for link in engines.links
            if (answer := link.commands.change_adapters(asked(engines.next_id()))) is not None
        ]
        done, late = await asyncio.wait(waiting, timeout=ANSWER_S) if waiting else (set(), set())
        for answer in late:
            answer.cancel()
        if late:
            raise EngineDeadError(f"{len(late)} engines have not answered within {ANSWER_S:g} s")
        return [answer.result() for answer in done if not answer.cancelled()]

    def _keep(self, served: dict[str, str]) -> None:
        self._served = served
        self._configure(served)

    def _check_room(self) -> None:
        """Raises RequestError."""
        if self._is_remote:
            raise RequestError("adapters of engines on other hosts are given where these are started: --lora")
        if not self._places:
            raise RequestError(
                "this model has no room for adapters: start the server with --max-loras N, or name some with "
                "--lora"
            )


def _back(number: int, name: str, before: str | None) -> AdapterChange:
    """The change that undoes the load of an adapter where it came about."""
    return UnloadAdapter(number, name) if before is None else LoadAdapter(number, name, before)
