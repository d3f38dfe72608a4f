"""``evaluation.like``: the options of another library's protocol, and what contradicts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.comparison.finished import other_protocol
from hasten.config_loading.build import build_config
from hasten.config_loading.other_libraries import peer_notice, refuse_contradiction, with_peer
from hasten.errors import ConfigurationError
from hasten.runs.config_text import config_text


def test_a_new_run_gets_the_protocol_and_the_split() -> None:
    config = build_config("bprmf", flags={"like": "recbole"})
    assert (config.data.split, config.data.ratio_order) == ("ratio", "random")
    assert config.data.model_dump()["ratio_rounding"] == "down"
    assert config.evaluation.mask_history is True
    assert config.evaluation.metrics[0] == "mrr@10"
    assert build_config("sasrec", sets=["evaluation.like=recbole"]).evaluation.mask_history is False
    notice = peer_notice(build_config("sasrec", flags={"like": "bert4rec"}))
    assert notice.startswith("like bert4rec: data.split=leave-last-two-out evaluation.")
    assert build_config("conve", flags={"like": "pykeen"}).evaluation.filter_test is False


def test_metrics_and_the_split_stay_free() -> None:
    flags = {"like": "kgat", "topk": "10"}
    config = build_config("kgat", sets=["data.split=ratio"], flags=flags)
    assert config.data.split == "ratio"
    assert config.evaluation.metrics[:2] == ("recall@10", "ndcg_kgat@10")
    assert (
        build_config("pop", flags={"like": "recbole", "topk": "5"}).evaluation.metrics[0] == "mrr@5"
    )


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("sasrec", {"evaluation.ties": "optimistic"}, r"ties=optimistic .* contradicts .*recbole"),
        ("sasrec", {"evaluation.mask_history": True}, r"recbole, which sets False: leave one"),
        ("conve", {}, r"recbole ranks items for users, which conve does not.*libkge, pykeen"),
        ("sasrec", {"like": "librec"}, r"evaluation\.like"),
    ],
)
def test_what_contradicts_it_is_refused(
    model: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_config(model, flags={"like": "recbole", **changes})


def test_a_saved_configuration_repeats_the_run(tmp_path: Path) -> None:
    config = build_config("mmgcn", flags={"like": "mmrec"})
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config))
    assert build_config(config_file=file) == config


def test_runs_of_different_protocols_are_not_compared() -> None:
    kept = ["evaluation.mask_history=false"]
    plain, like = (
        build_config("sasrec", sets=kept),
        build_config("sasrec", flags={"like": "recbole"}),
    )
    difference = other_protocol(plain.evaluation, like.evaluation)
    assert difference == "other protocols (evaluation.like is None, and recbole)"


def test_an_existing_run_is_evaluated_by_it() -> None:
    run = build_config("sasrec", flags={"topk": "5"})
    changes = with_peer(run, {"evaluation.like": "recbole", "evaluation.metrics": ("mrr",)})
    assert not [key for key in changes if key.startswith("data.")]
    assert changes["evaluation.mask_history"] is False
    assert changes["evaluation.metrics"] == ("mrr",)
    assert with_peer(run, {"evaluation.ties": "rounded"}) == {"evaluation.ties": "rounded"}
    refuse_contradiction(run)
