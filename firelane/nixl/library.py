"""NIXL's own agent, as this package uses it, and nothing else of NIXL (nixl_cu12/_api.py of 1.5.1)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import MachineError
from firelane.nixl.installed import PACKAGES

Ranges = Sequence[tuple[int, int]]
"""Ranges of memory: addresses and bytes."""
Addresses = NDArray[np.uint64]
BACKEND = "UCX"
PARAMETERS = {"ucx_error_handling_mode": "peer"}
"""Without it nobody hears of a peer that is gone."""
MEMORY, DONE, RUNNING = "DRAM", "DONE", "PROC"


class Library:
    """One agent of NIXL. Every call may raise MachineError; progress is made in them alone."""

    def __init__(self, name: str) -> None:
        """name: never used before by anyone."""
        package = next((one for one in PACKAGES if find_spec(one) is not None), None)
        if package is None:
            raise MachineError("NIXL is not installed: pip install 'firelane[rdma]'")
        api: Any = importlib.import_module(f"{package}._api")
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[])
        self._agent: Any = api.nixl_agent(name, config)
        self._call("create_backend", BACKEND, dict(PARAMETERS))

    @property
    def metadata(self) -> bytes:
        return self._call("get_agent_metadata")

    def register(self, ranges: Ranges) -> Any:
        """For `deregister`."""
        return self._call("register_memory", [(address, nbytes, 0, "") for address, nbytes in ranges], MEMORY)

    def deregister(self, registered: Any) -> None:
        self._call("deregister_memory", registered)

    def attach(self, metadata: bytes) -> str:
        """The name of the peer's agent."""
        name: bytes | str = self._call("add_remote_agent", metadata)
        return name.decode() if isinstance(name, bytes) else name

    def begin(self, name: str, theirs: Addresses, ours: Addresses, nbytes: int) -> Any:
        """A transfer of items of so many bytes that has begun, for `is_done` and `release`."""
        rows = [_rows(addresses, nbytes) for addresses in (ours, theirs)]
        lists = [self._call("get_xfer_descs", one, MEMORY) for one in rows]
        transfer = self._call("initialize_xfer", "READ", *lists, name)
        self._check(self._call("transfer", transfer))
        return transfer

    def is_done(self, transfer: Any) -> bool:
        return self._check(self._call("check_xfer_state", transfer))

    def release(self, transfer: Any) -> None:
        self._call("release_xfer_handle", transfer)

    def progress(self) -> None:
        """Let others read, where their network needs help from here."""
        self._call("get_new_notifs")

    def _check(self, state: str) -> bool:
        if state not in (DONE, RUNNING):
            raise MachineError("the transfer failed")
        return state == DONE

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._agent, name)(*arguments)
        except Exception as error:  # NIXL's have no common base
            raise MachineError(f"NIXL: {name}: {type(error).__name__} {error}".strip()) from error


def _rows(addresses: Addresses, nbytes: int) -> Addresses:
    rows = np.zeros((len(addresses), 3), np.uint64)
    rows[:, 0], rows[:, 1] = addresses, nbytes
    return rows
