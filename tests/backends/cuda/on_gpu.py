"""The tests of kernels on a GPU (TRITON_INTERPRET=0): their tensors stay on the host, as for the interpreter.

Launch.run() copies what a launch was given to the GPU, launches, and copies it back. Views stay views of one
memory. So the same test says whether the device computes what the interpreter does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch

Storages = dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]]
"""By the address on the host: the storage there and the one on the device."""


def install() -> None:
    """Let every launch of this process go to the GPU and back."""
    run = Launch.run

    def run_there(self: Launch) -> None:
        storages: Storages = {}
        run(replace(self, arguments=moved(self.arguments, torch.device("cuda"), storages)))
        torch.cuda.synchronize()
        bring_back(storages)

    Launch.run = run_there  # type: ignore[method-assign]


def moved(arguments: Mapping[str, Any], device: torch.device, storages: Storages) -> dict[str, Any]:
    """The arguments with each tensor of the host on `device`; `storages` gains what was copied."""
    return {name: _moved(value, device, storages) for name, value in arguments.items()}


def bring_back(storages: Storages) -> None:
    for host, there in storages.values():
        host.copy_(there)


def _moved(value: Any, device: torch.device, storages: Storages) -> Any:
    if isinstance(value, tuple):  # an operand: it may hold others
        return type(value)(*(_moved(field, device, storages) for field in value))
    return _move(value, device, storages) if isinstance(value, Tensor) and not value.is_cuda else value


def _move(tensor: Tensor, device: torch.device, storages: Storages) -> Tensor:
    host = tensor.untyped_storage()
    if host.data_ptr() not in storages:
        there = torch.UntypedStorage(host.nbytes(), device=device)
        there.copy_(host)
        storages[host.data_ptr()] = (host, there)
    there = storages[host.data_ptr()][1]
    view = torch.empty(0, dtype=tensor.dtype, device=device)
    return view.set_(there, tensor.storage_offset(), tensor.shape, tensor.stride())
