import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from experiments import queue as queue_module
from experiments.definitions import EXPERIMENTS, select
from experiments.experiment import Experiment, seeds
from experiments.queue import Queue, QueueBusyError, judge_again, locked, main, run_queue
from experiments.summary import main as summarise


def test_a_run_leaves_one_result_and_is_not_repeated(queue, tmp_path):
    both = seeds("toy", "sasrec", "beauty", "--lr 1", count=2)
    assert [queue.state(e) for e in both] == ["waiting", "waiting"]
    assert run_queue(queue, both) == 0
    assert [queue.state(e) for e in both] == ["done", "done"]
    text = (tmp_path / "results" / "toy-seed1.json").read_text()
    record = json.loads(text)
    assert record["valid"] == {"ndcg@10": 0.21}
    assert "test" not in record
    config = {"data": {"path": "beauty"}, "seed": 1, "evaluation": {"metrics": ["ndcg@10"]}}
    assert record["config"] == config
    assert record["curve"][1] == {"epoch": 2, "loss": 0.5, "seconds": 2.0, "ndcg@10": 0.2}
    assert record["versions"] == {"torch": "0"}
    assert str(tmp_path) not in text
    (queue.folder(both[0]) / "started").unlink()
    assert run_queue(queue, both) == 0
    assert not (queue.folder(both[0]) / "started").exists()


def test_finished_runs_are_judged_by_protocols_that_came_later(queue):
    (before,) = seeds("toy", "sasrec", "beauty", "--lr 1", count=1)
    (after,) = seeds("toy", "sasrec", "beauty", "--lr 1", count=1, also=("--set a=1", "--set b=2"))
    (waiting,) = seeds("never", "sasrec", "beauty", "--lr 1", count=1, also=("--set a=1",))
    assert run_queue(queue, [before]) == 0
    trained = json.loads(queue.result(before).read_text())
    assert trained["also"] == []
    assert judge_again(queue, [after, waiting]) == 0
    judged = json.loads(queue.result(after).read_text())
    assert [also["protocol"] for also in judged["also"]] == ["--set a=1", "--set b=2"]
    assert {**judged, "also": []} == trained
    assert not queue.result(waiting).exists()


def test_what_has_no_loss_and_what_embeddings_are_worth_are_recorded(queue):
    (one,) = seeds("toy", "degree", "beauty", "--counts", count=1, embeddings=True)
    assert run_queue(queue, [one]) == 0
    record = json.loads(queue.result(one).read_text())
    assert record["embeddings"]["links"] == {"auroc": 0.8, "ap": 0.7}
    assert record["embeddings"]["part"] == "valid"
    assert record["embeddings"]["problems"] == ["collapsed"]
    assert "what" not in record["embeddings"]  # a path
    assert [sorted(entry) for entry in record["curve"]] == [["epoch", "ndcg@10", "seconds"]] * 2


def test_protocols_that_not_every_seed_was_judged_by_say_so(queue, tmp_path):
    first, second = seeds("toy", "sasrec", "beauty", "--lr 1", count=2, also=("--set a=1",))
    assert run_queue(queue, [first]) == 0
    assert run_queue(queue, [replace(second, also=())]) == 0
    page = (tmp_path / "docs" / "experiments.md").read_text()
    assert "(--set a=1, 1 of 2 seeds)" in page
    assert judge_again(queue, [first, second]) == 0
    assert "(--set a=1)" in (tmp_path / "docs" / "experiments.md").read_text()


def test_changed_options_are_another_run(queue):
    (old,) = seeds("toy", "sasrec", "beauty", "--lr 1", count=1)
    (new,) = seeds("toy", "sasrec", "beauty", "--lr 2", count=1)
    assert run_queue(queue, [old]) == 0
    assert queue.state(new) == "changed"
    assert queue.folder(new) != queue.folder(old)
    assert run_queue(queue, [new]) == 0
    assert json.loads(queue.result(new).read_text())["options"] == ["--lr", "2"]


def test_the_deadline_stops_a_run_and_the_next_queue_goes_on(queue):
    slow = seeds("slow", "sasrec", "beauty", "--slow", count=1)
    started = time.monotonic()
    assert run_queue(queue, slow, max_time=2.0) == 143
    assert time.monotonic() - started < 30
    assert queue.state(slow[0]) == "started"
    assert run_queue(queue, slow) == 0
    assert queue.state(slow[0]) == "done"


def test_several_runs_at_once(queue):
    slow, quick = (
        seeds(name, "sasrec", "beauty", option, count=2)
        for name, option in (("slow", "--slow"), ("quick", "--lr 1"))
    )
    assert run_queue(queue, [*slow, *quick], max_time=20.0, jobs=4) == 143
    assert [queue.state(e) for e in (*slow, *quick)] == ["started"] * 2 + ["done"] * 2
    assert run_queue(queue, [*slow, *quick], jobs=2) == 0
    assert {queue.state(e) for e in (*slow, *quick)} == {"done"}


def test_a_failed_run_does_not_stop_the_others(queue):
    chosen = [
        Experiment("bad", "sasrec", "beauty", ("--fail",), 0),
        Experiment("good", "sasrec", "beauty", (), 0),
    ]
    assert run_queue(queue, chosen) == 1
    assert [queue.state(e) for e in chosen] == ["started", "done"]


def test_two_queues_do_not_run_at_once(queue):
    with locked(queue.runs), pytest.raises(QueueBusyError, match="another queue"):
        run_queue(queue, seeds("toy", "sasrec", "beauty", "", count=1))


def test_a_run_left_behind_by_a_killed_queue_still_counts(queue, tmp_path):
    script = (
        "import sys; from pathlib import Path; from experiments import queue as q\n"
        "from experiments.experiment import seeds\n"
        f"q.plain_file = lambda name: Path({str(tmp_path)!r}) / name\n"
        f"it = q.Queue(Path({str(queue.runs)!r}), Path({str(queue.results)!r}), "
        f"Path({str(queue.docs)!r}), {tuple(queue.command)!r})\n"
        "q.run_queue(it, seeds('slow', 'sasrec', 'beauty', '--slow', count=1))\n"
    )
    left = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        (run,) = seeds("slow", "sasrec", "beauty", "--slow", count=1)
        deadline = time.monotonic() + 60
        while not (queue.folder(run) / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        left.kill()
        left.wait()
        with pytest.raises(QueueBusyError):
            run_queue(queue, [run])
    finally:
        subprocess.run(["kill", "-KILL", "--", f"-{left.pid}"], check=True)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert run_queue(queue, [run]) == 0
            break
        except QueueBusyError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_result_is_committed_with_its_page_and_nothing_else(queue, tmp_path):
    def git(*arguments):
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.split()

    git("init", "-q")
    git("config", "user.name", "a")
    git("config", "user.email", "a@b.c")
    (tmp_path / "other.json").write_text("{}")
    git("add", "other.json")
    assert run_queue(queue, seeds("toy", "sasrec", "beauty", "", count=2), commit=True) == 0
    assert git("ls-tree", "-r", "--name-only", "HEAD") == [
        "docs/experiments.md",
        "docs/experiments/toy.svg",
        "results/toy-seed0.json",
        "results/toy-seed1.json",
    ]
    assert git("rev-list", "--count", "HEAD") == ["2"]


def test_list_names_every_experiment(queue, capsys):
    assert main(["list"], queue) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EXPERIMENTS)
    assert all(line.startswith("waiting") for line in lines)


def test_names_are_unique_and_patterns_select(queue, capsys):
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert {e.group for e in select("tisasrec-ml-1m-ce", EXPERIMENTS)} == {
        "tisasrec-ml-1m-20-epochs"
    }
    with pytest.raises(SystemExit):
        main(["list", "--only", "no such experiment"])
    with pytest.raises(SystemExit):
        main(["list", "--only", "umls", "--only", "no such experiment"])
    capsys.readouterr()
    assert main(["list", "--only", "kinship", "--only", "umls", "--only", "conve-umls"], queue) == 0
    listed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert listed == [name for name in names if "kinship" in name or "umls" in name]


def test_sigterm_saves_the_run_and_ends_the_queue(queue, tmp_path):
    run = seeds("slow", "sasrec", "beauty", "--slow", count=1)[0]
    script = (
        "import sys; from pathlib import Path; from experiments import queue as q\n"
        "from experiments.experiment import seeds\n"
        f"q.plain_file = lambda name: Path({str(tmp_path)!r}) / name\n"
        "q.EXPERIMENTS = seeds('slow', 'sasrec', 'beauty', '--slow', count=1)\n"
        f"sys.exit(q.main(['run'], q.Queue(Path({str(queue.runs)!r}), "
        f"Path({str(queue.results)!r}), Path({str(queue.docs)!r}), {tuple(queue.command)!r})))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while not (queue.folder(run) / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) in (130, 143)
    assert queue.state(run) == "started"


def test_summary_gives_mean_and_deviation_and_says_when_it_is_stale(queue, tmp_path):
    docs = queue.docs
    assert summarise([], queue.results, docs) == 0
    assert "No result yet" in (docs / "experiments.md").read_text()
    assert run_queue(queue, seeds("toy", "sasrec", "beauty", "", count=3)) == 0
    assert summarise(["--check"], queue.results, docs) == 0
    (docs / "experiments.md").write_text("old")
    assert summarise(["--check"], queue.results, docs) == 1
    assert summarise([], queue.results, docs) == 0
    page = (docs / "experiments.md").read_text()
    assert "| ndcg@10 0.2100 ± 0.0100 | sealed |" in page
    picture = docs / "experiments" / "toy.svg"
    first = picture.read_bytes()
    assert len(first) < 60_000
    assert summarise([], queue.results, docs) == 0
    assert picture.read_bytes() == first


@pytest.mark.slow
def test_hasten_goes_on_where_a_killed_queue_left_it(tmp_path, monkeypatch):
    data = tmp_path / "ring.csv"
    rows = [f"{u},{(u + place) % 50},{place}" for u in range(300) for place in range(12)]
    data.write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    monkeypatch.setattr(queue_module, "plain_file", lambda name: data)
    docs = tmp_path / "docs"
    docs.mkdir()
    queue = Queue(tmp_path / "runs", tmp_path / "results", docs)
    options = "--epochs 600 --set model.width=16 --eval-every 200"
    (run,) = seeds("ring", "sasrec", "ring", options, count=1)
    # a busy machine may not get as far as the run's folder in the shortest time
    for limit in (5.0, 10.0, 20.0, 40.0):
        assert run_queue(queue, [run], max_time=limit) == 143
        if queue.state(run) == "started":
            break
    assert queue.state(run) == "started"
    assert run_queue(queue, [run]) == 0
    text = queue.result(run).read_text()
    record = json.loads(text)
    assert record["epochs"] == 600
    assert [entry["epoch"] for entry in record["curve"]] == list(range(1, 601))
    assert record["valid"]["ndcg@10"] > 0.3
    assert "test" not in record
    assert str(tmp_path) not in text
