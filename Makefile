# Everything a contributor types. Each target sets up .venv by itself, once; then again whenever what it was built
# from changes. Needs Python 3.11 or newer and make; with a C++ compiler the kernels are compiled, without one their
# torch versions serve.
#
#   make demo        see it work, in about a minute
#   make test        the whole test suite; `make test-fast` leaves out the slow tests
#   make faults      the score of the diagnosis on trainings with planted faults, and on healthy ones
#   make check       formatting, lint, types; `make format` mends the first two
#   make docs        the documentation as pages, in site/
#   make pictures    the pictures in it, drawn by chromium
#   make bench       measure the figures the README claims
#   make test-mindspore  let MindSpore itself load what `roundoff convert` writes, in an environment of its own
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

.PHONY: help demo chromium test test-fast test-mindspore faults check format docs bench clean pictures

help:
	@sed -n 's/^#   make/make/p' Makefile

demo: $(STAMP)
	@$(PYTHON) -m roundoff demo

test: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal

test-fast: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not slow"

# The tests of pages drive a browser; where there is none and it cannot be installed, they say so and are skipped.
chromium:
	@command -v chromium >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1 || { \
	  echo "Installing chromium, which the tests of pages drive ..."; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } \
	    </dev/null >/dev/null 2>&1 || echo "chromium could not be installed: the tests of pages will be skipped."; }

test-mindspore: $(STAMP) $(MINDSPORE_STAMP)
	ROUNDOFF_MINDSPORE_PYTHON=$(CURDIR)/$(MINDSPORE)/bin/python $(PYTHON) -m pytest tests/checkpoints/test_in_mindspore.py

faults: $(STAMP)
	@$(PYTHON) tests/faults/run_faults.py

check: $(STAMP)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

format: $(STAMP)
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

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
	rm -rf $(VENV) $(MINDSPORE) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis

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
	  echo "No C++ compiler found: the torch kernels will serve, which are slower. For the fast ones: apt install g++"
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
