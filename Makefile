# Everything a contributor types. Each target sets up .venv by itself, and again whenever what it was built from changes.
# Needs Python 3.11 or newer and make. With a C++ compiler the kernels are compiled; without one their torch versions
# are used.
#
#   make demo               see it work, in about a minute
#   make test               the whole test suite, with every fault script
#   make test-fast          the same without the slow tests: about two minutes
#   make check              formatting, lint and types
#   make format             fix the formatting, and the lint that can be fixed automatically
#   make faults             score the diagnosis on faulty and healthy trainings; SEEDS=5 runs each healthy one five times
#   make coverage           which lines and branches the tests run
#   make coverage-numerics  the same for kernels and formats, which must reach 100 %
#   make docs               the documentation as pages, in site/
#   make pictures           draw the pictures in it again, with chromium
#   make bench              measure the figures that the README claims
#   make hooks              run `make check` before every commit
#   make test-mindspore     let MindSpore load what `roundoff convert` writes, in an environment of its own
#   make clean              remove all that the targets above made
#
# Another interpreter: make test PYTHON3=python3.12

PYTHON3 = python3
VENV = .venv
PYTHON = $(VENV)/bin/python
STAMP = $(VENV)/installed-for
INSTALLED_FROM = pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

# Two OpenMP threads on a shared machine can be 30 times slower than one.
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# MindSpore needs an older numpy than the rest, so it gets an environment of its own (3 GB).
MINDSPORE = .venv-mindspore
MINDSPORE_STAMP = $(MINDSPORE)/installed-for

SEEDS = 1

.PHONY: help demo chromium test test-fast test-mindspore faults coverage coverage-numerics check format hooks docs bench \
        clean pictures

help:
	@sed -n 's/^#   make/make/p' Makefile

demo: $(STAMP)
	@$(PYTHON) -m roundoff demo

test: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal

test-fast: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not slow"

# The tests of pages need a browser; where there is none and it cannot be installed, they are skipped, and say so.
chromium:
	@command -v chromium >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1 || { \
	  echo "Installing chromium for the tests of pages ..."; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } \
	    </dev/null >/dev/null 2>&1 || echo "chromium could not be installed: the tests of pages are skipped."; }

test-mindspore: $(STAMP) $(MINDSPORE_STAMP)
	ROUNDOFF_MINDSPORE_PYTHON=$(CURDIR)/$(MINDSPORE)/bin/python $(PYTHON) -m pytest tests/checkpoints/test_in_mindspore.py

faults: $(STAMP)
	@$(PYTHON) -m tests.faults.run_faults --seeds $(SEEDS)

# What child processes run is not counted, so the true figure is higher.
coverage: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not slow" --cov=roundoff --cov-report=term --cov-report=html:htmlcov

coverage-numerics: $(STAMP)
	$(PYTHON) -m pytest -n 2 tests/kernels tests/formats src/roundoff/kernels src/roundoff/formats \
	  --cov=roundoff.kernels --cov=roundoff.formats --cov-report=term --cov-fail-under=100

check: $(STAMP)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

format: $(STAMP)
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

hooks: $(STAMP)
	$(PYTHON) -m pre_commit install

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "site/index.html"

pictures: $(STAMP) chromium
	$(PYTHON) docs/pictures.py

bench: $(STAMP)
	@for file in benchmarks/*.py; do \
	  if [ -e "$$file" ]; then echo "== $$file"; $(PYTHON) "$$file" || exit 1; fi; \
	done

clean:
	rm -rf $(VENV) $(MINDSPORE) build dist site htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A virtual environment does not survive a move: the stamp names the folder it was made for.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

$(STAMP): $(INSTALLED_FROM)
	@$(PYTHON3) -c '' 2>/dev/null || { \
	  echo "No working '$(PYTHON3)' found. Install Python 3.11 or newer, or name one: make PYTHON3=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "'$(PYTHON3)' is $$($(PYTHON3) --version 2>&1); roundoff needs 3.11 or newer." >&2; \
	  echo "Name a newer one: make PYTHON3=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON3)' cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; }
	@command -v $${CXX:-c++} >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || \
	  echo "No C++ compiler found: using the torch kernels, which are slower. For the compiled ones: apt install g++"
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@if [ -e $(STAMP) ] && [ "$$(cat $(STAMP))" != "$(CURDIR)" ] || ! $(PYTHON) -c '' 2>/dev/null; then \
	  $(PYTHON3) -m venv --clear $(VENV); \
	fi
	@$(PYTHON) -m pip install -qq -c constraints.txt -e '.[dev]'
	@echo "$(CURDIR)" > $(STAMP)

$(MINDSPORE_STAMP): Makefile
	@echo "Setting up $(MINDSPORE) (a few minutes the first time) ..."
	@$(PYTHON3) -m venv --clear $(MINDSPORE)
	@$(MINDSPORE)/bin/python -m pip install -qq mindspore==2.10.0 numpy==1.26.4
	@echo "$(CURDIR)" > $(MINDSPORE_STAMP)
