"""The check that figures of tables are in the records beside them."""

import json

import pytest

from scripts import check_figures
from scripts.check_figures import check, is_among, numbers, rows


def test_the_numbers_of_a_cell_leave_out_names_links_and_dates():
    assert numbers("**.0352 ± .0012**") == [".0352", ".0012"]
    assert numbers("1,956 → 5.88 (325-376)") == ["1,956", "5.88", "325", "376"]
    assert (
        numbers("[2026-11-22](../bench/results/2026-11-22-x.md), `1-n`, RecBole 1.2.1, D64") == []
    )
    assert numbers("2e-3, 17 ± 3, 5 %") == ["2e-3", "17", "3", "5"]
    assert numbers("rows normalized 20 times") == []


@pytest.mark.parametrize(
    ("figure", "number"),
    [(".0352", 0.03524), ("1,956", 1956.4), ("2.0", 120.9), ("595", 595 * 2**20), ("12", 0.1199)],
)
def test_a_figure_may_be_rounded_and_in_another_unit(figure, number):
    assert is_among(figure, [7e9, number])
    assert not is_among(figure, [7e9])


def test_a_figure_that_is_in_no_record_is_found(tmp_path, monkeypatch, capsys):
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    (tmp_path / "experiments" / "results").mkdir(parents=True)
    (results / "2026-01-01-x.json").write_text(json.dumps({"seconds": [1.5, {"mib": 3.25}]}))
    record = "[x](bench/results/2026-01-01-x.md)"
    page = tmp_path / "README.md"
    page.write_text(
        f"# A\n\n| what | s | record |\n| --- | --- | --- |\n| a | 1.5 | {record} |\n"
        f"| b | 1.6 | {record} |\n\n| key | default |\n| --- | --- |\n| `k` | 77 |\n\n"
        "# B\n\n| what | MiB |\n| --- | --- |\n| c | 3.25 |\n"
    )
    monkeypatch.setattr(check_figures, "ROOT", tmp_path)
    assert [row.figures for row in rows(page, tmp_path)] == [["1.5"], ["1.6"], ["3.25"]]
    found = check(tmp_path)["README.md"]
    assert [line.partition(": ")[2] for line in found] == [
        "1.6: not in bench/results/2026-01-01-x", "3.25: no record",
    ]  # fmt: skip
    page.write_text(page.read_text() + f"\nMeasured: {record}.\n")
    assert len(check(tmp_path)["README.md"]) == 1
