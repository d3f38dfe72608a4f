# hasten: everything is reached from here; "make help" lists it.
# Needs GNU make 3.81 or newer, Python 3.11 or newer and a package registry.

PYTHON ?= python3
# More options for pip, such as another package index that has a CPU-only torch.
PIP_FLAGS ?=
PYTEST_FLAGS ?=
# Processes of the test suite (each up to a gigabyte and a half; 0 runs it in one, for a debugger).
TEST_PROCESSES ?= 2
# The Python of gpu-check: another one may hold the CUDA build of torch.
GPU_PYTHON ?= $(VENV)/bin/python
# Options for uv in test-wheel and test-matrix, where torch is taken in its CPU build.
UV_FLAGS ?= --torch-backend cpu
# The tests of test-matrix, which need no extra.
MATRIX_TESTS ?= tests/cli tests/compatibility tests/contract tests/data tests/inference tests/runs \
	tests/test_api.py tests/test_run.py
ARGS ?=

# The environment has its own compiled files; without them every process would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEVELOPMENT := $(VENV)/.installed-development
RECBOLE := .venvs/recbole
RECBOLE_READY := $(RECBOLE)/.installed
PYKEEN := .venvs/pykeen
PYKEEN_READY := $(PYKEEN)/.installed
# The tensors of the tests are too small to share, and a busy machine makes sharing slow.
ONE_THREAD := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}
PIP_INSTALL := -m pip install --quiet --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS)

.PHONY: help demo test test-slow test-wheel test-matrix check format bench bench-env gpu-check \
	mps-check docs site experiments experiments-influence clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## train on the built-in sample and print recommendations (sets itself up)
	@$(BIN)/python scripts/demo.py

test: $(DEVELOPMENT) ## the test suite, without the tests that take minutes
	@$(ONE_THREAD) $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_FLAGS)

test-slow: $(DEVELOPMENT) ## the tests that take minutes
	@$(ONE_THREAD) HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-random} \
	  $(BIN)/python -m pytest $(PYTEST_FLAGS) -m slow

check: $(DEVELOPMENT) ## formatting, lint, import layers, strict types, figures of the pages, package
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy -p hasten -p bench -p experiments -p scripts
	$(BIN)/python -m scripts.check_figures
	$(BIN)/python -m scripts.package_check

test-wheel: $(DEVELOPMENT) ## the wheel in an empty environment: the README's first example
	@$(BIN)/python -m scripts.wheel_check --uv-flags="$(UV_FLAGS)" $(ARGS)

test-matrix: $(DEVELOPMENT) ## the same and tests, on each Python and with the lowest versions
	@$(ONE_THREAD) $(BIN)/python -m scripts.wheel_check --python 3.11 --python 3.12 --python 3.13 \
	  --lowest --uv-flags="$(UV_FLAGS)" $(MATRIX_TESTS)

format: $(DEVELOPMENT) ## reformat and sort imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: $(DEVELOPMENT) bench-env ## side-by-side runs (ARGS="--list", names of entries, --blocks N)
	@$(BIN)/python -m bench.run $(ARGS)

bench-env: $(RECBOLE_READY) $(PYKEEN_READY) ## the environments of RecBole and PyKEEN, apart from ours

gpu-check: ## checks and times on a CUDA device, into bench/results (GPU_PYTHON=...)
	@test "$(GPU_PYTHON)" != "$(BIN)/python" || $(MAKE) $(DEVELOPMENT)
	@PYTHONPATH=src:.$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) -m bench.gpu_check $(ARGS)

docs: $(DEVELOPMENT) ## the generated parts of the documentation
	@$(BIN)/python -m scripts.configuration_reference
	@$(BIN)/python -m scripts.annotated_tree
	@$(BIN)/python -m scripts.notebooks
	@$(BIN)/python -m bench.table
	@$(BIN)/python -m experiments.summary
	@$(BIN)/python -m experiments.recipes
	@$(BIN)/python -m experiments.quality
	@$(BIN)/python -m tests.device.table --render
	@$(BIN)/python -m scripts.check_figures

site: $(DEVELOPMENT) ## the documentation as a site that works offline, into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

mps-check: $(DEVELOPMENT) ## every model on an Apple GPU beside the CPU, into bench/results
	@$(BIN)/python -m tests.device.mps_check $(ARGS)

experiments: $(DEVELOPMENT) ## the queue of long runs, resumed (ARGS="--only NAME --max-time 3600 --commit")
	@$(BIN)/python -m experiments.queue run $(ARGS)

experiments-influence: $(DEVELOPMENT) ## what influence finds (ARGS="planted" or "removed", --epochs N)
	@$(BIN)/python -m experiments.influence $(ARGS)

clean: ## remove caches and environments; runs/ stays
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf src/hasten.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hasten needs Python 3.11 or newer, and $(PYTHON) is not: name one by make PYTHON=python3.11" >&2; \
	  exit 1; }
	@echo "setting up $(VENV) (a minute or two, once)" >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[tensorboard,plots]'
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@echo "adding the tools of development" >&2
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

$(RECBOLE_READY): bench/recbole_side/requirements.txt $(RUNTIME)
	@echo "setting up $(RECBOLE)" >&2
	@$(RECBOLE)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(RECBOLE)
	@$(RECBOLE)/bin/python $(PIP_INSTALL) -r bench/recbole_side/requirements.txt
	@touch $@

$(PYKEEN_READY): bench/pykeen_side/requirements.txt $(RUNTIME)
	@echo "setting up $(PYKEEN)" >&2
	@$(PYKEEN)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(PYKEEN)
	@$(PYKEEN)/bin/python $(PIP_INSTALL) -r bench/pykeen_side/requirements.txt
	@touch $@
