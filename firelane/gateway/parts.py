"""What the handlers of a gateway share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from firelane.gateway.accounting import Accounting
from firelane.gateway.admission import Admission
from firelane.gateway.assistant import Assistant
from firelane.gateway.batches.service import Batches
from firelane.gateway.engine_link import EngineLink
from firelane.gateway.files.store import FileStore
from firelane.gateway.ledger import Ledger
from firelane.gateway.prompt import PromptBuilder
from firelane.gateway.responses.store import ResponseStore
from firelane.gateway.router import Router
from firelane.gateway.tenants.registry import Tenants
from firelane.gateway.ticket import Gate
from firelane.gateway.tokenizer import Tokenizer


@dataclass(kw_only=True)
class Parts:
    """The hops, made by the Gateway. draining: new work is refused while the old is finished. now_s: the
    monotonic clock, which frames are stamped with. created: Unix time of the start. aliases: further
    names, to the served names that they mean.
    """

    tenants: Tenants
    admission: Admission
    ledger: Ledger
    gate: Gate
    prompts: PromptBuilder
    assistant: Assistant
    router: Router
    link: EngineLink
    accounting: Accounting
    served_names: tuple[str, ...]
    version: str
    now_s: Callable[[], float]
    created: int
    responses: ResponseStore
    files: FileStore
    batches: Batches
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    draining: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """Of the model's name and the program's version: equal seeds give equal answers while it stays."""
        digest = hashlib.blake2b(f"{self.served_names[0]}\0{self.version}".encode(), digest_size=6)
        return f"fp_{digest.hexdigest()}"

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prompts.tokenizer

    @property
    def max_model_len(self) -> int | None:
        """Tokens; None until the engine is ready."""
        return None if self.link.ready is None else self.link.ready.max_model_len
