# make demo            a run on a sample corpus (or SOURCE=folder); needs only Python and make
# make test            the checks of every change; make test-full and make test-faults take longer
# make audit           known vulnerabilities of the pinned versions
PYTHON ?= python3
BIN := .venv/bin
SOURCE ?=
MINUTES ?= 5

.PHONY: demo test units test-full test-faults audit setup ocr check fingerprints docs reference pictures clean

demo: setup ocr
	@if [ -z "$(SOURCE)" ]; then $(BIN)/sheepfold sample sample-corpus; fi
	$(BIN)/sheepfold run "$(if $(SOURCE),$(SOURCE),sample-corpus)" --minutes $(MINUTES)
	@echo
	@echo "Next steps:"
	@echo "  $(BIN)/sheepfold generate 'The import statement'      a completion by the model"
	@echo "  $(BIN)/sheepfold sql 'select status, count(*) from files group by 1'"
	@echo "  $(BIN)/sheepfold why models:/sheepfold@champion       its lineage"
	@echo "  $(BIN)/mlflow ui --backend-store-uri sqlite:///$$PWD/.sheepfold/mlflow.db    curves, versions, aliases"
	@echo "  .sheepfold/reports/default/report.md                        the report of the run"

# two parallel test processes, one thread each; a file's tests run in one process
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PARALLEL := -n 2 --dist loadfile
# in the order of the folders, so that the long tests of tests/flows start first
LONGEST_FIRST := $(PARALLEL) --no-loadscope-reorder

# mypy takes one core for two minutes, so it runs beside the tests
test: setup ocr
	$(MAKE) --jobs 3 check docs units

units: setup ocr
	$(PYTEST) $(PARALLEL) -m "not full and not faults"

test-full: test
	$(PYTEST) $(LONGEST_FIRST) -m "full and not faults"

# fault injection: processes killed at random moments, full disks (as root), clock jumps (libfaketime), server outages
test-faults: setup ocr
	$(PYTEST) $(LONGEST_FIRST) -m faults

# asks the Python package index for known vulnerabilities of the pinned versions
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

# acknowledge changed code that does not change the output of any stage
fingerprints: setup
	$(BIN)/python -m tests.fingerprints

# the site in build/site; fails on dead links, missing anchors and pages outside of the navigation
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the pages of docs/reference and the drawings of docs/images, which are made from the code
reference: setup
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.drawings

# docs/images: a run on the sample corpus and its pages (needs Chromium)
pictures: setup ocr
	$(BIN)/python -m docs.drawings
	$(BIN)/python -m benchmarks.pictures

setup: .venv/installed

# torch is installed first and pinned: an unpinned one may pull gigabytes of GPU libraries in place of a CPU build
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

# the Tesseract engine for OCR; without it images are quarantined with that reason
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
