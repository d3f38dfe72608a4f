import json

import pytest

from bench import scaling


def test_rounds_alternate_and_ratios_are_within_rounds(tmp_path, monkeypatch, capsys):
    asked = []
    rates = iter([100.0, 190.0, 99.0, 50.0, 100.0, 52.0])

    def run_once(side, options):
        asked.append(side)
        return next(rates)

    monkeypatch.setattr(scaling, "run_once", run_once)
    assert scaling.main(["--devices", "1", "2", "--rounds", "2", "--provisional"], tmp_path) == 0
    assert asked == [1, 2, "launched", "launched", 2, 1]
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert result["against_one"]["2"]["low"] == pytest.approx(1.9)
    assert result["against_one"]["2"]["high"] == pytest.approx(100 / 52)
    assert "| 1 under torchrun |" in path.with_suffix(".md").read_text()
    assert "not quiet" in capsys.readouterr().out


def test_one_process_is_what_others_are_compared_with(tmp_path):
    with pytest.raises(SystemExit):
        scaling.main(["--devices", "2", "4"], tmp_path)
    with pytest.raises(SystemExit):
        scaling.main(["--epochs", "2"], tmp_path)
