import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench import machine, results
from bench import run as runner
from bench.harness import Entry, Side, SideFailedError, measure, run_side, sources_of
from bench.machine import KEEP_PAGES, describe_machine
from bench.results import (
    earlier_results,
    is_provisional,
    markdown,
    results_by_name,
    timed_part,
    with_interval,
    write_result,
)
from bench.sources import called_functions, describe_sources, is_stale
from bench.statistics import spread
from bench.table import (
    BEGIN,
    END,
    MEMORY_BEGIN,
    MEMORY_END,
    comparison_table,
    earlier_table,
    headline_table,
    replaced,
    study_table,
)
from bench.table import main as write_tables

ENTRY = Entry(
    "fake",
    "Fake",
    "The same work.",
    candidate=Side("fast", "python a"),
    published=Side("slow", "python b"),
    plain=Side("middle", "python c"),
)
STUDY = Entry(
    "fake", "Fake", "With and without.", Side("fast", "python a"), without=Side("slow", "python b")
)


def fake_run(side, threads, keep_pages, timeout):
    """The slow side takes three times as long, the middle two; all get slower with every run."""
    fake_run.calls.append((side.label, threads, keep_pages))
    drift = 1 + 0.01 * len(fake_run.calls)
    times = {"slow": 3, "middle": 2, "fast": 1}[side.label]
    seconds = times * drift
    return {
        "epoch_seconds": seconds,
        "epoch_cpu_seconds": seconds / 2,
        "peak_memory_bytes": times * 100 << 20,
        "versions": {"torch": "0"},
        "coverage": 0.05 if side.label == "slow" else 1.0,
    }


def fake_sources(entry):
    return describe_sources(["bench/report.py:print_report"])


def quiet(text):
    """Say nothing."""


@pytest.fixture
def result():
    fake_run.calls = []
    measured = measure(
        ENTRY, ("wall", "cpu", "memory"), 7, run=fake_run, sources=fake_sources, say=quiet
    )
    return measured | {"repeat": "make bench"}


def test_sides_alternate_within_adjacent_blocks(result):
    wall = [label for label, threads, keep in fake_run.calls if (threads, keep) == (2, True)]
    assert len(wall) == 21
    blocks = list(zip(wall[::3], wall[1::3], wall[2::3], strict=True))
    assert all(set(block) == {"slow", "middle", "fast"} for block in blocks)
    assert all(first == second[::-1] for first, second in pairwise(blocks))


def test_threads_and_allocator_follow_the_mode(result):
    assert [keep for _, _, keep in fake_run.calls] == [True] * 42 + [False] * 3
    assert [threads for _, threads, _ in fake_run.calls] == [2] * 21 + [1] * 21 + [2] * 3


def test_ratio_is_taken_inside_the_blocks(result):
    ratios = result["summary"]["wall"]["ratios"]
    assert ratios["published"]["count"] == ratios["plain"]["count"] == 7
    assert ratios["published"]["median"] == pytest.approx(3, rel=0.02)
    assert ratios["plain"]["median"] == pytest.approx(2, rel=0.02)
    assert result["summary"]["memory"]["ratios"]["published"]["median"] == pytest.approx(3)


def test_the_result_names_no_host_and_no_path(result, tmp_path):
    path = write_result(result, markdown(result), tmp_path)
    for text in (path.read_text(), path.with_suffix(".md").read_text()):
        assert str(Path.home()) not in text
        assert str(Path.cwd()) not in text


def test_a_result_says_what_was_measured(result):
    assert result["provisional"] is False
    assert [timed_part(result, role) for role in result["sides"]] == ["5 %", "100 %", "100 %"]
    result["runs"][-1]["report"]["coverage"] = 0.01  # a run for memory alone
    assert timed_part(result, "published") == "5 %"
    assert timed_part(result, "hasten") == "100 %"
    assert result["machine"]["cpu"]
    assert result["sources"]["functions"] == {"bench/report.py": ["print_report"]}
    assert result["summary"]["wall"]["ratios"]["plain"]["coverage"] > 0.95
    fake_run.calls = []
    few = measure(ENTRY, ("wall",), 6, run=fake_run, sources=fake_sources, say=quiet)
    assert few["provisional"] is True


def test_few_blocks_are_provisional_whatever_a_result_says(result):
    assert not is_provisional(result)
    fake_run.calls = []
    few = measure(ENTRY, ("wall", "memory"), 6, run=fake_run, sources=fake_sources, say=quiet)
    assert is_provisional(few | {"provisional": False})
    assert is_provisional(result | {"provisional": True})


def test_results_are_never_overwritten_and_repeats_are_shown(result, tmp_path):
    first = write_result(result | {"title": "First"}, "one", tmp_path)
    second = write_result(result | {"title": "Second"}, "two", tmp_path)
    third = write_result(result | {"title": "Third"}, "three", tmp_path)
    assert (first.stem, second.stem) == (
        f"{result['date']}-fake",
        f"{result['date']}-fake-repeat-2",
    )
    assert first.with_suffix(".md").read_text() == "one"
    (found,) = results_by_name(tmp_path).values()
    assert [each["title"] for each in found] == ["Third", "Second", "First"]
    (row,) = comparison_table({"fake": found}, "results").splitlines()[2:]
    assert "| Third |" in row
    assert f"(results/{third.stem}.md)" in row
    assert row.index(f"(results/{second.stem}.md)") < row.index(f"(results/{first.stem}.md)")
    ratios = result["summary"]["wall"]["ratios"]
    both = " and ".join(with_interval(ratios[role]) for role in ("published", "plain"))
    assert f"; also {both} ([" in row


def test_the_newest_result_with_enough_blocks_is_the_row(result, tmp_path):
    write_result(result | {"date": "2001-01-01", "title": "Old"}, "", tmp_path)
    write_result(result | {"date": "2002-02-02", "title": "New"}, "", tmp_path)
    few = {"provisional": True, "title": "Few"}
    write_result(result | {"date": "2003-03-03", **few}, "", tmp_path)
    write_result(result | {"date": "2002-02-02", "name": "other", **few}, "", tmp_path)
    fake_run.calls = []
    study = measure(STUDY, ("wall",), 7, run=fake_run, sources=fake_sources, say=quiet)
    write_result(study | {"date": "2002-02-02", "name": "setting"}, "", tmp_path)
    (tmp_path / "2003-01-01-gpu.json").write_text(json.dumps({"name": "gpu"}))
    found = results_by_name(tmp_path)
    assert [[each["title"] for each in results] for results in found.values()] == [
        ["Few", "New", "Old"], ["Few"], ["Fake"],
    ]  # fmt: skip
    rows = comparison_table(found, "results").splitlines()[2:]
    assert len(rows) == 2
    assert "| New |" in rows[0]
    assert "provisional" not in rows[0]
    assert "provisional" in rows[1]
    assert "| slow, 3" in rows[0]
    assert "| middle, 2" in rows[0]
    assert "| 300 / 200 / 100 |" in rows[0]
    assert "| 7 |" in rows[0]
    assert "| 5 % / 100 % / 100 % |" in rows[0]
    assert f"{result['machine']['cores']} cores" in rows[0]
    assert len(headline_table(found, "results").splitlines()) == 3
    only = {"other": found["other"]}
    assert "No comparison has seven" in headline_table(only, "results")
    assert len(study_table(found, "results").splitlines()) == 3


def test_results_of_one_baseline_are_listed_by_themselves(result, tmp_path):
    ratio = {"median": 2.0, "low": 1.5, "high": 2.5, "count": 2}
    old = {"name": "old", "title": "Old", "date": "2001-01-01", "sides": [{"label": "other"}, {}]}
    old |= {"summary": {"wall": {"ratio": ratio}}}
    write_result(old | {"commit": "0123456789ab"}, "", tmp_path)
    write_result(result, "", tmp_path)
    assert list(results_by_name(tmp_path)) == ["fake"]
    (line,) = earlier_table(earlier_results(tmp_path), "results").splitlines()[2:]
    assert line == "| Old | other | 2 (1.5-2.5) | [2001-01-01](results/2001-01-01-old.md) |"


SOURCE = '''"""About."""
import math
import random

ROWS = 4
PARTS = ROWS * 2
OTHER = 7


class Side:
    """A side."""

    steps = 3

    def run(self):
        """Two."""
        return inner() + PARTS + math.pi

    def not_run(self):
        return 1


def inner():
    return 1


if ROWS:

    def other():
        return 1
'''

MEASURED = [
    "bench/side.py:Side.run",
    "bench/side.py:inner.<locals>.<lambda>",
    "bench/side.py:other",
]


def changed(before, after, root):
    """Whether a result is stale after this change of the code that it measured."""
    file = root / "bench" / "side.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(SOURCE)
    result = {"sources": describe_sources([*MEASURED, "bench/side.py:<module>"], root)}
    assert not is_stale(result, root)
    assert before in SOURCE
    file.write_text(SOURCE.replace(before, after, 1))
    return is_stale(result, root)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return inner()", "return 2 * inner()"),
        ("def inner():\n    return 1", "def inner():\n    return 2"),
        ("    def other():\n        return 1", "    def other():\n        return 2"),
        ("steps = 3", "steps = 4"),
        ("PARTS = ROWS * 2", "PARTS = ROWS * 3"),
        ("ROWS = 4", "ROWS = 5"),
        ("import math\n", "import cmath as math\n"),
        ("def inner", "def outer"),
        ("    def run(self)", "    @staticmethod\n    def run(self)"),
    ],
)
def test_code_that_has_changed_since_makes_a_result_stale(before, after, tmp_path):
    assert changed(before, after, tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("About", "Otherwise"),
        ('"""Two."""\n', '"""Three."""\n\n'),
        ("def inner():\n", "def inner():\n    # a comment\n"),
        ("OTHER = 7", "OTHER = 8"),
        ("def not_run(self):\n        return 1", "def not_run(self):\n        return 2"),
        ("import random\n", ""),
    ],
)
def test_code_that_was_not_measured_makes_no_result_stale(before, after, tmp_path):
    assert not changed(before, after, tmp_path)


def test_a_result_without_its_code_is_stale(tmp_path):
    file = tmp_path / "bench" / "side.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    result = {"sources": describe_sources(MEASURED, tmp_path)}
    file.unlink()
    assert is_stale(result, tmp_path)
    assert is_stale({})


def test_nothing_is_recorded_on_a_busy_machine_or_from_changed_files(monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(runner, "ENTRIES", {"fake": ENTRY})
    monkeypatch.setattr(runner, "measure", lambda *a, **k: measured.append(a))
    monkeypatch.setattr(sys, "argv", ["bench.run", "fake"])
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab+")
    assert runner.main() == 2
    assert "differ from the last commit" in capsys.readouterr().err
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab")
    monkeypatch.setattr(machine, "load", lambda: 0.51)
    assert (
        machine.why_not_recorded(seconds=0) == "the machine is not quiet: a load of 0.51, above 0.5"
    )
    monkeypatch.setattr(runner, "why_not_recorded", lambda: machine.why_not_recorded(seconds=0))
    assert runner.main() == 2
    assert "not quiet" in capsys.readouterr().err
    assert not measured
    monkeypatch.setattr(machine, "load", lambda: 0.5)
    assert machine.why_not_recorded(seconds=0) is None


def test_figures_that_are_not_recorded_need_no_quiet_machine(result, monkeypatch, capsys):
    monkeypatch.setattr(runner, "ENTRIES", {"fake": ENTRY})
    monkeypatch.setattr(runner, "measure", lambda *a, **k: dict(result))
    monkeypatch.setattr(runner, "why_not_recorded", lambda: "busy")
    monkeypatch.setattr(runner, "write_result", lambda *a: pytest.fail("recorded"))
    monkeypatch.setattr(sys, "argv", ["bench.run", "fake", "--no-record"])
    assert runner.main() == 0
    assert "| 7 |" in capsys.readouterr().out


def test_tables_are_written_and_found_stale(result, tmp_path):
    guide = tmp_path / "docs" / "coming-from" / "conve-guide.md"
    guide.parent.mkdir(parents=True)
    guide.write_text(f"{MEMORY_BEGIN}\n{MEMORY_END}\n")
    (tmp_path / "README.md").write_text(f"# x\n{BEGIN}\n{END}\nafter\n")
    assert write_tables(["--check"], tmp_path) == 1
    assert write_tables([], tmp_path) == 0
    assert write_tables(["--check"], tmp_path) == 0
    assert "No result yet" in (tmp_path / "README.md").read_text()
    write_result(result, "", tmp_path / "bench" / "results")
    assert write_tables(["--check"], tmp_path) == 1
    assert write_tables([], tmp_path) == 0
    readme = (tmp_path / "README.md").read_text()
    assert "| Fake |" in readme
    assert readme.endswith("after\n")
    assert "| Fake |" in (tmp_path / "docs" / "benchmarks.md").read_text()


def test_markdown_gives_the_interval_and_the_command(result):
    text = markdown(result)
    assert "`make bench`" in text
    assert "MALLOC_TOP_PAD_" in text
    assert "| 7 |" in text
    assert "slow (torch=0), timed 5 % of an epoch: `python b`" in text


def test_replaced_needs_both_markers():
    assert replaced("a <1> old <2> b", "new", "<1>", "<2>") == "a <1>\n\nnew\n\n<2> b"
    with pytest.raises(SystemExit):
        replaced("a <1> old", "new", "<1>", "<2>")


def test_a_side_runs_in_a_process_of_its_own_with_its_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "7")
    script = tmp_path / "side.py"
    script.write_text(
        "import json, os\n"
        "names = ('MALLOC_TOP_PAD_', 'OMP_NUM_THREADS', 'EXTRA')\n"
        "print('noise')\n"
        "print(json.dumps({name: os.environ.get(name) for name in names}))\n"
    )
    side = Side("x", f"{sys.executable} {script}", {"EXTRA": "1"})
    report = run_side(side, threads=1, keep_pages=True, timeout=60)
    pad = KEEP_PAGES["MALLOC_TOP_PAD_"]
    assert report == {"MALLOC_TOP_PAD_": pad, "OMP_NUM_THREADS": "1", "EXTRA": "1"}
    assert run_side(side, 2, keep_pages=False, timeout=60)["MALLOC_TOP_PAD_"] is None


NOTED = """
import subprocess, sys, threading
from bench.report import Stopwatch, peak_memory_bytes, print_report
from bench.sources import describe_sources
CALL = "from bench.report import Stopwatch; clock = Stopwatch(); "
CALL += "from bench.statistics import spread; spread([1.0]); clock.seconds()"
describe_sources([])
clock = Stopwatch()
thread = threading.Thread(target=peak_memory_bytes)
thread.start()
thread.join()
subprocess.run([sys.executable, "-c", CALL], check=True)
clock.seconds()
counts = dict.fromkeys(["wall", "cpu", "steps", "steps_per_epoch", "examples_per_epoch"], 1)
print_report(**counts, versions={}, threads=1)
"""


def test_the_functions_that_a_side_calls_while_it_is_timed_are_noted(tmp_path):
    script = tmp_path / "side.py"
    script.write_text(NOTED)
    side = Side("x", f"{sys.executable} {script}")
    run_side(side, 1, False, 60, tmp_path)
    called = called_functions(tmp_path)
    assert {"bench/report.py:peak_memory_bytes", "bench/statistics.py:spread"} <= called
    assert not any("describe_sources" in line or "print_report" in line for line in called)
    assert not any("sitecustomize" in line for line in called)
    entry = Entry("fake", "Fake", "The same work.", candidate=side)
    assert "spread" in sources_of(entry)["functions"]["bench/statistics.py"]


def test_the_functions_of_an_epoch_are_those_of_the_timed_part(tmp_path):
    command = f"python -m hasten train sasrec --epochs 2 --quiet --json --out {tmp_path / 'run'}"
    run_side(Side("hasten", command), 1, False, 120, tmp_path)
    called = called_functions(tmp_path)
    assert "src/hasten/training/trainer.py:Trainer.train_phase" in called
    assert not any("src/hasten/cli" in line or "readers" in line for line in called)


def test_a_side_that_calls_nothing_of_ours_is_an_error(tmp_path):
    script = tmp_path / "side.py"
    script.write_text("print('{}')")
    with pytest.raises(SideFailedError, match="called no function"):
        sources_of(Entry("fake", "Fake", "", candidate=Side("x", f"{sys.executable} {script}")))


@pytest.mark.parametrize("code", ["raise SystemExit('broken here')", "print('no report')"])
def test_a_side_without_a_report_is_an_error_with_its_output(tmp_path, code):
    script = tmp_path / "side.py"
    script.write_text(code)
    with pytest.raises(SideFailedError, match=r"broken here|no report"):
        run_side(Side("x", f"{sys.executable} {script}"), 1, keep_pages=False, timeout=60)


def test_median_interval_is_the_order_statistics():
    seven = spread([5, 1, 7, 3, 2, 6, 4])
    assert (seven["median"], seven["low"], seven["high"]) == (4, 1, 7)
    assert seven["coverage"] == pytest.approx(1 - 2 / 2**7, abs=1e-4)
    nine = spread(range(1, 10))
    assert (nine["low"], nine["high"]) == (2, 8)
    assert nine["coverage"] == pytest.approx(1 - 2 * 10 / 2**9, abs=1e-4)
    assert spread([2.0])["coverage"] == 0
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_machine_says_what_speed_depends_on():
    machine = describe_machine()
    assert machine["cpu"]
    assert machine["cores"] >= 1


def test_a_result_of_uncommitted_changes_is_no_record(monkeypatch, tmp_path):
    records, drafts = tmp_path / "records", tmp_path / "drafts"
    monkeypatch.setattr(results, "RESULTS", records)
    monkeypatch.setattr(results, "UNCOMMITTED", drafts)
    result = {"date": "2001-01-01", "name": "entry"}
    assert write_result(result | {"commit": "abc+"}, "", records).parent == drafts
    assert write_result(result | {"commit": "abc"}, "", records).parent == records
