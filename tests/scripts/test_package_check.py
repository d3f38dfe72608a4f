"""The checks of the sdist and the wheel find what is missing and what does not belong there."""

from email.message import Message

from scripts.package_check import metadata_problems, sdist_problems, wheel_problems
from scripts.wheel_check import ROOT, first_example

SDIST = [
    "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md",
    "pyproject.toml", "setup.cfg", "src/hasten/api.py", "src/hasten.egg-info/SOURCES.txt",
]  # fmt: skip


def test_development_files_and_missing_files_of_an_sdist_are_found():
    assert sdist_problems(SDIST) == []
    assert sdist_problems([*SDIST[1:], "tests/test_api.py"]) == [
        "the sdist lacks CHANGELOG.md",
        "the sdist holds tests/test_api.py, which is not part of the package",
    ]


def test_missing_package_data_of_a_wheel_is_found():
    source = ["hasten/api.py", "hasten/py.typed"]
    assert wheel_problems([*source, "hasten-1.dist-info/METADATA"], source) == []
    assert wheel_problems(["hasten/api.py", "bench/run.py"], source) == [
        "the wheel lacks hasten/py.typed",
        "the wheel holds bench/run.py, which is not part of the package",
    ]


def test_incomplete_metadata_and_an_old_citation_are_found():
    metadata = Message()
    for name in ("Name", "Summary", "Author", "License-File", "Keywords", "Classifier"):
        metadata[name] = "x"
    for name in ("Requires-Python", "Requires-Dist", "Description-Content-Type"):
        metadata[name] = "x"
    metadata["Version"], metadata["License-Expression"] = "1.1.0", "Apache-2.0"
    assert metadata_problems(metadata, {"version": "1.1.0", "license": "Apache-2.0"}) == []
    del metadata["Keywords"]
    assert metadata_problems(metadata, {"version": "1.0.0", "license": "Apache-2.0"}) == [
        "the metadata lacks Keywords",
        "CITATION.cff: version is 1.0.0, not 1.1.0",
    ]


def test_the_first_example_of_the_readme_is_found():
    lines = first_example((ROOT / "README.md").read_text(encoding="utf-8"))
    assert all(line.startswith("hasten ") for line in lines)
    assert [line.split()[1] for line in lines] == ["data", "data", "train", "recommend"]
