"""Running moments: torch's own for one group; the same for any order and sharing of several."""

from __future__ import annotations

import torch
from torch import nn

from hasten.ops.dense.group_moments import GroupMoments

TRUE = torch.tensor(True)


def add(moments: GroupMoments, x: torch.Tensor) -> None:
    moments.add(x.mean(0), x.var(0, correction=0), len(x))


def test_follows_as_torch_does():
    theirs, ours = nn.BatchNorm1d(3), GroupMoments(3)
    for _ in range(4):
        x = torch.randn(16, 3) * 2 + 1
        theirs(x)
        ours.start()
        add(ours, x)
        ours.update_running(TRUE)
    torch.testing.assert_close(ours.mean, theirs.running_mean)
    torch.testing.assert_close(ours.variance, theirs.running_var)


def test_order_and_processes_change_nothing():
    groups = [torch.randn(size, 3) for size in (8, 8, 5)]
    one, other, second = (GroupMoments(3) for _ in range(3))
    for group in groups:
        add(one, group)
    for moments, mine in ((other, groups[2:]), (second, groups[1::-1])):
        for group in mine:
            add(moments, group)
    other.gathered += second.gathered  # what the sum over processes does
    for moments in (one, other):
        moments.update_running(TRUE)
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.variance, other.variance)


def test_a_bad_step_leaves_no_trace():
    moments = GroupMoments(2)
    add(moments, torch.randn(4, 2))
    moments.update_running(torch.tensor(False))
    moments.start()
    add(moments, torch.full((4, 2), torch.inf))
    moments.update_running(TRUE)
    moments.start()
    moments.update_running(TRUE)  # nothing was gathered
    assert torch.equal(moments.mean, torch.zeros(2))
    assert torch.equal(moments.variance, torch.ones(2))
    assert "gathered" not in moments.state_dict()
