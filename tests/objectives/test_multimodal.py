"""The loss of MMGCN at scores of ±10,000: finite everywhere, and the published form fails it."""

from __future__ import annotations

import json

import pytest
import torch

from experiments import loss_precision
from experiments.loss_precision import published_loss, stable_loss
from hasten.objectives.multimodal import bpr_loss

MARGINS = torch.tensor([1e4, -1e4, 120.0, -120.0, 20.0, -20.0, 3.0, -3.0, 0.0]).double()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_finite_at_ten_thousand_and_the_gradient_that_of_float64(kind):
    user = torch.full((9, 1), 100.0, dtype=kind, requires_grad=True)
    positive = (MARGINS[:, None] / 200).to(kind).requires_grad_()
    negative = (-MARGINS[:, None] / 200).to(kind).requires_grad_()
    loss = bpr_loss(user, positive, negative)
    loss.sum().backward()
    exact = -100 * torch.sigmoid(-MARGINS)[:, None]
    torch.testing.assert_close(positive.grad.double(), exact, rtol=1e-4, atol=1e-4)
    assert torch.isfinite(user.grad).all()
    assert torch.isfinite(loss).all()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("epsilon", [0.0, 1e-8])
def test_the_published_form_fails_the_same_test(kind, epsilon):
    user = torch.ones(1, 1, requires_grad=True)
    loss = published_loss(user, torch.tensor([[-5e3]]), torch.tensor([[5e3]]), kind=kind,
                          epsilon=epsilon)  # fmt: skip
    loss.backward()
    # + 1e-8 is lost in float16; elsewhere it makes a finite loss that no longer teaches
    finite = bool(torch.isfinite(loss)) and bool(torch.isfinite(user.grad).all())
    taught = finite and abs(float(user.grad[0, 0]) - 1e4) < 1.0
    assert not taught
    if kind == torch.float16 or not epsilon:
        assert not finite
    mine = torch.ones(1, 1, requires_grad=True)
    stable_loss(mine, torch.tensor([[-5e3]]), torch.tensor([[5e3]])).backward()
    assert float(mine.grad[0, 0]) == pytest.approx(1e4)


def test_the_published_form_is_the_same_number_in_float64():
    generator = torch.Generator().manual_seed(0)
    u, i, j = (torch.randn(50, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    published = published_loss(u, i, j, kind=torch.float64)
    torch.testing.assert_close(stable_loss(u, i, j), published, rtol=1e-12, atol=0)


def test_half_precision_underflows_where_it_is_said_to():
    """sigmoid is 0 in float16 from about -17.5, in float32 from about -104."""
    x = torch.arange(-200.0, 0.0, 0.1)
    for kind, edge in ((torch.float16, -17.3), (torch.float32, -96.0)):
        lost = x[(torch.sigmoid(x.to(kind)) == 0)]
        assert float(lost.max()) == pytest.approx(edge, abs=9 if kind == torch.float32 else 0.7)


def test_the_experiment_as_it_is_kept():
    """Its record says what the documentation says: published ends, ours follows fp32."""
    record = json.loads(loss_precision.RESULT.read_text())["variants"]
    assert record["published, fp16"]["first_step_not_finite"] is not None
    assert record["published + 1e-8, fp16"]["first_step_not_finite"] is not None
    for name, found in record.items():
        if name.startswith("hasten"):
            assert found["first_step_not_finite"] is None
            assert all(loss is not None for loss in found["losses"])
    assert loss_precision.PLOT.is_file()


def test_the_experiment_runs(tmp_path):
    dataset = loss_precision.small_gallery()
    for name in ("hasten, fp32", "published, fp16"):
        found = loss_precision.train(dataset, *loss_precision.VARIANTS[name], steps=2)
        assert len(found["losses"]) == 2
        assert found["bytes_between_layers"] > 0
