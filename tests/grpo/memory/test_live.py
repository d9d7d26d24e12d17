"""Bytes that are alive, and the most there were."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grpo.memory.live import LiveMemory


def test_storages_count_from_their_first_use_to_their_end():
    with FakeTensorMode(), LiveMemory() as live:
        a = torch.empty(1000)
        b = a + 1
        assert (live.now, live.peak) == (8000, 8000)
        del b
        assert (live.now, live.peak) == (4000, 8000)
        live.restart()
        assert live.peak == 4000
        del a
        assert live.now == 0


def test_views_share_their_storage_and_keep_it_alive():
    with FakeTensorMode(), LiveMemory() as live:
        a = torch.empty(10, 100)
        row = a[3].view(4, 25).t()
        del a
        assert live.now == live.peak == 4000
        del row
        assert live.now == 0


def test_what_autograd_saves_stays_until_backward_is_done():
    with FakeTensorMode(), LiveMemory() as live:
        x = torch.empty(1000, requires_grad=True)
        loss = x.exp().sum()
        assert live.now == 4000 + 4000 + 4  # x, its exponentials, the sum
        loss.backward()
        assert live.now == 4000 + 4000 + 4  # x, its gradient, the sum
