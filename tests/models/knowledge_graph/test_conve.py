"""ConvE, DistMult and ComplEx against their equations in float64, in training and evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F

from hasten.config_loading.build import build_config
from hasten.data.graph.load import load_graph
from hasten.data.tables import KnowledgeGraph
from hasten.errors import ConfigurationError
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.complex import ComplEx, ComplExOptions
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.conve_options import ConvEOptions, image_shape
from hasten.models.knowledge_graph.distmult import DistMult, DistMultOptions
from hasten.objectives.completion import CompletionPhase
from hasten.objectives.triple_examples import KvsAllExamples, TripleExamples
from hasten.scoring import TripleQueries
from tests.contract.cases import graph as ring

SIZES = Sizes(entities=11, relations=2)
PLAIN = {"input_dropout": 0.0, "feature_dropout": 0.0, "hidden_dropout": 0.0}


def make(**options) -> ConvE:
    torch.manual_seed(0)
    settings = {"width": 20, "channels": 3, "group": 64, **PLAIN, **options}
    model = ConvE(ConvEOptions(**settings), SIZES).double()
    with torch.no_grad():  # not the values that hide an error
        for parameter in (model.feature_gain, model.hidden_gain, model.bias):
            parameter.normal_(1.0, 0.3)
        for parameter in (model.feature_shift, model.hidden_shift):
            parameter.normal_(0.0, 0.3)
    return model


def by_the_paper(model: ConvE, entity: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
    """Scores of all entities from torch's own layers, in the model's mode."""
    training = model.training
    shape = (-1, 1, model.height, model.columns)
    images = [
        model.entities.weight[entity].view(shape),
        model.relations.weight[relation].view(shape),
    ]

    def norm(x, moments, gain=None, shift=None):
        return F.batch_norm(
            x, moments.mean.clone(), moments.variance.clone(), gain, shift, training=training
        )

    x = norm(torch.cat(images, dim=2), model.image_moments)
    kernel = model.options.kernel
    x = F.conv2d(x, model.filters.view(-1, 1, kernel, kernel))
    x = torch.relu(norm(x, model.feature_moments, model.feature_gain, model.feature_shift))
    x = F.linear(x.flatten(1), model.hidden.weight)
    x = torch.relu(norm(x, model.hidden_moments, model.hidden_gain, model.hidden_shift))
    return x @ model.entities.weight.T + model.bias


@pytest.mark.parametrize("options", [{}, {"kernel": 2, "width": 18}])
def test_conve_is_what_the_paper_says(options):
    model = make(**options)
    entity, relation = torch.tensor([0, 3, 3, 9]), torch.tensor([0, 1, 3, 2])
    for training in (True, False):
        model.train(training)
        expected = by_the_paper(model, entity, relation)
        vectors = model.vectors(model.entities.rows(entity), relation)
        found = vectors @ model.entities.weight.T + model.bias
        torch.testing.assert_close(found, expected)
        loss = torch.randn_like(expected)
        gradients = torch.autograd.grad((found * loss).sum(), list(model.parameters()))
        wanted = torch.autograd.grad((expected * loss).sum(), list(model.parameters()))
        for gradient, reference in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(gradient, reference, rtol=1e-6, atol=1e-9)
        if training:
            assert float(model.feature_moments.gathered[-1]) == 4 * model.places
            for moments in model.moments:
                moments.update_running(torch.tensor(True))
    queries = TripleQueries(entity.numpy(), relation.numpy())
    torch.testing.assert_close(model.scorer(queries).block(2, 7), found[:, 2:7])


def test_groups_are_normalised_by_themselves():
    model = make(group=3).train()
    entity, relation = torch.arange(7), torch.arange(7) % 4
    head = model.entities.rows(entity)
    whole = model.vectors(head, relation)  # 3 and 4: the last one alone joins
    parts = [model.vectors(head[a:b], relation[a:b]) for a, b in ((0, 3), (3, 7))]
    torch.testing.assert_close(whole, torch.cat(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("recompute", [False, True])
def test_equal_groups_together_are_the_groups_one_by_one(dtype, recompute):
    """Vectors, gradients and running moments of the form of a GPU, and of a last smaller group."""
    found = []
    entity, relation = torch.arange(11), torch.arange(11) % 4
    for together in (False, True):
        model = make(group=3).to(dtype).train()
        model.recompute = recompute
        head = model.entities.rows(entity)
        if together:
            vectors = model._vectors_of_equal_groups(head, relation, [3, 3, 3, 2])
        else:
            vectors = model.vectors(head, relation)
        weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
        (vectors * weights.to(dtype)).sum().backward()
        for moments in model.moments:
            moments.update_running(torch.tensor(True))
        gradients = [p.grad for name, p in model.named_parameters() if name != "bias"]
        found.append([vectors.detach(), *gradients, *model.buffers()])
    largest = 1e-12 if dtype == torch.float64 else 1e-5
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm()) <= largest * float(one.norm())


@pytest.mark.parametrize(
    ("width", "shape"),
    [(200, (20, 10)), (128, (16, 8)), (100, (10, 10)), (50, (10, 5)), (9, (3, 3))],
)
def test_any_width_with_a_shape_works(width, shape):
    assert image_shape(width) == shape
    model = ConvE(ConvEOptions(width=width), SIZES).train()
    ids = torch.tensor([0, 1])
    assert model.vectors(model.entities.rows(ids), ids).shape == (2, width)


@pytest.mark.parametrize(("width", "near"), [(127, "126 or 128"), (202, "201 or 203"), (7, "9")])
def test_a_width_without_a_shape_is_refused_with_the_nearest(width, near):
    with pytest.raises(ValidationError, match=f"the nearest widths that are: {near}"):
        ConvEOptions(width=width)


@pytest.mark.parametrize("width", [10**18 + 3, 2**61 - 1, 10**30])
def test_a_width_that_no_memory_holds_is_refused_at_once(width):
    with pytest.raises(ValidationError, match=r"one embedding needs [0-9,]+ GB of memory"):
        ConvEOptions(width=width)
    with pytest.raises(
        ValidationError, match=r"the nearest widths that are: 1000000000000000000\b"
    ):
        ConvEOptions(kernel=10**9)


def test_distmult_and_complex_are_what_they_are():
    entity, relation, tail = torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([5, 6])
    torch.manual_seed(0)
    plain = DistMult(DistMultOptions(width=6), SIZES).eval()
    complex_ = ComplEx(ComplExOptions(width=6), SIZES).eval()
    for model in (plain, complex_):
        model.bias.data.normal_()
    found = []
    for model in (plain, complex_):
        queries = TripleQueries(entity.numpy(), relation.numpy())
        found.append(model.scorer(queries).block(0, 11).gather(1, tail[:, None])[:, 0])
    h, r, t = plain.entities.weight[entity], plain.relations.weight[relation], plain.entities.weight
    torch.testing.assert_close(found[0], (h * r * t[tail]).sum(1) + plain.bias[tail])
    h, r, t = (
        torch.complex(*rows.chunk(2, dim=1))
        for rows in (
            complex_.entities.weight[entity],
            complex_.relations.weight[relation],
            complex_.entities.weight[tail],
        )
    )
    torch.testing.assert_close(found[1], (h * r * t.conj()).sum(1).real + complex_.bias[tail])


def test_a_switch_without_effect_is_refused():
    for wrong in ({"negatives": 4}, {"loss": "sampled", "label_smoothing": 0.1}):
        with pytest.raises(ValidationError, match="has no effect with loss"):
            ConvEOptions(**wrong)
    with pytest.raises(ValidationError, match="even number"):
        ComplExOptions(width=7)


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    config = build_config("conve", None)
    return load_graph(config.data, 0, ring())


def test_rows_hold_all_answers_and_a_last_row_alone_joins(graph):
    examples = KvsAllExamples(graph)
    model = ConvE(ConvEOptions(width=20), Sizes.of(graph))
    count = len(examples)
    for size in range(2, 12):
        phase = CompletionPhase(model, examples, size)
        batches = [phase.plan(0, 3, index).ids for index in range(phase.steps())]
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(count))
        assert min(map(len, batches)) > 1
        assert all(len(ids) == size for ids in batches[:-1])
    facts = graph.of(0)
    found = set()
    for number in range(count):
        entity, relation = examples.queries.entity[number], examples.queries.relation[number]
        found |= {(entity, relation, answer) for answer in examples.answers.row(number).tolist()}
    tails = set(zip(facts.head, facts.relation, facts.tail, strict=True))
    heads = {(t, r + len(graph.relations), h) for h, r, t in tails}
    assert found == tails | heads


@pytest.mark.parametrize("kind", [ConvE, DistMult, ComplEx])
def test_all_answers_at_once_are_the_answers_one_by_one(kind, graph):
    """The loss of 1-n-softmax over all queries is that of 1vsall over all triples."""
    plain = PLAIN if kind is ConvE else {"dropout": 0.0}
    total, gradients = [], []
    for loss, examples in (
        ("1-n-softmax", KvsAllExamples(graph)),
        ("1vsall", TripleExamples(graph)),
    ):
        torch.manual_seed(0)
        options = kind.Options(width=20, loss=loss, **plain)
        sizes = Sizes(entities=len(graph.entities), relations=len(graph.relations))
        model = kind(options, sizes).double().eval()  # one BatchNorm for both
        phase = CompletionPhase(model, examples, len(examples))
        batch = phase.plan(0, 0, 0)
        (term,) = phase.terms(phase.encode(batch), batch, batch.ids)
        total.append(term.numerator * len(examples))
        gradients.append(torch.autograd.grad(total[-1], list(model.parameters())))
    torch.testing.assert_close(*total)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_drawn_entities_are_no_answers(graph):
    examples = TripleExamples(graph, 5)
    phase = CompletionPhase(DistMult(DistMultOptions(), Sizes.of(graph)), examples, 64)
    batch = phase.plan(1, 0, 0)
    rows = batch.ids.numpy()
    made = examples.batch(batch, rows, torch.device("cpu"))
    known = set(zip(examples.queries.entity, examples.queries.relation, examples.targets,
                    strict=True))  # fmt: skip
    assert made.negatives is not None
    for entity, relation, drawn in zip(made.entity, made.relation, made.negatives, strict=True):
        assert not any((int(entity), int(relation), int(n)) in known for n in drawn)
    half = examples.batch(batch, rows[32:], torch.device("cpu"))
    assert torch.equal(half.negatives, made.negatives[32:])


def test_layouts_that_batch_norm_rules_out_are_refused(graph):
    model = ConvE(ConvEOptions(), Sizes.of(graph))
    for settings, words in (
        ({"training.batch_size": 1}, "at least 2"),
        ({"training.accumulate": 2}, "are not divided"),
    ):
        config = build_config("conve", None, flags=settings)
        with pytest.raises(ConfigurationError, match=words):
            model.phases(graph, config.training)
    config = build_config(
        "conve", None, flags={"training.batch_size": 512, "training.accumulate": 4}
    )
    assert len(model.phases(graph, config.training)) == 1


def test_known_answers_are_complete():
    from hasten.data.tables import Triples
    from hasten.objectives.triple_queries import known_answers

    facts = Triples(np.array([0, 0, 1]), np.array([0, 0, 1]), np.array([2, 1, 0]))
    queries = TripleQueries(np.array([0, 0, 2, 4]), np.array([0, 3, 2, 0]))
    answers = known_answers([facts], 2, queries, 5)
    assert [answers.row(i).tolist() for i in range(4)] == [[1, 2], [1], [0], []]
