"""The engines of a model on other hosts, in place of processes of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import firelane
from firelane.cluster.addresses import NameDiscovery
from firelane.cluster.dial import Dialed, dial
from firelane.cluster.model_text import text_identity
from firelane.cluster.remote_fleet import RemoteFleet
from firelane.errors import ModelError
from firelane.link.greeting import Hello, hello
from firelane.link.tls import MutualTls, TlsFiles, no_context
from firelane.wire.frames import PROTOCOL_VERSION

if TYPE_CHECKING:
    from firelane.cluster.addresses import Place
    from firelane.cluster.config import RemoteConfig
    from firelane.engine_config import EngineConfig
    from firelane.gateway.engines.link.link import EngineLink


def hello_of(engine: EngineConfig) -> Hello:
    """Hello of a gateway that has this model, which its hosts want to hear. Raises ModelError."""
    try:
        model = text_identity(engine.model_dir, engine.tokenizer_dir or engine.model_dir)
    except OSError as error:
        raise ModelError(f"{engine.model_dir}: {error.strerror or error}") from error
    return hello(PROTOCOL_VERSION, firelane.__version__, model)


def remote_fleet(config: RemoteConfig, engine: EngineConfig) -> RemoteFleet[EngineLink]:
    """Raises UsageError for TLS files that cannot be used, and ModelError."""
    context = no_context if config.tls is None else MutualTls(config.tls, TlsFiles.client_context).context
    own = hello_of(engine)

    async def dial_place(place: Place) -> Dialed:
        return await dial(place, own, context())

    return RemoteFleet(NameDiscovery(list(config.addresses)), dial_place)
