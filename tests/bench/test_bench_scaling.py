import json

import pytest

from bench import column_sharding, scaling


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


def test_a_layer_in_columns_gives_what_a_repeated_one_gives(shared_data, tmp_path):
    if not (shared_data / "cf_amazon-book_noKG").is_dir():
        pytest.skip("the pairs of Amazon-book are not at hand")
    column_sharding.main(["--scale", "0.002", "--rounds", "2", "--provisional"], tmp_path)
    (file,) = tmp_path.glob("*-column-sharding-2.json")
    found = json.loads(file.read_text())
    assert found["settings"]["differ"] < 1e-6
    assert found["settings"]["edges"] > 1000
    assert "times as fast" in file.with_suffix(".md").read_text()
