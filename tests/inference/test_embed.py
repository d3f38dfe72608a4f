"""Embeddings in files, and what the check says of them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

import hasten
from hasten.cli.main import main
from hasten.data.graph.node_types import NodeTypes
from hasten.errors import HastenError, UsageError
from hasten.evaluation.embedding_diagnostics import diagnose, diagnose_nodes
from hasten.evaluation.links import LinkQuality
from hasten.inference.check_embeddings import check_embeddings
from hasten.inference.embed import Embeddings, embed, read_embeddings, write_embeddings
from hasten.loaded_run import load_run
from hasten.training.cpu_fallback import with_cpu_fallback
from tests.models.typed_graph.test_hgt import table

SETTINGS = {
    "model.width": 12, "model.hidden": 8, "model.heads": 2, "model.shallow_width": 0,
    "training.batch_size": 50,
    "evaluation.metrics": ["mrr", "hits@10"], "data.ratios": [0.7, 0.15, 0.15], "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embed")
    result = hasten.train(
        "hgt", table(), settings=SETTINGS, epochs=2, out=folder / "run", quiet=True
    )
    return result.path


def named(count=3):
    rng = np.random.default_rng(0)
    return Embeddings(
        rng.normal(size=(count, 4)).astype(np.float32),
        pa.array([str(i) for i in range(count)]),
        pa.array(["=cmd", None, "plain, with comma"][:count], pa.string()),
        pa.array(["drug", "drug", "gene"][:count]),
    )


@pytest.mark.parametrize("form", ["csv", "parquet", "npy"])
def test_files_give_every_number_back(tmp_path, form):
    found = named()
    path = tmp_path / f"e.{form}"
    write_embeddings(found, path, form)
    again = read_embeddings(path)
    np.testing.assert_array_equal(again.vectors, found.vectors)
    assert again.kinds.to_pylist() == found.kinds.to_pylist()


def test_csv_has_the_columns_of_the_guide_and_no_formulas(tmp_path):
    write_embeddings(named(), tmp_path / "e.csv", "csv")
    with (tmp_path / "e.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["node_id", "node_name", "node_type", "embedding"]
    assert rows[0]["node_name"] == "'=cmd"
    assert len(json.loads(rows[2]["embedding"])) == 4


def test_the_projector_gets_two_files(tmp_path):
    write_embeddings(named(), tmp_path / "p", "projector")
    assert np.loadtxt(tmp_path / "p" / "vectors.tsv").shape == (3, 4)
    assert (tmp_path / "p" / "metadata.tsv").read_text().splitlines()[
        3
    ] == "2\tplain, with comma\tgene"


@pytest.mark.parametrize("form", ["csv", "parquet", "npy", "projector"])
def test_links_are_not_written_through(tmp_path, form):
    mine, out = tmp_path / "mine", tmp_path / "out"
    mine.write_text("mine")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "metadata.tsv" if form == "projector" else out
    link.symlink_to(mine)
    with pytest.raises(HastenError, match="not a regular file"):
        write_embeddings(named(), link.parent if form == "projector" else out, form)
    assert mine.read_text() == "mine"
    assert link.is_symlink()


def test_a_run_embeds_what_its_model_computes(run, tmp_path, capsys):
    assert main(["embed", str(run), "--out", str(tmp_path / "e.parquet"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    loaded = load_run(run)
    assert told["nodes"] == len(loaded.dataset.entities)
    found = read_embeddings(tmp_path / "e.parquet")
    with torch.no_grad():
        expected = loaded.model.embed().numpy()
    np.testing.assert_allclose(found.vectors, expected, rtol=1e-5, atol=1e-6)
    blocks = embed(loaded, 3)
    np.testing.assert_allclose(blocks.vectors, expected, rtol=1e-4, atol=1e-5)
    assert blocks.ids[0].as_py() == "s0"
    assert main(["embed", str(run), "--format", "npz"]) == 2
    assert main(["embed", str(run), "--out", str(tmp_path / "no" / "e.csv")]) == 2


def test_the_check_of_a_run_judges_its_links_and_draws(run, tmp_path, capsys):
    code = main(
        ["check-embeddings", str(run), "--min-components", "2", "--max-cosine", "1.1",
         "--plots", str(tmp_path / "plots"), "--json"]
    )  # fmt: skip
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (1 if told["problems"] else 0)
    assert set(told["links"]["relations"]) <= {"targets", "treats", "associates", "meets"}
    assert (tmp_path / "plots" / "pca.png").stat().st_size > 1000
    assert (tmp_path / "plots" / "variance.png").exists()
    assert told["random"]["mean_cosine"] == pytest.approx(0, abs=0.1)


def test_a_model_without_embeddings_is_evaluated_by_its_links(tmp_path, capsys):
    settings = {k: v for k, v in SETTINGS.items() if k.startswith(("data", "eval", "threads"))}
    run = hasten.train("degree", table(), settings=settings, out=tmp_path / "d", quiet=True).path
    told = check_embeddings(run)
    assert told["health"] is None
    assert told["links"]["auroc"] > 0
    assert told["part"] == "test"
    assert check_embeddings(run, part="valid")["part"] == "valid"
    write_embeddings(named(), tmp_path / "e.csv", "csv")
    with pytest.raises(UsageError, match=r"e\.csv: no links of the part valid"):
        check_embeddings(tmp_path / "e.csv", part="valid")
    main(["check-embeddings", str(run)])
    assert "only its links are evaluated" in capsys.readouterr().err


def test_one_vector_for_all_fails_the_check(tmp_path, capsys):
    found = named(3)
    noise = np.random.default_rng(1).normal(size=(40, 16))
    vectors = 1 + 1e-4 * noise
    many = Embeddings(
        vectors.astype(np.float32), pa.array([str(i) for i in range(40)]),
        pa.nulls(40, pa.string()), pa.array(["a", "b"] * 20),
    )  # fmt: skip
    write_embeddings(many, tmp_path / "c.csv", "csv")
    assert main(["check-embeddings", str(tmp_path / "c.csv")]) == 1
    assert "mean cosine" in capsys.readouterr().err
    told = check_embeddings(tmp_path / "c.csv")
    assert "collapsed" in told["warning"]
    asked = check_embeddings(tmp_path / "c.csv", within={"a": (0.5, 1), "b": (0.5, 0.8)})
    more = [text for text in asked["problems"] if text not in told["problems"]]
    assert more == ["cosine within b is 1.000, not 0.5 to 0.8"]
    assert main(["check-embeddings", str(tmp_path / "c.csv"), "--within", "z=0..1"]) == 2
    assert "there are a, b" in capsys.readouterr().err
    assert found.vectors.shape == (3, 4)


def test_plots_without_matplotlib_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("hasten.inference.embedding_plots.find_spec", lambda _: None)
    write_embeddings(named(), tmp_path / "e.csv", "csv")
    with pytest.raises(UsageError, match=r"pip install 'hasten\[plots\]'"):
        check_embeddings(tmp_path / "e.csv", plots=tmp_path)


def test_few_components_are_noted_where_held_out_links_are_told_apart(run, monkeypatch, capsys):
    real = LinkQuality({}, 0.984, 0.9)
    monkeypatch.setattr("hasten.inference.check_embeddings.link_quality", lambda *_: real)
    assert check_embeddings(run)["health"]["components_90"] < 15
    assert main(["check-embeddings", str(run)]) == 0
    assert "noted, no failure" in capsys.readouterr().err
    assert main(["check-embeddings", str(run), "--min-components", "15"]) == 1
    assert "fewer than 15" in capsys.readouterr().err
    monkeypatch.setattr(
        "hasten.inference.check_embeddings.link_quality", lambda *_: LinkQuality({}, 0.5, 0.5)
    )
    assert len(check_embeddings(run)["problems"]) > 1


def test_types_that_are_alike_are_noted_where_held_out_links_are_told_apart(run, monkeypatch):
    alike = property(lambda _: True)
    monkeypatch.setattr(
        "hasten.evaluation.embedding_diagnostics.EmbeddingDiagnostics.like_random", alike
    )
    for auroc, place in ((0.9, "noted"), (0.5, "problems")):
        real = LinkQuality({}, auroc, auroc)
        monkeypatch.setattr("hasten.inference.check_embeddings.link_quality", lambda *_, r=real: r)
        texts = check_embeddings(run)[place]
        assert any("types are not told apart" in text for text in texts), auroc


def test_random_vectors_pass_the_first_criteria_but_not_the_types():
    """The guide's criteria alone cannot tell embeddings from noise; the check says so."""
    types = NodeTypes(
        ("a", "b"), np.array([0, 600, 1200]), np.zeros(1, int), np.ones(1, int), np.zeros(1, bool)
    )
    noise = torch.randn(1200, 64, generator=torch.Generator().manual_seed(0))
    found = diagnose_nodes(noise, types)
    assert found.mean_cosine < 0.5
    assert found.components_90 >= 15
    assert len(found.problems()) == 1
    assert "types are not told apart" in found.problems()[0]
    shifted = noise.clone()
    shifted[:600, 0] += 10
    assert not diagnose_nodes(shifted, types).like_random


def test_health_figures_are_those_of_their_definitions():
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(30, 5)))
    code = np.repeat([0, 1], [12, 18])
    found = diagnose(x, code, ("a", "b"))
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    pairs = [(i, j) for i in range(30) for j in range(30) if i != j]
    cosine = {(i, j): unit[i] @ unit[j] for i, j in pairs}
    assert found.mean_cosine == pytest.approx(np.mean(list(cosine.values())), abs=1e-5)
    within = np.mean([cosine[p] for p in pairs if code[p[0]] == code[p[1]]])
    across = np.mean([cosine[p] for p in pairs if code[p[0]] != code[p[1]]])
    assert (found.within, found.across) == pytest.approx((within, across), abs=1e-5)
    values = np.linalg.svd((x - x.mean(0)).numpy(), compute_uv=False) ** 2
    share = values / values.sum()
    assert found.components_90 == int(np.searchsorted(np.cumsum(share), 0.9)) + 1
    assert found.effective_rank == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('node_id,embedding\na,"[1, x]"\n', "line 2"),
        ('node_id,embedding\na,"[1, 2]"\nb,[1]\n', "line 3: 1 numbers, 2 before"),
        ('node_id,embedding\na,"[1, NaN]"\n', "row 1 holds a number that is not finite"),
        ("node_id,embedding\n", "a row of equally many numbers"),
        ("node_id,embedding\na," + "[" * 100_000 + "\n", "line 2"),
        ("node_id,embedding\na," + "1" * (1 << 24) + "1\n", "no embeddings can be read"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, text, words):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_embeddings(tmp_path / "x.csv")


def test_the_function_of_the_guide(tmp_path):
    rows = table()
    names = rows.column_names
    path = tmp_path / "kg.csv"
    lines = [",".join(str(row[n]) for n in names) for row in rows.to_pylist()]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    stats = hasten.generate_hgt_embeddings_batched(
        path, tmp_path / "out.csv", embedding_dim=10, hidden_dim=8, num_layers=1, num_heads=2,
        num_epochs=3, accumulation_steps=2, edge_sample_size=20, node_batch_size=4, device="cpu",
        include_node_types=["drug", "gene"], quiet=True, similarity_threshold=0.0,
        settings={"data.ratios": [0.7, 0.15, 0.15]},
    )  # fmt: skip
    assert {"embedding_dim", "num_epochs", "device", "total_nodes", "output_file"} <= set(stats)
    assert stats["device"] == "cpu"
    assert stats["num_epochs"] == 3
    found = read_embeddings(tmp_path / "out.csv")
    assert found.vectors.shape == (stats["total_nodes"], 10)
    assert set(found.kinds.to_pylist()) == {"drug", "gene"}


def test_a_device_that_fails_gives_way_to_the_cpu_aloud():
    said = []

    def attempt(device):
        if device == "mps":
            raise RuntimeError("MPS backend out of memory (9.00 GB)\nmore")
        return f"done on {device}"

    assert with_cpu_fallback(attempt, "mps", False, said.append) == ("done on cpu", "cpu")
    assert "out of memory" in said[0]
    assert "going on with the CPU" in said[0]
    with pytest.raises(RuntimeError):
        with_cpu_fallback(attempt, "mps", True, said.append)

    def wrong(device):
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        with_cpu_fallback(wrong, "mps", False, said.append)


def test_tensorboard_finds_the_vectors_of_a_run(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    write_embeddings(named(), tmp_path / "vectors", "projector")
    for folder in (tmp_path, tmp_path / "vectors"):
        text = (folder / "projector_config.pbtxt").read_text()
        (shown,) = text_format.Parse(text, ProjectorConfig()).embeddings
        assert (folder / shown.tensor_path).read_text() == (
            (tmp_path / "vectors" / "vectors.tsv").read_text()
        )
        assert (folder / shown.metadata_path).is_file()


def test_a_name_of_several_lines_is_one_row_of_the_projector(tmp_path):
    names = pa.array(["two\nlines\tand a tab", "b", "c"])
    write_embeddings(replace(named(), names=names), tmp_path / "p", "projector")
    lines = (tmp_path / "p" / "metadata.tsv").read_text().splitlines()
    assert len(lines) == 4
    assert lines[1].split("\t")[1] == "two lines and a tab"
