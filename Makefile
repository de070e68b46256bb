# make demo            everything on a sample corpus (or SOURCE=folder), from an empty machine with Python and make
# make test            all checks that have to pass; make test-full and make test-faults take longer
# make audit           known faults of the versions that are pinned
PYTHON ?= python3
BIN := .venv/bin
SOURCE ?=
MINUTES ?= 3

.PHONY: demo test test-full test-faults audit setup ocr check fingerprints docs reference pictures clean

demo: setup ocr
	@if [ -z "$(SOURCE)" ]; then $(BIN)/sheepfold sample sample-corpus; fi
	$(BIN)/sheepfold run "$(if $(SOURCE),$(SOURCE),sample-corpus)" --minutes $(MINUTES)
	@echo
	@echo "Where to look:"
	@echo "  $(BIN)/sheepfold generate 'The import statement'      ask the model"
	@echo "  $(BIN)/sheepfold sql 'select status, count(*) from files group by 1'"
	@echo "  $(BIN)/sheepfold why models:/sheepfold@champion       where it comes from"
	@echo "  $(BIN)/mlflow ui --backend-store-uri sqlite:///$$PWD/.sheepfold/mlflow.db    curves, versions, aliases"
	@echo "  .sheepfold/reports/default/report.md                        the report of the run"

# two test processes side by side, a file of tests in one of them, each with one thread for arithmetic
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SIDE_BY_SIDE := -n 2 --dist loadfile
# in the order of the folders, so that the long tests of tests/flows begin first
DEAREST_FIRST := $(SIDE_BY_SIDE) --no-loadscope-reorder

test: setup ocr check
	$(PYTEST) $(SIDE_BY_SIDE) -m "not full and not faults"

test-full: test
	$(PYTEST) $(DEAREST_FIRST) -m "full and not faults"

# processes are killed at random moments, disks are filled (as root), clocks jump (with libfaketime), servers go away
test-faults: setup ocr
	$(PYTEST) $(DEAREST_FIRST) -m faults

# which of the pinned versions have known faults; asks the Python package index, and needs nothing else of the network
audit: .venv/audit/installed
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

.venv/audit/installed: .venv/installed
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# after a change that alters no stage's output: acknowledge the new code
fingerprints: setup
	$(BIN)/python -m tests.fingerprints

# the site in build/site; dead links, missing anchors and pages that stand nowhere fail
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the pages of docs/reference and the drawings of docs/images, which are made from the code
reference: setup
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.drawings

# a small training on the sample corpus, for docs/images
pictures: setup ocr
	$(BIN)/python -m benchmarks.pictures

setup: .venv/installed

# torch comes first and pinned: an unpinned torch pulls gigabytes of GPU libraries where a CPU build would do
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

# OCR needs the Tesseract engine; without it images are quarantined with that reason and everything else goes on
ocr:
	@if command -v tesseract >/dev/null; then exit 0; fi; \
	if command -v apt-get >/dev/null; then \
	  sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; \
	  ($$sudo apt-get update -qq && $$sudo apt-get install -y -qq tesseract-ocr) >/dev/null 2>&1; \
	elif command -v brew >/dev/null; then brew install --quiet tesseract >/dev/null 2>&1; fi; \
	command -v tesseract >/dev/null || \
	  echo "no Tesseract: scans and images will be quarantined; install it (apt install tesseract-ocr, brew install tesseract) and run again"

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache
