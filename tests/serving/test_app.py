"""The service: answers equal those of the library, batches, messages, and a graceful end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.request

import numpy as np
import pytest

import hasten
from tests.contract.cases import CASES

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

import httpx
import uvicorn

from hasten.cli.main import main
from hasten.serving.app import create_app
from hasten.serving.batching import Batcher, Overloaded
from hasten.serving.engine import Engine
from hasten.serving.server import _listen

SMALL = {"training.epochs": 1, "training.batch_size": 8, "device": "cpu", "threads": 1}
BY_LABEL = {case.label: case for case in CASES}


def trained(label, folder):
    case = BY_LABEL[label]
    given = {**SMALL, **case.settings} if case.trains else dict(case.settings)
    out = folder / label
    return hasten.train(case.model, case.data, settings=given, out=str(out), quiet=True).loaded


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by label, trained once."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(label):
        if label not in made:
            made[label] = trained(label, folder)
        return made[label]

    return get


def as_bytes(body):
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def ask(run, *requests, **options):
    """Status and body of each (path, body), all asked at the same time; GET without a body."""

    async def all_of_them():
        app = create_app(Engine(run), **options)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            header = {"content-type": "application/json"}
            asked = [
                client.get(path)
                if body is None
                else client.post(path, content=as_bytes(body), headers=header)
                for path, body in requests
            ]
            found = await asyncio.gather(*asked)
            return found, (await client.get("/health")).json()

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("label", ["sasrec-ce", "tisasrec-events", "bprmf", "slim", "pop"])
def test_users_get_the_recommendations_of_the_library(label, runs):
    run = runs(label)
    users = run.dataset.users.labels.to_pylist()[:20]
    found, health = ask(run, *[("/recommend", {"user": user, "k": 4}) for user in users])
    expected = run.recommend(users, 4).to_table().to_pylist()
    for user, each in zip(users, found, strict=True):
        rows = [row for row in expected if row["user_id"] == user]
        items = each.json()["items"]
        np.testing.assert_allclose(
            [item["score"] for item in items], [row["score"] for row in rows], 1e-4, 1e-5
        )
        assert [item["item_id"] for item in items] == [row["item_id"] for row in rows]
    assert health["questions"] == len(users)
    assert health["batches"] < len(users)


def test_histories_exclusions_and_unknown_items(runs):
    run = runs("sasrec-ce")
    history = [3, "4", 5]
    found, _ = ask(
        run,
        ("/recommend", {"history": [*history, "no such item"], "k": 30, "exclude": [7, "?"]}),
        ("/recommend", {"history": history, "k": 3, "include_seen": True}),
        wait=0.05,
    )
    first, second = (each.json() for each in found)
    items = [item["item_id"] for item in first["items"]]
    assert first["ignored"] == 2
    assert not {3, 4, 5, 7} & set(items)
    assert len(items) == len(run.dataset.items) - 4
    expected = run.recommend(histories=history, topk=30, block=[7])
    assert items == expected.to_table()["item_id"].to_pylist()
    seen = run.recommend(histories=history, topk=3, exclude_seen=False).to_table()["item_id"]
    assert [item["item_id"] for item in second["items"]] == seen.to_pylist()


def test_times_order_a_history(runs):
    run = runs("tisasrec-ce")
    found, _ = ask(run, ("/recommend", {"history": [3, 4, 5], "times": [30, 10, 20.5], "k": 3}))
    expected = run.recommend(histories=[3, 4, 5], times=[30, 10, 20.5], topk=3).to_table()
    items = [item["item_id"] for item in found[0].json()["items"]]
    assert items == expected["item_id"].to_pylist()


def test_features_of_the_events_of_a_history(runs):
    run, history = runs("tisasrec-events"), [3, 4, 5]
    cells = {"device": ["phone", None, "telex"], "dwell": [12.5, "7", None]}
    found, _ = ask(
        run,
        ("/recommend", {"history": [3, "?", 4, 5], "times": [30, 1, 10, 20.5], "k": 3,
                        "features": {n: [c[0], None, *c[1:]] for n, c in cells.items()}}),
        ("/recommend", {"history": history, "k": 3}),
        ("/recommend", {"history": history, "features": {"device": ["phone"]}}),
        ("/recommend", {"history": history, "features": {"devise": [1, 2, 3]}}),
        ("/recommend", {"history": history, "features": {"dwell": [1, 2, "long"]}}),
        ("/recommend", {"user": 1, "features": {"device": ["phone"]}}),
    )  # fmt: skip
    expected = run.recommend(
        histories=history, times=[30, 10, 20.5], features=cells, topk=3
    ).to_table()
    plain = run.recommend(histories=history, topk=3).to_table()
    for each, wanted in zip(found, (expected, plain), strict=False):
        items = each.json()["items"]
        assert [item["item_id"] for item in items] == wanted["item_id"].to_pylist()
        np.testing.assert_allclose([item["score"] for item in items], wanted["score"], 1e-4)
    assert [each.json().get("ignored") for each in found[:2]] == [2, 0]  # an item and a telex
    told = [each.json()["error"]["message"] for each in found[2:]]
    assert (
        told[0] == told[3] == "values of device belong to a history, with one for each of its items"
    )
    assert told[1].startswith("the run has no event feature 'devise'; did you mean 'device'?")
    assert told[2] == "event feature dwell: 'long' is not a number"
    assert {each.status_code for each in found[2:]} == {422}


@pytest.mark.parametrize("label", ["sasrec-ce", "conve"])
def test_similar_items_and_entities(label, runs):
    run = runs(label)
    found, _ = ask(run, ("/similar", {"item": 3, "k": 4}), ("/similar", {"item": "no", "k": 4}))
    expected = run.similar_items(3, 4).to_table()
    items = found[0].json()["items"]
    assert [item["item_id"] for item in items] == expected["similar_id"].to_pylist()
    assert found[1].status_code == 404


@pytest.mark.parametrize("label", ["conve", "hgt"])
def test_triples_are_completed_as_by_the_library(label, runs):
    run = runs(label)
    relation = run.dataset.relations.labels[0].as_py()
    questions = [{"head": 3, "relation": relation}, {"relation": relation, "tail": 5}]
    bodies = [{**question, "k": 4} for question in questions]
    marked = {**bodies[0], "include_known": True, "k": 30}
    found, _ = ask(run, *[("/predict", body) for body in (*bodies, marked)], wait=0.05)
    for number, known in enumerate(("filter", "filter", "mark")):
        question = questions[number % 2]
        rows = run.predict([question], 30 if known == "mark" else 4, known=known).to_table()
        triples = found[number].json()["triples"]
        for name in ("head", "relation", "tail", "known"):
            assert [each[name] for each in triples] == rows[name].to_pylist(), name
        scores = [each["score"] for each in triples]
        np.testing.assert_allclose(scores, rows["score"].to_pylist(), 1e-4, 1e-5)


MISTAKES = [
    ("sasrec-ce", "/recommend", {}, 422, "either user or history"),
    ("sasrec-ce", "/recommend", {"user": "nobody"}, 404, "give a history"),
    ("sasrec-ce", "/recommend", {"history": ["nothing"]}, 404, "no item of the history is known"),
    (
        "sasrec-ce",
        "/recommend",
        {"user": 1, "topk": 3},
        422,
        "topk: no such field (there are user, history,",
    ),
    ("sasrec-ce", "/recommend", {"user": 1, "k": 0}, 422, "k: Input should be greater than"),
    ("sasrec-ce", "/recommend", {"history": [1], "times": [1, 2]}, 422, "times belong to"),
    ("sasrec-ce", "/predict", {"head": 1, "relation": 2}, 422, "completes no triples"),
    ("sasrec-ce", "/recommendations", {}, 404, "there are /recommend, "),
    ("sasrec-ce", "/recommend", None, 405, "Method Not Allowed"),
    ("bprmf", "/recommend", {"history": [1]}, 422, "ask for a known user"),
    ("slim", "/similar", {"item": 1}, 422, "scores without vectors"),
    ("conve", "/recommend", {"user": 1}, 422, "recommends nothing: /predict"),
    ("conve", "/predict", {"relation": "next"}, 422, "either head or tail"),
    ("conve", "/predict", {"relation": "nxt", "head": 1}, 404, "'nxt' is unknown to the run; ther"),
    ("conve", "/predict", {"head": 1, "tail": 2}, 422, "relation is missing"),
    ("conve", "/predict", {"head": 1, "relation": [2]}, 422, "relation: must be text or a whole"),
]


@pytest.mark.parametrize("label", ["sasrec-ce", "bprmf", "slim", "conve"])
def test_messages(label, runs):
    mine = [mistake for mistake in MISTAKES if mistake[0] == label]
    found, _ = ask(runs(label), *[(path, body) for _, path, body, _, _ in mine])
    for each, (*_, status, words) in zip(found, mine, strict=True):
        assert each.status_code == status
        assert words in each.json()["error"]["message"]


def test_bodies_that_are_no_json_objects(runs):
    found, _ = ask(runs("sasrec-ce"), ("/recommend", [1, 2]), ("/recommend", b'{"user": 1,}'))
    told = [each.json()["error"]["message"] for each in found]
    assert told[0].startswith("the body must be a JSON object")
    assert told[1].startswith("the body is not JSON: ")
    assert all(each.status_code == 422 for each in found)


def test_the_page_lists_every_request_and_loads_nothing(runs):
    found, _ = ask(runs("sasrec-ce"), ("/docs", None), ("/openapi.json", None))
    page = found[0].text
    for path in found[1].json()["paths"]:
        assert path in page
    assert "http" not in page.replace("http-equiv", "")
    assert "item ids, oldest first" in page


def test_a_failed_batch_and_a_full_queue():
    def fail(_):
        raise ValueError("broken")

    async def failing():
        async with Batcher(fail, 0.01, 4, 8) as batcher:
            found = await asyncio.gather(*map(batcher.ask, range(3)), return_exceptions=True)
            assert [str(error) for error in found] == ["broken"] * 3
            assert batcher.batches == 1

    async def full():
        async with Batcher(lambda rows: rows, 0.01, 4, 2) as batcher:
            found = await asyncio.gather(*map(batcher.ask, range(4)), return_exceptions=True)
            assert [isinstance(each, Overloaded) for each in found] == [False, False, True, True]
            assert found[:2] == [0, 1]

    asyncio.run(failing())
    asyncio.run(full())


def test_a_server_answers_what_it_has_before_it_stops(runs):
    engine = Engine(runs("sasrec-ce"))
    plain = engine.answer
    started, told_to_stop = threading.Event(), threading.Event()

    def slow(questions):
        started.set()
        assert told_to_stop.wait(60)
        return plain(questions)

    engine.answer = slow
    listening = _listen("127.0.0.1", 0)
    config = uvicorn.Config(create_app(engine), log_level="warning")
    server = uvicorn.Server(config)
    shut_down = server.shutdown

    async def shutdown(sockets):
        told_to_stop.set()
        await shut_down(sockets)

    server.shutdown = shutdown
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    answers = []

    def post():
        where = f"http://127.0.0.1:{listening.getsockname()[1]}/recommend"
        header = {"content-type": "application/json"}
        request = urllib.request.Request(where, json.dumps({"user": 1}).encode(), header)
        with urllib.request.urlopen(request, timeout=60) as got:
            answers.append(json.load(got))

    client = threading.Thread(target=post)
    client.start()
    assert started.wait(60)
    server.should_exit = True
    client.join(60)
    thread.join(60)
    assert not thread.is_alive()
    assert len(answers[0]["items"]) == 10


def test_answers_are_sent_at_once():
    """asyncio disables Nagle's algorithm only if the socket names its protocol."""

    async def option():
        found = asyncio.get_running_loop().create_future()
        with _listen("127.0.0.1", 0) as listening:
            where = listening.getsockname()
            server = await asyncio.start_server(
                lambda _, writer: found.set_result(writer), sock=listening
            )
            _, client = await asyncio.open_connection(*where)
            writer = await found
            got = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in (writer, client):
                each.close()
                await each.wait_closed()
            server.close()
            await server.wait_closed()
            return got

    assert asyncio.run(option())


def test_an_address_that_is_taken(runs, capsys):
    with _listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(runs("sasrec-ce").path), "--port", port]) == 2
    assert "cannot listen there" in capsys.readouterr().err
