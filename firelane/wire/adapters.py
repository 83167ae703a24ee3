"""Frames about low-rank adapters that come and go while an engine serves.

Gateway to engine: LoadAdapter and UnloadAdapter. Engine to gateway: AdaptersServed, the answer to both.
"""

from __future__ import annotations

import msgspec


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Serve the adapter of this directory by this name, in place of what has the name now. The directory lies
    below the engine's cache. Answered with AdaptersServed. id: of the question, from its gateway."""

    id: int
    name: str
    directory: str


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="unload_adapter"):
    """Take no new requests for the adapter of this name; those that the engine has end with it. Answered with
    AdaptersServed, also where there is none."""

    id: int
    name: str


AdapterChange = LoadAdapter | UnloadAdapter


class AdaptersServed(msgspec.Struct, frozen=True, array_like=True, tag="adapters"):
    """The adapters that the engine serves from now on: digests of what they are, by name, as in Ready. All
    gateways hear of it. id: of the question that it answers. error: the reason why nothing was changed; ""
    where it was."""

    adapters: dict[str, str]
    id: int = 0
    error: str = ""
