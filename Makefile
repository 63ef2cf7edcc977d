# make demo: see boxes on a video in the first minute.   make test: prove that it works.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
SOURCES := pyproject.toml hatch_build.py src/framefuse/kernels/build.py $(wildcard src/framefuse/kernels/tir/*.py src/framefuse/kernels/*/*tir_*.py)

.PHONY: demo test lint types wheel release-check constraints docs results device-bundle clean

demo: $(VENV)/core
	$(BIN)/framefuse demo

# With the slow ones (isolated wheel build, every GPU architecture, aarch64 under qemu): make test PYTEST_ARGS='-m "not gpu"'
# A worker has a file of tests at a time, since tests of one file share what is made for them; there is one worker more
# than cores, because some tests wait.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')
test: PYTEST_ARGS ?= -m "not slow and not gpu"
test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

# No program is in sight: nobody needs a compiler.
wheel: $(VENV)/python
	rm -rf dist
	PATH=/none $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# What PyPI would get: the wheel and the sources, their metadata and licence. WHEEL=built: do not build the wheel again.
release-check: $(VENV)/dev $(if $(WHEEL),,wheel)
	$(BIN)/python -m hatchling build -t sdist -d dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/release_check.py

# The versions that are tested together, for containers and services.
constraints: $(VENV)/dev
	$(BIN)/python .ci/constraints.py > constraints.txt

# The page of options and the site, in build/site; a warning, such as a broken link, fails.
docs: $(VENV)/dev
	$(BIN)/framefuse config reference > docs/reference/options.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Every table of measured numbers, from benchmarks/records; a test fails where a page differs.
results: $(VENV)/dev
	$(BIN)/python -m benchmarks.results

# What a GPU machine without internet lacks, in parts of at most 60 MB: .whl/1, .whl/2, ... GROUPS="core peers": only those.
device-bundle: $(VENV)/dev
	benchmarks/device/bundle.sh $(BIN)/python $(GROUPS)

clean:
	rm -rf $(VENV) dist build

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "framefuse needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "on Debian: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/core: $(VENV)/python $(SOURCES)
	@echo "installing framefuse into $(VENV) (a few minutes: it compiles its kernels, no compiler is needed)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/dev: $(VENV)/python $(SOURCES)
	@echo "installing framefuse and its development tools into $(VENV)"
	@$(INSTALL) -e '.[dev]'
	@# It asks for opencv-python, which overwrites the files of opencv-python-headless, and does without.
	@$(INSTALL) --no-deps 'trackeval>=1.3'
	@touch $@ $(VENV)/core
