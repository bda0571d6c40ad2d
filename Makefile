# The two commands of the README; either sets everything up. On Windows, or without make, see README.md.
PYTHON ?= python3
SEEDS ?= 1
BIN := .venv/bin

.PHONY: demo test verify site bench versions clean

demo: .venv/ready
	$(BIN)/breakfix demo

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --durations=5
	$(BIN)/breakfix verify --seeds $(SEEDS)
	$(MAKE) site

verify: .venv/ready
	$(BIN)/breakfix verify --seeds $(SEEDS)

site: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/ready
	$(BIN)/python bench/run.py

versions: .venv/ready
	$(BIN)/python bench/versions.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else 'breakfix needs Python 3.11, 3.12 or 3.13; name one, as in: make demo PYTHON=python3.12')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[dev]'
	touch .venv/ready

clean:
	rm -rf .venv .cache site build dist
