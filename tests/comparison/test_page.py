"""The page stands alone, and says what the result says."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from hasten.comparison.page import page
from hasten.comparison.result import Alternative, Comparison, SettingResult
from hasten.comparison.statistics import Difference, Ratio
from hasten.comparison.verdict import Margin, judge
from hasten.comparison.wording import duration, explain, times


def made(*estimates: float, error: float = 0.002, margin: Margin | None = None) -> Comparison:
    """A comparison with these relative differences."""
    margin = margin or Margin(0.01, True)
    normal = np.random.default_rng(0).standard_normal(4000)
    differences = [
        Difference(each, 5, 1234, 0.9 * error**2, 0.1 * error**2, each + error * normal)
        for each in estimates
    ]
    verdicts = judge(differences, margin.value)
    setting = SettingResult("baseline", (Path("a"),), (0,), {"mrr": 0.5}, {"mrr": 0.01})
    return Comparison(
        model="conve",
        data="<umls>",
        part="valid",
        metric="mrr",
        margin=margin,
        protocol="filtered",
        units="triples",
        baseline=setting,
        alternatives=tuple(
            Alternative(
                SettingResult(f"lr={number} & <b>", (Path("b"),), (0,), {"mrr": 0.5}, {"mrr": 0.1}),
                {"mrr": difference},
                verdict,
                Ratio(1.5, 1.4, 1.6),
                None,
                Ratio(0.8, float("nan"), float("nan")),
            )
            for number, (difference, verdict) in enumerate(zip(differences, verdicts, strict=True))
        ),
        notes=("a note",),
        trained_on=("A processor, 2 cores, torch 2.13.0",),
        seconds_per_seed=60,
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_complete_and_asks_for_nothing_else():
    text = page(made(-0.02, 0.0))
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    names = {tag for tag, _ in tags.seen}
    assert not names & {"script", "link", "img", "iframe"}
    assert not re.search(r"https?:|url\(|@import", text)
    assert not any(name.startswith("on") for _, given in tags.seen for name in given)
    assert "prefers-color-scheme: dark" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        tags.seen
    )


def test_names_are_escaped():
    text = page(made(0.0))
    assert "conve on &lt;umls&gt;" in text
    assert "lr=0 &amp; &lt;b&gt;" in text
    assert "<b>" not in text


def test_the_page_names_the_machine_and_the_seeds():
    assert "seeds 0; trained on A processor, 2 cores, torch 2.13.0" in page(made(0.0))


def test_long_names_fit_into_the_figure():
    found = made(0.0)
    name = ", ".join(f"training.option_{number}={number}" for number in range(9))
    setting = replace(found.alternatives[0].setting, name=name)
    alternatives = (replace(found.alternatives[0], setting=setting),)
    text = page(replace(found, alternatives=alternatives))
    labels = re.findall(r'<text x="20"[^>]*>([^<]*)</text>', text)
    assert labels == [f"{name[:43]}…"]
    assert f">{name}</strong>" in text


def test_the_figure_has_an_interval_for_each_alternative():
    found = made(-0.03, 0.0)
    svg = ET.fromstring(re.search(r"<svg.*</svg>", page(found), re.S)[0])
    groups = svg.findall("g")
    assert [group.get("class") for group in groups] == ["worse", "equivalent"]
    width = float(svg.get("viewBox").split()[2])
    zero = svg.findall("line")[0].get("x1")
    for group, each in zip(groups, (-1, 0), strict=True):
        line, point = group.find("line"), group.find("circle")
        left, middle, right = (float(v) for v in (line.get("x1"), point.get("cx"), line.get("x2")))
        assert 0 <= left < middle < right <= width
        assert (middle < float(zero)) == (each < 0)


@pytest.mark.parametrize(
    ("estimate", "error", "text"),
    [
        (0.0, 0.001, "equivalent: within 1 % of the baseline"),
        (-0.02, 0.002, "worse than the baseline"),
        (0.02, 0.002, "better than the baseline"),
    ],
)
def test_verdicts_in_words(estimate, error, text):
    found = made(estimate, error=error)
    assert explain(found.alternatives[0], found) == text
    assert text in page(found)


def test_open_verdicts_say_what_would_be_enough():
    found = made(0.0, error=0.01)
    text = explain(found.alternatives[0], found)
    assert re.fullmatch(
        r"undecided at a margin of 1 %; about \d+ seeds \([\d.]+ min of training\) "
        r"would probably be enough",
        text,
    )
    better = made(0.008, error=0.006)
    assert explain(better.alternatives[0], better).startswith("not worse by more than 1 %; whether")
    wide = made(0.0, error=0.02, margin=Margin(1e-5, False))
    assert "choose a larger margin" in explain(wide.alternatives[0], wide)


def test_numbers_in_words():
    assert times(Ratio(1.5, 1.4, 1.6)) == "1.50x (1.40-1.60)"
    assert times(None) == "-"
    assert [duration(s) for s in (5, 100, 600, 7200)] == ["5 s", "1.7 min", "10 min", "2.0 h"]
