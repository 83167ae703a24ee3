"""Device memory over a standby, on CPU tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from firelane.backends.cuda.device import standby
from firelane.backends.cuda.device.standby import DeviceStandby, tensors_of
from tests.backends.cuda.host_device import HostDevice


@dataclass(frozen=True)
class Weights:
    matrices: dict[str, tuple[torch.Tensor, ...]]
    count: int


def test_weights_come_back_and_scratch_is_empty_memory(monkeypatch) -> None:
    monkeypatch.setattr(standby, "PIECE_BYTES", 7)
    whole = torch.arange(20, dtype=torch.int32)
    view, other, scratch = whole[3:9], torch.arange(5, dtype=torch.float32), torch.zeros(100)
    weights = Weights({"a": (view, whole), "b": (other, torch.empty(0))}, 2)
    device = DeviceStandby(HostDevice(), weights, [scratch, scratch[4:]])
    for _ in range(2):
        assert device.leave() == 80 + 20 + 400
        assert device.leave() == 0
        assert [t.untyped_storage().nbytes() for t in (view, whole, other, scratch)] == [0] * 4
        device.come_back()
        device.come_back()
        assert view.tolist() == list(range(3, 9))
        assert whole.tolist() == list(range(20))
        assert other.tolist() == list(range(5))
        assert scratch.untyped_storage().nbytes() == 400


def test_all_tensors_are_found() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    assert [t.numel() for t in tensors_of(Weights({"a": (one,), "b": (two, one)}, 7))] == [1, 2, 1]
