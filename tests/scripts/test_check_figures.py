"""The check that the figures of the pages are in the records beside them."""

import json

import pytest

from scripts.check_figures import _of_runs, check, is_among
from scripts.page_figures import blocks, measured, numbers, records_of

PAGE = "docs/page.md"


def test_the_numbers_of_a_cell_leave_out_names_links_and_dates():
    assert numbers("**.0352 ± .0012**") == [".0352", ".0012"]
    assert numbers("1,956 → 5.88 (325-376)") == ["1,956", "5.88", "325", "376"]
    assert (
        numbers("[2026-11-22](../bench/results/2026-11-22-x.md), `1-n`, RecBole 1.2.1, D64") == []
    )
    assert numbers("[.0352](x.md)") == [".0352"]
    assert numbers("2e-3, 17 ± 3, 5 %") == ["2e-3", "17", "3", "5"]
    assert numbers("rows normalized alternately") == numbers("1-N scoring") == []


def test_the_figures_of_sentences_have_decimals_or_a_unit():
    assert measured("30 epochs take 14 s, 12.5 % less; the MRR is .9466 with 8 channels") == [
        "14", "12.5", ".9466",
    ]  # fmt: skip
    assert measured("2048³ at 412 GFLOP/s, 5 times in 8 rounds") == ["412", "5"]


@pytest.mark.parametrize(
    "text",
    [
        "with Python 3.11 and PyTorch 2.13 on 192.168.1.100",
        "dropout 0.4 and 0.5, betas (0.9, 0.98), a standard deviation of 0.1",
        "`--memory-budget` (2 GB) bounds it, and `model.temperature` (0.2)",
        "The [paper](https://example.org/paper) has .325 and .501.",
        "Target: 30 s; seven blocks and a 95 % interval.",
    ],
)
def test_settings_versions_targets_and_cited_figures_are_no_measurements(text):
    assert measured(text) == []
    assert measured(text + " It took 1.5 s.") == ["1.5"]


@pytest.mark.parametrize(
    ("figure", "number"),
    [(".0352", 0.03524), ("1,956", 1956.4), ("2.0", 120.9), ("595", 595 * 2**20), ("12", 0.1199)],
)
def test_a_figure_may_be_rounded_and_in_another_unit(figure, number):
    assert is_among(figure, [7e9, number])
    assert not is_among(figure, [7e9])
    assert not is_among("2.0", [7200.0 * 2**20])


def test_a_row_has_its_own_records_and_a_paragraph_those_of_its_section_too():
    text = (
        "# A\n\nIt takes 2 s ([log](lab-log.md#a)).\n\n- [b](../bench/results/b.md): 3 s\n\n"
        "| what | s |\n| --- | --- |\n| c | 4 |\n| [d](experiments.md#d) | 5 |\n\n"
        "| key | default |\n| --- | --- |\n| `k` | 77 |\n\n# B\n\nAnd 6 s.\n"
    )
    log, bench = "docs/lab-log.md#a", "bench/results/b.md"
    both = [log, bench, "docs/experiments.md#d"]
    assert [(block.line, block.figures, block.records) for block in blocks(text, PAGE)] == [
        (3, ["2"], both), (5, ["3"], [bench, log, both[2]]),
        (9, ["4"], both), (10, ["5"], both[2:]), (18, ["6"], []),
    ]  # fmt: skip


def test_records_are_named_by_their_path_in_the_repository():
    assert records_of("[a](models/x.md#speed), [b](#here), [c](https://x.org)", PAGE) == [
        "docs/models/x.md#speed", "docs/page.md#here",
    ]  # fmt: skip
    assert records_of("[log](lab-log.md), [r](../experiments/results/x.json)", PAGE) == [
        "experiments/results/x.json"
    ]


def test_means_over_seeds_are_of_the_same_figure_where_old_records_have_fewer():
    old = {"valid": {"mrr": 0.2}, "test": {"mrr": 0.3}, "opened": {"test": {"mrr": 0.3}}}
    new = {"valid": {"kept": 0.9, "mrr": 0.4}, "test": None, "opened": {"test": {"mrr": 0.7}}}
    numbers = _of_runs([old, new])
    for figure in (0.3, 0.5):  # of validation, and of the test figures of the opened group
        assert any(abs(number - figure) < 1e-12 for number in numbers)
    assert not any(abs(number - 0.6) < 1e-12 for number in numbers)  # of mrr and kept


@pytest.fixture
def root(tmp_path):
    for name in ("bench/results", "experiments/results", "docs"):
        (tmp_path / name).mkdir(parents=True)
    record = {"seconds": [1.5, {"mib": 3.25}]}
    (tmp_path / "bench" / "results" / "2026-01-01-x.json").write_text(json.dumps(record))
    log = "# Lab log\n\n## 2026-01-01 A\n\nBefore 2.27 s, after 120 s.\n\n## B\n\n9.75 s\n"
    (tmp_path / "docs" / "lab-log.md").write_text(log)
    return tmp_path


def problems(root, text):
    (root / "README.md").write_text(text)
    return [line.partition(": ")[2] for line in check(root)]


def test_a_figure_that_is_in_no_record_is_found(root):
    record = "[x](bench/results/2026-01-01-x.md)"
    page = (
        f"# A\n\n| what | s | record |\n| --- | --- | --- |\n| a | 1.5 | {record} |\n"
        f"| b | 1.6 | {record} |\n\n# B\n\n| what | MiB |\n| --- | --- |\n| c | 3.25 |\n"
    )
    missing = "1.6: not in bench/results/2026-01-01-x.md"
    assert problems(root, page) == [missing, "3.25: no record"]
    assert problems(root, f"{page}\nMeasured: {record}.\n") == [missing]


def test_a_section_of_the_lab_log_is_a_record_in_its_own_unit(root):
    assert problems(root, "2.27 s ([log](docs/lab-log.md#2026-01-01-a)).\n") == []
    assert problems(root, "9.75 s ([log](docs/lab-log.md#2026-01-01-a)).\n") == [
        "9.75: not in docs/lab-log.md#2026-01-01-a"
    ]
    assert len(problems(root, "2.0 minutes ([log](docs/lab-log.md#2026-01-01-a)).\n")) == 1


def test_a_section_of_another_page_stands_for_its_records_and_shown_outputs(root):
    (root / "docs" / "x.md").write_text(
        "# X\n\n## Speed\n\n[log](lab-log.md#b)\n\n## Run\n\n```\nndcg@10 0.0460\n```\n\n"
        "It has 0.0460, or 0.0470.\n"
    )
    assert problems(root, "9.75 s ([x](docs/x.md#speed)); 0.0460 ([x](docs/x.md#run)).\n") == [
        "0.0470: no record"
    ]
