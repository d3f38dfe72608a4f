"""bf16 products in fp32 of rounded numbers, beside those that torch emulates."""

from __future__ import annotations

import subprocess
import sys

from bench.machine import ROOT
from experiments.definitions import EXPERIMENTS, select
from experiments.queue import HASTEN, ROUNDED, Queue
from hasten.distributed.device import cpu_computes_bf16

_PROGRAM = """
import torch
from experiments.rounded import round_products

def products(kind):
    torch.manual_seed(0)
    a, b = (torch.randn(3, 7, 7).to(kind).requires_grad_() for _ in range(2))
    found = [a[0] @ b[0], torch.bmm(a, b), torch.addmm(a[1], a[0], b[0], beta=0.5, alpha=2),
             torch.baddbmm(a, b, a), torch.nn.functional.linear(a, b[0], b[1, 0])]
    total = sum((f.float() * f.float().detach().cos()).sum() for f in found)
    return [f.detach() for f in found] + list(torch.autograd.grad(total, [a, b]))

before = {kind: products(kind) for kind in (torch.float32, torch.bfloat16, torch.float64)}
round_products()
for kind, expected in before.items():
    for ours, theirs in zip(products(kind), expected, strict=True):
        assert ours.dtype == theirs.dtype == kind
        if kind == torch.bfloat16:
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
        else:
            assert torch.equal(ours, theirs)
# summed in fp32, rounded once
row = torch.full((1, 512), 1 / 256 + 1, dtype=torch.bfloat16)
assert float(row @ row.T) == float((row.float() @ row.float().T).bfloat16())
print("right")
"""


def test_products_are_those_of_rounded_numbers():
    """In a process of its own: what is replaced stays so."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "right", done.stderr


def test_the_queue_rounds_where_bf16_is_asked_for_in_vain(monkeypatch):
    monkeypatch.setattr("experiments.queue.plain_file", lambda name: name)  # without the data
    (bf16,) = select("conve-umls-bf16-seed0", EXPERIMENTS)
    (fp32,) = select("conve-umls-seed0", EXPERIMENTS)
    queue = Queue()
    expected = HASTEN if cpu_computes_bf16() else ROUNDED
    assert tuple(queue.arguments(bf16)[:3]) == expected
    assert tuple(queue.arguments(fp32)[:3]) == HASTEN
    assert tuple(Queue(command=("x", "y", "z")).arguments(bf16)[:3]) == ("x", "y", "z")
