# make demo: train and evaluate a shipped toy editor (BACKBONE=qwen_image_edit: the other one).  make test: the test suite.  make check: lint, types, imports.
# Each makes .venv first if it is not there; Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The toy editor of the demo: flux_kontext or qwen_image_edit.
BACKBONE ?= flux_kontext
# Processes of make test; each takes up to 3 GB. make test WORKERS=1 for a debugger.
WORKERS ?= 2
INSTALLED := $(VENV)/.installed

# bitsandbytes and torchao lie beside .venv's packages: installed among them, they slow every start by seconds.
QUANTIZED := $(VENV)/quantized

.PHONY: demo test test-quantized check install clean

demo: $(INSTALLED)
	$(BIN)/physedit train experiment=demo$(patsubst %,_%,$(filter-out flux_kontext,$(BACKBONE)))

test: $(INSTALLED)
	OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 $(BIN)/pytest -q --numprocesses $(WORKERS) --dist loadfile

# The tests of quantised bases, which make test skips.
test-quantized: $(QUANTIZED)/.installed
	OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONPATH=$(QUANTIZED) $(BIN)/pytest -q tests/models/test_memory_quantization.py

$(QUANTIZED)/.installed: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps \
		--target $(QUANTIZED) bitsandbytes torchao
	touch $@

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
