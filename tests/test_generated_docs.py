"""The generated parts of the documentation are those that make docs would write."""

from bench.table import main as tables
from experiments.quality import main as quality
from experiments.recipes import main as recipes
from experiments.summary import main as experiments
from scripts.annotated_tree import main as trees
from scripts.check_figures import main as figures
from scripts.configuration_reference import main as configuration
from tests.device.table import main as devices


def test_configuration_reference_is_current():
    assert configuration(["--check"]) == 0


def test_benchmark_tables_are_current():
    assert tables(["--check"]) == 0


def test_experiments_page_is_current():
    assert experiments(["--check"]) == 0


def test_annotated_trees_are_current():
    assert trees(["--check"]) == 0


def test_recipes_are_current():
    assert recipes(["--check"]) == 0


def test_the_table_of_quality_is_current():
    assert quality(["--check"]) == 0


def test_the_table_of_devices_is_current():
    assert devices(["--check"]) == 0


def test_figures_of_the_pages_are_in_the_records_beside_them():
    assert figures() == 0
