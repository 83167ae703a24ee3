"""Configuration of the publisher of KV cache events. Fields and defaults are vLLM's (KVEventsConfig)."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Literal

import msgspec

from firelane.errors import UsageError

OPTION = "--kv-events-config"
TCP = re.compile(r"tcp://(?P<host>[^/]+):(?P<port>\d{1,5})")
OTHERS = re.compile(r"(ipc|inproc)://.+")


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """endpoint: of a PUB socket; with a host, in place of *, it connects instead of binding.
    replay_endpoint: of a ROUTER socket that answers with batches from a number on; None: there is none.
    buffer_steps: batches that it keeps. hwm: batches that may wait for one subscriber, who loses those beyond
    it; max_queue_size: that may wait for the publisher. topic: first frame of each message. Of several
    engines each has sockets of its own, whose ports are the engine's number higher."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{OPTION}: {name} is {getattr(self, name)}: it must be at least 1")
        for name in ("endpoint", "replay_endpoint"):
            endpoint = getattr(self, name)
            if endpoint is not None:
                _check(name, endpoint)

    @property
    def is_enabled(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    @property
    def binds(self) -> bool:
        """Whether subscribers come to the PUB socket, as vLLM decides it."""
        return "*" in self.endpoint or "::" in self.endpoint or not self.endpoint.startswith("tcp:")

    @staticmethod
    def parse(text: str) -> KvEventsConfig | None:
        """Configuration of the option's JSON; None where it asks for no events. Raises UsageError."""
        try:
            config = msgspec.json.decode(text, type=KvEventsConfig)
        except msgspec.DecodeError as error:
            fields = ", ".join(KvEventsConfig.__struct_fields__)
            raise UsageError(f"{OPTION}: {error}; give a JSON object with some of {fields}") from error
        if not config.is_enabled:
            return None
        if find_spec("zmq") is None:
            raise UsageError(f"{OPTION} needs pyzmq: pip install 'firelane[kv-events]'")
        return config


def offset_port(endpoint: str, number: int) -> str:
    """The endpoint of the engine of this number."""
    if not number:
        return endpoint
    if (tcp := TCP.fullmatch(endpoint)) is not None:
        return f"tcp://{tcp['host']}:{int(tcp['port']) + number}"
    return f"{endpoint}_dp{number}"


def _check(name: str, endpoint: str) -> None:
    tcp = TCP.fullmatch(endpoint)
    is_right = OTHERS.fullmatch(endpoint) if tcp is None else 0 < int(tcp["port"]) < 1 << 16
    if not is_right:
        raise UsageError(f"{OPTION}: {name} is {endpoint[:80]!r}: give tcp://*:PORT or tcp://HOST:PORT")
