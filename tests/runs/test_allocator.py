"""Settings of the process, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAME = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


@pytest.mark.parametrize(("given", "expected"), [(None, "64"), ("512", "512")])
def test_few_products_stay_prepared_unless_the_user_says_otherwise(given, expected):
    code = f"""
import os
from hasten.runs.allocator import configure_process

configure_process()
print(os.environ["{NAME}"])
"""
    environment = {name: value for name, value in os.environ.items() if name != NAME}
    if given is not None:
        environment[NAME] = given
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
