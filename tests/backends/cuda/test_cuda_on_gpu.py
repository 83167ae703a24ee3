"""A launch's tensors are carried to a GPU and back; the host's memory stands for the device's here."""

from __future__ import annotations

import torch

from tests.backends.cuda.on_gpu import Storages, bring_back, moved

HOST = torch.device("cpu")


def test_tensors_are_copied_and_brought_back() -> None:
    x, storages = torch.arange(4.0), Storages()
    there = moved({"x": x, "n": 4, "none": None}, HOST, storages)
    assert (there["n"], there["none"]) == (4, None)
    there["x"] += 1
    assert x.tolist() == [0, 1, 2, 3]
    bring_back(storages)
    assert x.tolist() == [1, 2, 3, 4]


def test_views_stay_views_of_one_memory() -> None:
    whole, storages = torch.zeros(4, 6, dtype=torch.bfloat16), Storages()
    there = moved({"left": whole[:, :2], "right": whole[1:, 3:], "whole": whole}, HOST, storages)
    assert len(storages) == 1
    there["left"].fill_(1)
    there["right"].fill_(2)
    expected = torch.tensor([[1, 1, 0, 0, 0, 0]] + [[1, 1, 0, 2, 2, 2]] * 3).bfloat16()
    assert torch.equal(there["whole"], expected)
    assert not whole.any()
    bring_back(storages)
    assert torch.equal(whole, expected)


def test_what_is_empty_is_carried_as_well() -> None:
    storages: Storages = {}
    assert moved({"x": torch.empty(0, 3)}, HOST, storages)["x"].shape == (0, 3)
    bring_back(storages)
