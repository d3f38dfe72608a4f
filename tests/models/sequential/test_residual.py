"""Hyper-connections in a model: the plain residual in the beginning, then streams of their own."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential.hyper_connections import Streams, laid_out
from hasten.models.sequential.residual import (
    HyperConnection,
    HyperResiduals,
    PlainResiduals,
    connect,
)
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.models.sequential.sinkhorn import sinkhorn_reference
from hasten.objectives.next_item import NextItemPhase
from hasten.scoring import RecommenderQueries

ITEMS, USERS = 40, 30
VARIANTS = [
    (maps, projection)
    for maps in ("static", "dynamic")
    for projection in ("sinkhorn", "permutation", "identity")
]
each = pytest.mark.parametrize(("maps", "projection"), VARIANTS)


def _histories():
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, 15, USERS)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Histories(offsets, generator.integers(0, ITEMS, lengths.sum()))


def _model(**options):
    torch.manual_seed(1)
    settings = {"width": 8, "max_length": 10, "dropout": 0.3, **options}
    return SASRec(SASRecOptions(**settings), Sizes(users=USERS, items=ITEMS)).train()


def _phase(model):
    return NextItemPhase(
        model, _histories(), item_count=ITEMS, batch_size=USERS, max_length=10, negative_count=0
    )


def _loss(model, phase):
    torch.manual_seed(2)
    batch = phase.plan(0, 0, 0)
    (term,) = phase.terms((), batch, batch.ids)
    return term.numerator / term.denominator


def _train(model, steps, lr=0.02):
    phase, optimiser = _phase(model), torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        _loss(model, phase).backward()
        optimiser.step()


def _perturb(model, size=0.5):
    """Away from the beginning, so that every map matters."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".around_" in name:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(noise, alpha=20 * size if name.endswith("gain") else size)
    return model


@each
@pytest.mark.parametrize("streams", [2, 3, 4])
@pytest.mark.parametrize("block", ["plain", "ligr"])
def test_equal_to_the_plain_residual_at_the_beginning(maps, projection, streams, block):
    """Outputs, loss and the gradients of everything that both have, with the same dropout."""
    plain = _model(block=block)
    model = _model(block=block, residual="mhc", maps=maps, projection=projection, streams=streams)
    ours, expected = _loss(model, _phase(model)), _loss(plain, _phase(plain))
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=0)
    ours.backward()
    expected.backward()
    found = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(found[name], parameter)
        error = (found[name].grad - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-3, name
    queries = RecommenderQueries(np.arange(USERS), _histories())
    with torch.no_grad():
        torch.testing.assert_close(
            model.eval().query_vectors(queries),
            plain.eval().query_vectors(queries),
            rtol=1e-3,
            atol=1e-3,
        )


@each
def test_streams_diverge_during_training(maps, projection):
    """Each is of its own from the first sublayer on, and nothing keeps them where they began."""
    model = _model(residual="mhc", maps=maps, projection=projection)

    def seen():
        """Streams into the last sublayer, without their mean, and what it reads of them."""
        found = []

        def look(module, inputs, _output):
            streams = laid_out(inputs[0])
            found.append((streams - streams.mean(1, keepdim=True), module.maps(inputs[0])[0]))

        handle = model.blocks[1].around_feedforward.register_forward_hook(look)
        _loss(model, _phase(model))
        handle.remove()
        return found[0]

    before, first = seen()
    pairs = torch.pdist(before.transpose(0, 1).flatten(1))
    assert pairs.min() > 0.1 * before.norm() / 4
    _train(model, 30)
    after, read = seen()
    assert torch.pdist(after.transpose(0, 1).flatten(1)).min() > 0.1 * after.norm() / 4
    # shares other than those of the beginning: not the same differences, only larger
    turned = torch.nn.functional.cosine_similarity(before.flatten(1), after.flatten(1))
    assert turned.mean() < 0.9
    assert (read - first).mean(1).abs().min() > 0.005


@each
def test_every_parameter_is_trained(maps, projection):
    """No map without an effect: each has a gradient once the streams differ."""
    model = _model(residual="mhc", maps=maps, projection=projection)
    _train(model, 3)
    _loss(model, _phase(model)).backward()
    for name, parameter in model.named_parameters():
        if ".around_" in name:
            assert (parameter.grad.abs() > 1e-12).any(), name


def _reference(connection, flowing, branch):
    """One sublayer from the equations: flowing [T, n, D]."""
    tokens, n, width = flowing.shape
    sizes = connection.sizes
    bias = connection.begin + connection.bias
    if connection.weight is not None:
        flat = flowing.reshape(tokens, n * width)
        normed = flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
        gain = torch.cat(
            [
                (0.01 + one).expand(size)
                for one, size in zip(connection.gain, [s for s in sizes if s], strict=True)
            ]
        )
        logits = bias + gain * (normed @ connection.weight.transpose(1, 2).reshape(n * width, -1))
    else:
        logits = bias.expand(tokens, -1)
    pre, post, rest = logits.split(sizes, 1)
    seen = flowing[:, 0] if not sizes[0] else (torch.sigmoid(pre)[:, :, None] * flowing).sum(1)
    mixing = torch.eye(n, dtype=flowing.dtype).expand(tokens, n, n)
    if connection.projection == "sinkhorn":
        matrix = torch.zeros(tokens, n, n, dtype=flowing.dtype)
        matrix[:, ~torch.eye(n, dtype=torch.bool)] = rest
        mixing = sinkhorn_reference(matrix.permute(1, 2, 0)).permute(2, 0, 1)
        if n == 2:  # the limit, where the reference stops after 20 iterations
            mixing = matrix.exp()
            for _ in range(2000):
                mixing = mixing / mixing.sum(1, keepdim=True)
                mixing = mixing / mixing.sum(2, keepdim=True)
    elif connection.projection == "permutation":
        weights = torch.softmax(torch.cat([torch.zeros(tokens, 1), rest], 1), 1)
        mixing = torch.zeros(tokens, n, n, dtype=flowing.dtype)
        for number, order in enumerate(permutations(range(n))):
            for row, column in enumerate(order):
                mixing[:, row, column] = mixing[:, row, column] + weights[:, number]
    return mixing @ flowing + 2 * torch.sigmoid(post)[:, :, None] * branch(seen)[:, None]


@each
@pytest.mark.parametrize("streams", [2, 3])
def test_a_network_equals_its_equations(maps, projection, streams):
    """Four sublayers in float64, forward and backward, far from the beginning."""
    torch.manual_seed(0)
    tokens, width = 6, 5
    residuals = HyperResiduals(streams, width, 4, projection, dynamic=maps == "dynamic")
    connections = nn.ModuleList(residuals.connection(k) for k in range(4)).double()
    norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4)).double()
    branches = nn.ModuleList(nn.Linear(width, width) for _ in range(4)).double()
    for parameter in connections.parameters():
        nn.init.normal_(parameter)
    for connection in connections:  # not near the identity
        connection.begin[sum(connection.sizes[:2]) :] = 0.0
    x = torch.randn(tokens, width, dtype=torch.float64, requires_grad=True)

    streams_now = residuals.expand(x)
    flowing = x[:, None].expand(-1, streams, -1)
    for connection, norm, branch in zip(connections, norms, branches, strict=True):
        streams_now = connect(connection, streams_now, branch, norm, pre=True)
        flowing = _reference(connection, flowing, lambda y, n=norm, b=branch: b(n(y)))
    ours, expected = residuals.reduce(streams_now), flowing.mean(1)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-8)
    weight = torch.randn_like(ours)
    inputs = [x, *connections.parameters(), *branches.parameters()]
    found = torch.autograd.grad((ours * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=str(number))


@each
def test_mixing_is_doubly_stochastic_at_extreme_parameters(maps, projection):
    for size in (50.0, 1e3):
        model = _perturb(_model(residual="mhc", maps=maps, projection=projection), size)
        mixed = []

        def look(module, inputs, _output, mixed=mixed):
            mixing = module.maps(inputs[0])[2]
            if mixing is not None:
                mixed.append(mixing)

        for block in model.blocks:
            block.around_attention.register_forward_hook(look)
            block.around_feedforward.register_forward_hook(look)
        assert torch.isfinite(_loss(model, _phase(model)))
        assert len(mixed) == (0 if projection == "identity" else 2)
        for mixing in mixed:
            assert (mixing >= 0).all()
            torch.testing.assert_close(mixing.sum(0), torch.ones_like(mixing[0]), atol=1e-4, rtol=0)
            torch.testing.assert_close(mixing.sum(1), torch.ones_like(mixing[0]), atol=1e-4, rtol=0)


@each
def test_autocast_leaves_the_maps_and_streams_in_float32(maps, projection):
    model = _perturb(_model(residual="mhc", maps=maps, projection=projection)).eval()
    connection = model.blocks[1].around_attention
    streams = Streams(torch.rand(4, 2, 9), tuple(torch.randn(9, 8) for _ in range(3)))
    if maps == "static":
        streams = Streams(streams.mix[:, :, :1], streams.parts)
    full = connection.maps(streams)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = connection.maps(streams)
        written = connection(streams, lambda x: x.bfloat16())
    for a, b in zip(full, low, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert b.dtype == torch.float32
            assert torch.equal(a, b)
    assert {tensor.dtype for tensor in (written.mix, *written.parts)} == {torch.float32}


@each
def test_recompute_changes_nothing_and_keeps_less(maps, projection):
    def held(recompute):
        model = _perturb(_model(residual="mhc", maps=maps, projection=projection, blocks=3))
        model.recompute = recompute
        seen: dict[int, int] = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = _loss(model, _phase(model))
        loss.backward()
        return sum(seen.values()), [p.grad for p in model.parameters()]

    (kept, gradients), (recomputed, again) = held(False), held(True)
    for a, b in zip(gradients, again, strict=True):
        assert torch.equal(a, b)
    assert recomputed < 0.6 * kept


@pytest.mark.slow
@each
def test_compiles_without_a_break_to_the_same_numbers(maps, projection):
    torch.manual_seed(0)
    residuals = HyperResiduals(4, 8, 4, projection, dynamic=maps == "dynamic")
    connections = nn.ModuleList(residuals.connection(k) for k in range(4))
    norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))
    for parameter in connections.parameters():
        nn.init.normal_(parameter)

    def network(x):
        flowing = residuals.expand(x)
        for connection, norm in zip(connections, norms, strict=True):
            flowing = connect(connection, flowing, torch.tanh, norm, pre=True)
        return residuals.reduce(flowing)

    x = torch.randn(9, 8, requires_grad=True)
    weight, inputs = torch.randn(9, 8), [x, *connections.parameters()]
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=True)
    ours, expected = compiled(x), network(x)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad((ours * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("maps", ["static", "dynamic"])
def test_weight_decay_draws_towards_the_plain_residual(maps):
    model = _perturb(_model(residual="mhc", maps=maps))
    connections = [p for name, p in model.named_parameters() if ".around_" in name]
    optimiser = torch.optim.AdamW(connections, lr=0.5, weight_decay=0.5)
    for _ in range(60):
        for parameter in connections:
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
    plain = _model().eval()
    queries = RecommenderQueries(np.arange(USERS), _histories())
    with torch.no_grad():
        torch.testing.assert_close(
            model.eval().query_vectors(queries), plain.query_vectors(queries), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"maps": "static", "projection": "identity"}, 4 + 3 * 8),
        ({"maps": "static", "projection": "sinkhorn"}, 4 + 3 * 8 + 2 * 12),
        ({"maps": "static", "projection": "permutation"}, 4 + 3 * 8 + 2 * 23),
        ({"maps": "dynamic", "projection": "sinkhorn"}, (4 + 3 * 8 + 2 * 12) * (1 + 4 * 8) + 9),
    ],
)
def test_number_of_parameters(options, count):
    """As the page on hyper-connections counts them; D 8, n 4, 2 blocks."""
    model, plain = _model(residual="mhc", **options), _model()
    added = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert added == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": 4}, "streams belongs to residual=mhc"),
        ({"projection": "identity"}, "projection belongs to residual=mhc"),
        ({"maps": "static"}, "maps belongs to residual=mhc"),
        ({"residual": "mhc", "norm": "post"}, "needs norm=pre"),
        ({"block": "ligr", "norm": "post"}, "block=ligr needs norm=pre"),
        ({"residual": "mhc", "blocks": 1, "projection": "sinkhorn"}, "no effect with one block"),
        ({"residual": "mhc", "streams": 5, "projection": "permutation"}, "at most 4 streams"),
    ],
)
def test_options_without_effect_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SASRecOptions(**options)


def test_options_of_mhc_are_filled_in_and_read_back():
    options = SASRecOptions(residual="mhc")
    assert (options.streams, options.projection, options.maps) == (4, "sinkhorn", "dynamic")
    assert SASRecOptions(**options.model_dump()) == options
    single = SASRecOptions(residual="mhc", blocks=1)
    assert single.projection == "identity"
    assert SASRecOptions(**single.model_dump()) == single
    plain = SASRecOptions()
    assert SASRecOptions(**plain.model_dump()) == plain


def test_the_plain_residual_has_nothing_of_its_own():
    connection = PlainResiduals().connection(0)
    assert not list(connection.parameters())
    x = torch.randn(3, 4)
    norm = nn.LayerNorm(4)
    assert torch.equal(connect(connection, x, torch.tanh, norm, pre=True), x + norm(x).tanh())
    assert torch.equal(connect(connection, x, torch.tanh, norm, pre=False), norm(x + x.tanh()))


@pytest.mark.parametrize("streams", [2, 3, 4, 7])
def test_shares_in_the_beginning(streams):
    """On average those of the plain residual; what is written and what is read is orthogonal."""
    residuals = HyperResiduals(streams, 8, 6, "identity", dynamic=False)
    connections = [residuals.connection(k) for k in range(6)]
    assert all(isinstance(connection, HyperConnection) for connection in connections)
    flowing = residuals.expand(torch.randn(5, 8))
    written = torch.stack([connection.maps(flowing)[1][:, 0] for connection in connections])
    assert connections[0].maps(flowing)[0] is None
    read = torch.stack([connection.maps(flowing)[0][:, 0] for connection in connections[1:]])
    torch.testing.assert_close(read.sum(1), torch.ones(5))
    torch.testing.assert_close(written.mean(1), torch.ones(6))
    torch.testing.assert_close(read @ written.T, torch.ones(5, 6))
    assert (torch.pdist(written.T) > 0.1).all()
    assert (read.std(1) > 0.01).all() == (streams > 2)
