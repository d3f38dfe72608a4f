import re
import shlex

import pytest

from bench import without
from bench.entries import ENTRIES
from bench.without import TAKE_AWAY
from hasten.config_loading.build import build_config


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_commands_of_an_entry_are_whole(entry):
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", entry.name)
    for side in entry.sides.values():
        words = shlex.split(side.command.format(threads=2))
        assert words[words.index("--threads") + 1] == "2"
        if "--without" in words:
            assert words[words.index("--without") + 1] in TAKE_AWAY


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_settings_of_hasten_are_known_ones(entry):
    words = shlex.split(entry.candidate.command)
    if "bench.hasten_side" not in words:
        return
    sets = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    model = words[words.index("--model") + 1] if "--model" in words else "sasrec"
    config = build_config(model, None, None, sets, {})
    if hasattr(config.model, "max_length"):
        assert config.model.max_length == (50 if re.search("beauty|-50-", entry.name) else 200)
    assert entry.name.startswith((model, "setting-"))


@pytest.mark.parametrize("name", TAKE_AWAY)
def test_what_is_taken_away_is_still_there(name, monkeypatch):
    replaced = []
    monkeypatch.setattr(
        without, "_replace", lambda module, name, value: replaced.append((module, name))
    )
    TAKE_AWAY[name]()
    assert replaced
    assert all(callable(getattr(module, attribute)) for module, attribute in replaced)
