"""Reports of every kind of run, in both formats, without opening the test part."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import hasten
from hasten.cli.main import main
from hasten.errors import UsageError
from hasten.reporting.analysis import analyze
from hasten.reporting.blocks import Lines, Series, Table, duration, shown, size
from hasten.reporting.charts import line_chart, ticks
from hasten.reporting.embedding_map import principal_components
from hasten.reporting.markdown import sparkline

KINDS = ("a", "tested", "stopped", "pop", "pairs", "triples", "typed")
VOID = ("meta", "link", "br")


class Tags(HTMLParser):
    """All tags of a page; they must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> str:
    """The page, if it is whole and loads nothing."""
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert not {tag for tag, _ in tags.seen} & {"script", "img", "iframe", "object"}
    assert not re.search(r"https?:|url\(|@import", page)
    assert not any(name.startswith("on") for _, given in tags.seen for name in given)
    assert [given["href"] for tag, given in tags.seen if tag == "link"] == ["data:,"]
    anchors = {given["id"] for tag, given in tags.seen if tag == "section"}
    links = {str(given["href"])[1:] for tag, given in tags.seen if tag == "a"}
    assert links == anchors
    assert len(page) < 3_000_000
    return page


@pytest.mark.parametrize("name", KINDS)
def test_every_run_has_a_report(runs: Path, name: str) -> None:
    found = hasten.report(runs / name)
    page, text = checked(found.to_html()), found.to_markdown()
    for words in ("Summary", "Metrics", "Switches in effect", "Data and machine"):
        assert f">{words}</h2>" in page
        assert f"## {words}\n" in text
    model_free = name == "stopped" and not (runs / name / "best").exists()
    assert ("Examples" in page) != model_free
    assert ("Beyond accuracy" in page) == (name not in ("triples", "typed") and not model_free)
    assert ("By relation" in page) == (name in ("triples", "typed"))
    assert ("sealed" in page) == (name in ("a", "stopped"))


def test_the_test_part_stays_sealed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report asks for validation alone, unless it is told otherwise."""
    asked = []
    import hasten.reporting.analysis as module

    usual = module.ranking_task

    def noted(dataset, part, *rest):
        asked.append(part)
        return usual(dataset, part, *rest)

    monkeypatch.setattr(module, "ranking_task", noted)
    hasten.report(runs / "a", runs / "tested")
    assert set(asked) == {1}
    before = (runs / "a" / "metrics.json").read_bytes()
    hasten.report(runs / "a", part="test")
    assert asked[-1] == 2
    assert (runs / "a" / "metrics.json").read_bytes() == before


def test_runs_side_by_side_have_intervals(runs: Path) -> None:
    page = checked(hasten.report(runs / "a", runs / "b").to_html())
    assert "Intervals of the differences in ndcg@10" in page
    assert "width=16" in page
    assert page.count('class="line c1"') >= 3


@pytest.mark.parametrize("others", [("stopped",), ("triples",)])
def test_runs_that_cannot_be_compared_say_why(runs: Path, others: tuple[str, ...]) -> None:
    page = checked(hasten.report(runs / "a", *(runs / name for name in others)).to_html())
    assert "No intervals: " in page


def test_figures_are_those_of_the_run(runs: Path) -> None:
    summary = json.loads((runs / "tested" / "metrics.json").read_text())
    found = analyze(runs / "tested", "valid", "best", "cpu", 100)
    assert found.metrics == pytest.approx(summary["valid"], rel=1e-6)
    text = hasten.report(runs / "tested").to_markdown()
    for part in ("valid", "test"):
        assert f"{summary[part]['ndcg@10']:.4f}" in text


def test_an_interrupted_run_tells_how_to_go_on(runs: Path) -> None:
    text = hasten.report(runs / "stopped").to_markdown()
    assert "hasten resume" in text
    assert "not finished" in text.lower()


def test_names_of_the_data_are_escaped(tmp_path: Path) -> None:
    lines = ["user_id,item_id,timestamp"]
    lines += [f"<script>{u},<b>|{(u + s) % 12},{s}" for u in range(12) for s in range(6)]
    (tmp_path / "events.csv").write_text("\n".join(lines))
    run = hasten.train("pop", tmp_path / "events.csv", out=tmp_path / "run", quiet=True)
    made = run.report()
    assert "<b>" not in checked(made.to_html())
    assert "\\<b\\>\\|" in made.to_markdown()


def test_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "both.html"
    assert main(["report", str(runs / "a"), str(runs / "b"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(out)
    checked(out.read_text())
    assert main(["report", str(runs / "a"), "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("# sasrec on events\n")
    assert main(["report", str(runs / "a")]) == 0
    assert (runs / "a" / "report.html").is_file()
    assert main(["report", str(runs / "a"), "--out", str(tmp_path / "x.md")]) == 0
    assert (tmp_path / "x.md").read_text().startswith("# sasrec")
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(runs / "a"), "--part", "train"]) == 2
    assert main(["evaluate", str(runs / "a"), "--beyond-accuracy", "5", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["beyond_accuracy"]
    assert set(figures) == {"valid"}
    assert {"coverage@5", "serendipity@5"} < set(figures["valid"])
    assert main(["evaluate", str(runs / "triples"), "--beyond-accuracy", "5"]) == 2


def test_refusals(runs: Path) -> None:
    with pytest.raises(UsageError, match="1 to 8 runs"):
        hasten.report()
    with pytest.raises(UsageError, match="html or md"):
        hasten.report(runs / "a", format="pdf")
    with pytest.raises(UsageError, match="valid or test"):
        hasten.report(runs / "a", part="train")


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    vectors *= np.array([5, 3, 1, 1, 1, 1], np.float32)
    places, shares = principal_components(vectors)
    centered = vectors - vectors.mean(0)
    _, singular, directions = np.linalg.svd(centered, full_matrices=False)
    expected = centered @ directions[:2].T
    assert np.abs(places) == pytest.approx(np.abs(expected), abs=1e-4)
    assert shares == pytest.approx((singular**2 / (singular**2).sum())[:2], rel=1e-5)
    assert principal_components(vectors[:, :1])[0].shape == (50, 2)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0199, 0.0201), (3.0, 3.0), (-5.0, 40_000.0)])
def test_ticks_cover_the_values(bounds: tuple[float, float]) -> None:
    found = ticks(*bounds)
    assert found[0] <= bounds[0]
    assert found[-1] >= bounds[1]
    assert 3 <= len(found) <= 8
    steps = np.diff(found)
    assert steps == pytest.approx(np.full(len(steps), steps[0]))


def test_charts_without_values_and_with_many() -> None:
    assert "no values" in line_chart(Lines("loss", "epoch", [Series("a", [(1, float("nan"))])]))
    many = line_chart(Lines("loss", "epoch", [Series("a", [(i, 1 / i) for i in range(1, 5000)])]))
    assert len(many) < 20_000
    assert "ends at 2.000e-04" in many or "ends at 0.0002" in many


def test_small_words() -> None:
    assert sparkline([1, 2, 3, 4]) == "▁▃▆█"
    assert len(sparkline(list(range(100)))) == 24
    assert [shown(each) for each in (None, 3, 1234, 0.5, 1e-5, float("nan"), "x")] == [
        "-", "3", "1,234", "0.5000", "1e-05", "-", "x",
    ]  # fmt: skip
    assert [duration(s) for s in (5, 100, 7265)] == ["5.0 s", "1 min 40 s", "2 h 1 min"]
    assert [size(n) for n in (12, 2048, 3 * 2**30)] == ["12 B", "2.0 KiB", "3.0 GiB"]
    assert Table(("a",), []).rows == []
