"""Reports in a real browser: wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hasten
from tests.reporting import browser
from tests.reporting.browser import Browser

pytestmark = pytest.mark.skipif(browser.missing() is not None, reason=browser.missing() or "")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser.started(tmp_path_factory.mktemp("profile")) as found:
        found.call("url", {"url": "about:blank"})
        found.requests()
        yield found


@pytest.fixture(scope="module")
def pages(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Reports of items, of triples and of two runs."""
    folder = tmp_path_factory.mktemp("pages")
    made = []
    for names in (("a",), ("triples",), ("a", "b")):
        made.append(folder / f"{'-'.join(names)}.html")
        hasten.report(*(runs / name for name in names), out=made[-1])
    return made


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_and_load_nothing(
    chromium: Browser, pages: list[Path], width: int, dark: bool
) -> None:
    for page in pages:
        chromium.open(page, width, dark=dark)
        assert chromium.evaluate("document.documentElement.scrollWidth") == width
        back = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, back[4:-1].split(","))) < 100) == dark
        small = chromium.evaluate(
            "[...document.querySelectorAll('p, td, th, dd, figcaption')].filter("
            "e => parseFloat(getComputedStyle(e).fontSize) < 12).length"
        )
        assert small == 0
        chromium.evaluate("document.querySelectorAll('details').forEach(e => e.open = true) || 1")
        assert chromium.evaluate("document.documentElement.scrollWidth") == width
        assert chromium.console() == []
        assert set(chromium.requests()) <= {page.resolve().as_uri(), "data:,"}
