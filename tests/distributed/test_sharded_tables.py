"""Tables that are sharded over processes: the training and metrics of one process."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.csv as pacsv
import pytest
import torch
from safetensors.torch import load_file

from hasten.cli.main import main
from hasten.config_loading.build import build_config
from hasten.distributed import row_shard
from hasten.distributed.processes import Processes
from hasten.distributed.row_shard import RowShard
from hasten.errors import ConfigurationError
from hasten.ops.sharded_table import sharded_weights
from hasten.ops.table_rows import TableRows
from hasten.training.sharding import tables as sharding
from tests.contract import cases
from tests.contract.cases import sequences
from tests.distributed import sharded_worker as worker
from tests.distributed.sharded_worker import CPU, MODELS, STEPS
from tests.distributed.test_processes import run_workers


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def several(request, tmp_path_factory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp(f"sharded-{request.param}")
    return run_workers(request.param, out, "tests.distributed.sharded_worker")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    worker.OUT = tmp_path_factory.mktemp("alone")
    return {name: worker.train(name, Processes(CPU)) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_sharded_tables_train_as_one_process_does(name, several, alone):
    expected = alone[name]
    for each in several:
        for ours, theirs in zip(each[name]["losses"], expected["losses"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
    found = several[0][name]
    for group in ("weights", "optimisers", "phases"):
        assert found[group].keys() == expected[group].keys()
        for key, values in expected[group].items():
            torch.testing.assert_close(
                torch.tensor(found[group][key]), torch.tensor(values), rtol=1e-5, atol=1e-8
            )


@pytest.mark.parametrize("name", MODELS)
def test_metrics_and_ranks_are_those_of_one_process(name, several, alone):
    for each in several:
        assert each[name]["metrics"] == pytest.approx(alone[name]["metrics"], abs=1e-12)
        assert each[name]["ranks"] == alone[name]["ranks"]


@pytest.mark.parametrize("name", MODELS)
def test_each_process_holds_its_rows_of_weights_and_moments(name, several, alone):
    tables, held = several[0][name]["sharded"], [0] * len(several)
    for table in tables:
        total, *widths = alone[name]["held"][table]
        shapes = [each[name]["held"][table] for each in several]
        rows = [count for count, *_ in shapes]
        assert sum(rows) == total
        assert max(rows) - min(rows) <= 1
        assert all(shape == widths for _, *shape in shapes)
        if widths:  # no vector beside the table
            (width,) = widths
            held = [a + b for a, b in zip(held, rows, strict=True)]
    for rows, each in zip(held, several, strict=True):
        assert each[name]["moments"] == [[rows, width]] * len(each[name]["moments"])
    others = alone[name]["held"].keys() - set(tables)
    assert all(each[name]["held"][key] == alone[name]["held"][key] for each in several
               for key in others)  # fmt: skip


def sharded(found: dict[str, Any]) -> tuple[str, list[str]]:
    """A sharded table, and the vectors beside it."""
    names = sorted(found["sharded"], key=lambda name: -len(found["held"][name]))
    return names[0], [name for name in names if len(found["held"][name]) == 1]


@pytest.mark.parametrize("name", MODELS)
def test_processes_get_the_rows_of_their_examples_only(name, several, alone):
    """From those that hold them, which get the gradients back; the all-reduce has no rows."""
    found = [each[name] for each in several]
    own = [each["read"]["own"] for each in found]
    sent = [each["sent"] for each in found]
    assert sum(each.get("the rows of examples", 0) for each in sent) == sum(own)
    assert [each.get("the gradients of rows", 0) for each in sent] == own
    if own[0]:
        assert max(own) <= alone[name]["read"]["own"] < sum(own)
        calls = [each["calls"] for each in found]
        assert calls == [calls[0]] * len(several)
        # and once more when the messages need more space, by a quarter at least
        steps = calls[0]["the rows of examples"]
        assert steps == calls[0]["the gradients of rows"]
        assert steps < calls[0]["the ids of a step"] <= steps + 6
        assert calls[0]["the norms of a step"] >= steps
    of_all = found[0]["read"]["of all"]  # of a graph: each once, by the process that holds it
    assert sum(each.get("the rows of a step", 0) for each in sent) == of_all
    if not of_all:
        others = [math.prod(shape) for key, shape in alone[name]["held"].items()
                  if key not in found[0]["sharded"]]  # fmt: skip
        summed = STEPS * (sum(others) + 100)  # losses, moments, flags
        assert max(each["the sum of gradients"] for each in sent) <= summed


#: those whose loss is over all candidates
OF_CATALOG = [
    *("sasrec-ce", "sasrec-ce-clip", "tisasrec-ce"),
    *("complex-1vsall", "complex-1-n-softmax", "conve-1-n"),
]


@pytest.mark.parametrize("name", OF_CATALOG)
def test_a_loss_over_all_rows_sends_queries_and_no_rows_of_the_table(name, several, alone):
    """Bytes are those of the queries, whatever the size of the table."""
    table, vectors = sharded(several[0][name])
    assert vectors == (["bias"] if name.startswith(("complex", "conve")) else [])
    width, world = alone[name]["held"][table][1], len(several)
    queries = alone[name]["queries"]
    sent = [each[name]["sent"] for each in several]
    back = [each["the gradients of the queries"] for each in sent]
    assert back == [queries * width] * world
    assert sum(each["the queries of a step"] for each in sent) <= queries * (width + 2 * 40)
    merged = [each.get("the sums of a step", 0) for each in sent]
    assert merged == [0 if name == "conve-1-n" else queries] * world


@pytest.mark.parametrize(
    ("name", "products", "once"),
    [("lightgcn", 4, 0), ("lightgcn-one-layer", 0, 0), ("kgat-graphsage", 0, 1)],
)
def test_a_step_over_a_graph_sends_the_table_for_inner_layers_only(
    name, products, once, several, alone
):
    """products: with the table in a step, forward and backward. once: after an epoch, instead."""
    nodes, width = alone[name]["held"]["nodes.weight"]
    sent = [each[name]["sent"] for each in several]
    times = products * len(alone[name]["losses"]) + once
    assert sum(each.get("the rows of a product", 0) for each in sent) == times * nodes * width
    if name != "kgat-graphsage":  # which exchanges rows in its other phase too
        vectors = 3 * alone[name]["read"]["of all"]
        assert [each["the vectors of a step"] for each in sent] == [vectors] * len(several)


def test_requested_rows_are_those_of_the_holders_and_sums_are_in_the_order_of_ranks(several):
    for each in several:
        assert len(each["requested rows"]) == 10
        for found in each["requested rows"].values():
            assert found["rows"]
            assert found["sums"]
            assert found["distinct"]
    last = [each["requested rows"]["1 tables, step 4"] for each in several]
    assert [found["held"] > 0 for found in last] == [False] * (len(several) - 1) + [True]
    assert 0 in [found["asked"] for found in last]


def test_a_gradient_that_is_not_finite_on_one_process_skips_the_step_on_all(several):
    for each in several:
        for found in each["skipped"].values():
            assert found == {"steps": [0.0, 1.0], "unchanged": True, "goes on": True}


def test_losses_over_sharded_tables_are_those_over_whole_tables(several):
    for each in several:
        assert len(each["table losses"]) == 7
        assert max(each["table losses"].values()) < 1e-9


def test_products_with_a_graph_in_parts_are_those_with_the_whole_graph(several):
    for each in several:
        assert len(each["graph products"]) == 15
        assert max(each["graph products"].values()) < 1e-12


def test_losses_over_whole_tables_are_the_plain_ones():
    assert max(worker.table_losses(Processes(CPU)).values()) < 1e-9


FLAGS = [
    *("--device", "cpu", "--quiet", "--json", "--threads", "1", "--set", "model.width=8"),
    *("training.shard_tables=always", "evaluation.every=1", "training.schedule=constant"),
]
_SASREC = ["model.dropout=0", "model.max_length=8", "training.average=2"]
#: options by the name of a run: the model and its loss
RUNS = {
    "sasrec bce": [*_SASREC, "model.loss=bce"],
    "sasrec ce": [*_SASREC, "model.loss=ce"],
    "bprmf": ["training.batch_size=64"],
    "lightgcn": ["training.batch_size=64"],
    "kgat": [
        *("training.batch_size=64", "model.dropout=0", "model.layers=12,8", "data.split=ratio"),
        *("model.relation_width=8", f"data.kg={cases.__file__.replace('cases.py', 'facts.tsv')}"),
    ],
}


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    file = tmp_path_factory.mktemp("events") / "events.csv"
    columns = sequences(60, 203)
    lines = zip(*columns.values(), strict=True)
    text = "\n".join(",".join(map(str, line)) for line in lines)
    file.write_text(",".join(columns) + "\n" + text + "\n")
    return file


def run(*arguments: str) -> None:
    assert main([str(each) for each in arguments]) == 0


@pytest.fixture(scope="module")
def whole(events, tmp_path_factory):
    """A run of one process without a stop, by its name in :data:`RUNS`."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def of(name: str) -> Path:
        run("train", name.split(maxsplit=1)[0], events, *FLAGS, *RUNS[name], "--epochs", "4",
            "--out", folder / name)  # fmt: skip
        return folder / name

    return of


_SLOW = [("sasrec bce", 2, 1), ("sasrec bce", 2, 3), ("sasrec bce", 3, 2)]
_SLOW += [("sasrec ce", 2, 1), ("sasrec ce", 3, 2), ("bprmf", 1, 2), ("bprmf", 3, 2)]
_SLOW += [(name, *each) for name in ("lightgcn", "kgat") for each in ((1, 2), (2, 3), (3, 1))]
#: the tables of a model, if they are not those of items
_TABLES = {"bprmf": ["users.weight", "items.weight"], "lightgcn": ["nodes.weight"],
           "kgat": ["nodes.weight"]}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("sasrec ce", 1, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in _SLOW)],
)
def test_a_run_resumes_on_another_number_of_processes(
    name, first, second, events, whole, tmp_path, capfd
):
    part, whole, model = tmp_path / "part", whole(name), name.split(maxsplit=1)[0]
    flags = [*FLAGS, *RUNS[name], "--epochs", "2"]
    run("train", model, events, *flags, "--out", part, "--devices", first)
    run("resume", part, "--epochs", "4", "--devices", second, "--quiet")
    for kind in ("final", "best"):
        for file in (whole / kind).glob("*.safetensors"):
            group = file.stem
            ours = load_file(part / kind / f"{group}.safetensors")
            for key, values in load_file(whole / kind / f"{group}.safetensors").items():
                if "pending" not in key:
                    torch.testing.assert_close(ours[key], values, rtol=1e-3, atol=2e-5)
    found = [json.loads((each / "metrics.json").read_text()) for each in (whole, part)]
    assert found[0]["test"] == pytest.approx(found[1]["test"], abs=1e-6)
    tables = _TABLES.get(model, ["items.weight"])
    assert found[1]["effective"]["sharded_tables"] == (tables if second > 1 else None)
    for each in (whole, part):
        run("recommend", each, "--users", "all", "--topk", "5", "--out", each / "lists.csv")
    capfd.readouterr()
    lists = [pacsv.read_csv(each / "lists.csv") for each in (whole, part)]
    assert lists[0].column("item_id").equals(lists[1].column("item_id"))


def processes(world: int = 2, device: str = "cpu", backend: str = "gloo") -> Any:
    several = SimpleNamespace(world=world, rank=0, local_world=world, backend=backend)
    several.device = torch.device(device)
    return several


def shard(changes: dict[str, Any], several: Any = None, name: str = "sasrec-bce") -> Any:
    _, _, model, phases = worker.built(name)
    settings = {"training.shard_tables": "always", "model.loss": "bce", **changes}
    training = build_config("sasrec", None, None, (), settings).training
    return sharding.shard_tables(model, phases, training, several or processes())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training.precision": "fp16", "training.emulate_fp16": True}, "no loss scale"),
        ({"training.weight_decay": 0.1}, r"weight_decay=0"),
        ({"training.compile": "auto"}, r"compile=auto takes steps in one process"),
        ({"training.precision": "auto"}, r"precision=auto takes steps in one process"),
    ],
)
def test_what_cannot_be_sharded_is_refused_with_the_reason(changes, reason):
    with pytest.raises(ConfigurationError, match=rf"shard_tables=always: .*{reason}") as found:
        shard(changes)
    assert found.value.agreed
    assert not shard({**changes, "training.shard_tables": "auto"})


@pytest.mark.parametrize(
    ("name", "several", "reason"),
    [
        ("sasrec-bce", processes(device="mps"), "run on a CPU or on CUDA, not mps"),
        ("sasrec-bce", processes(device="cuda"), "by nccl: leave distributed.backend at auto"),
    ],
)
def test_what_cannot_be_sharded_on_a_device_is_refused_with_the_reason(name, several, reason):
    with pytest.raises(ConfigurationError, match=rf"shard_tables=always: .*{reason}"):
        shard({}, several, name)


def test_auto_keeps_whole_tables_on_devices(monkeypatch):
    monkeypatch.setattr(sharding, "memory_bytes", lambda: 1)
    several, auto = processes(device="cuda", backend="nccl"), {"training.shard_tables": "auto"}
    assert not shard(auto, several)
    assert shard({}, several)


def test_more_processes_than_rows_are_refused():
    with pytest.raises(ConfigurationError, match=r"a table has \d+ rows for 999 processes"):
        shard({}, processes(999))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("tisasrec", ["model.loss=ce", "model.embedding_l2=0.1"]),
        ("complex", ["model.loss=1vsall", "model.label_smoothing=0.1"]),
    ],
)
def test_a_regularizer_of_the_whole_table_is_refused(model, options, tmp_path, capsys):
    flags = ["--set", "training.shard_tables=always", *options, "--device", "cpu"]
    assert main(["train", model, *flags, "--out", str(tmp_path / "run")]) == 2
    assert "completion reads whole tables" in (told := capsys.readouterr().err) or (
        "next_item reads whole tables" in told
    )


@pytest.mark.parametrize(("memory", "sharded"), [(10**9, False), (10**5, True)])
def test_auto_shards_what_needs_much_of_the_memory(memory, sharded, monkeypatch):
    monkeypatch.setattr(sharding, "memory_bytes", lambda: memory)
    # more than 200 rows of 16 float64, with two moments, in two processes: above 150 kB
    assert bool(shard({"training.shard_tables": "auto"})) is sharded
    assert not shard({"training.shard_tables": "never"})


def test_one_process_holds_all_rows():
    tables = shard({}, processes(1))
    assert not tables
    assert tables.shard is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["sasrec-ce", "conve-1-n", "bprmf", "lightgcn"])
def test_a_process_makes_only_its_rows_of_the_initial_tables(name, rank):
    _, _, whole, _ = worker.built(name)
    several = processes()
    several.rank = rank
    _, _, model, _ = worker.built(name, several)
    shards = sharded_weights(model)
    assert len(shards) == (2 if name == "bprmf" else 1)
    for key, values in whole.state_dict().items():
        rows = slice(shards[key].first, shards[key].stop) if key in shards else slice(None)
        found = model.state_dict()[key]
        assert torch.equal(found, values[rows] if values.dim() else values)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["lightgcn", "kgat"])
def test_a_graph_divided_later_is_that_of_which_a_process_makes_its_rows(name, rank):
    """With ``auto`` and ``always``."""
    several = processes()
    several.rank = rank
    config, _, whole, phases = worker.built(name)
    sharding.shard_tables(whole, phases, config.training, several)
    _, _, model, _ = worker.built(name, several)
    assert whole.graph is None
    assert model.graph is None
    for key in ("rows", "transposed"):
        ours, theirs = (getattr(each.graph_shard, key) for each in (whole, model))
        for field, values in vars(theirs).items():
            assert torch.equal(getattr(ours, field), values)
    assert (whole.graph_shard.order_t is None) == (name == "lightgcn")
    if name == "kgat":
        assert torch.equal(whole.graph_shard.order_t, model.graph_shard.order_t)
        assert torch.equal(whole.head_relations.offsets, model.head_relations.offsets)
        assert whole.attention_shard.bounds == model.attention_shard.bounds


@pytest.mark.parametrize("size", [1, 100, 1 << 25])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_pieces_of_a_table_are_its_rows_in_order(size, rank, monkeypatch):
    monkeypatch.setattr(row_shard, "_PIECE_BYTES", size)
    whole, sent = torch.rand(10, 3), []
    several = SimpleNamespace(world=3, rank=rank, is_rank0=rank == 0)
    shard = RowShard(several, 10)

    def broadcast_(piece: torch.Tensor, what: str, source: int = 0) -> torch.Tensor:
        """From the process that has the rows: those after all that came before."""
        start = sum(map(len, sent)) + shard.bounds[1]
        sent.append(piece.copy_(whole[start : start + len(piece)]).clone())
        return piece

    several.broadcast_ = broadcast_
    own = whole[shard.first : shard.stop]
    pieces = [piece.clone() for piece in shard.pieces(own)]
    assert sum(map(len, pieces)) == 10
    assert torch.equal(torch.cat(sent), whole[shard.bounds[1] :])
    if rank == 0:
        assert torch.equal(torch.cat(pieces), whole)
    sent.clear()
    file = SimpleNamespace(read=lambda at, rows: rows.copy_(whole[at : at + len(rows)]))
    assert torch.equal(shard.scatter(file if rank == 0 else None, whole[:0]), own)


def test_phases_know_their_shard():
    _, _, model, phases = worker.built("sasrec-bce")
    training = build_config("sasrec", None, None, ("training.shard_tables=always",), {}).training
    sharding.shard_tables(model, phases, training, processes())
    (phase,) = phases
    assert isinstance(phase.table, TableRows)
    assert phase.table.shard is not None
    total = len(model.items)
    assert total > 200
    assert model.items.weight is phase.table.weight
    assert model.items.weight.shape == (total // 2, 16)
    assert torch.equal(model.items.block(3, 50), model.items.weight[3:50])
    with pytest.raises(AssertionError, match="another process"):
        model.items.block(40, total)
    with pytest.raises(AssertionError, match="a gradient needs"):
        model.items.rows(torch.tensor([1]))
