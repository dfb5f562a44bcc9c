# Everything a contributor types. Each target sets up .venv by itself, and again whenever what it was built from changes;
# the demo and the wheel only what they need, which the others add to.
# Needs Python 3.11 or newer and make. With a C++ compiler the kernels are compiled; without one their torch versions
# are used.
#
#   make demo               see it work, in about a minute
#   make test               the whole test suite, with every fault script; up to three failures are repeated, and listed
#   make test-fast          the same without the slow tests: about two minutes
#   make check              formatting, lint and types
#   make format             fix the formatting, and the lint that can be fixed automatically
#   make fuzz               read changed files of every kind for an hour; SECONDS=600 for ten minutes
#   make faults             score the diagnosis on faulty and healthy trainings; SEEDS=5 runs each healthy one five times;
#                           tests/faults/README.md says how to score other tools, and trainings in other guises
#   make coverage           which lines and branches the tests run
#   make coverage-numerics  the same for kernels and formats, which must reach 100 %
#   make docs               the documentation as pages, in site/
#   make wheel              the package to install elsewhere, in dist/
#   make pictures           draw the pictures in it again, with chromium
#   make bench              measure the figures that the README claims
#   make hooks              run `make check` before every commit
#   make test-device        the tests on a simulated accelerator, which they compile; `make test` runs them too, except for
#                           some kinds of training: KINDS=all
#   make test-mindspore     let MindSpore load what `roundoff convert` writes, in an environment of its own
#   make test-paddle        read the states of Paddle's optimizers, in an environment of its own
#   make test-loggers       send a run to the real wandb, MLflow and Trackio, offline; read its tables with polars and DuckDB
#   make test-torch         run the tests that depend on torch with another one, in an environment of its own; TORCH=2.15.0
#   make hashes             note the hashes of what constraints.txt names, by which CI installs (HASHES=1)
#   make clean              remove all that the targets above made
#
# Another interpreter: make test PYTHON3=python3.12

PYTHON3 = python3
VENV = .venv
PYTHON = $(VENV)/bin/python
STAMP = $(VENV)/installed-for
INSTALLED_FROM = pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

# A virtual environment does not survive a move: the stamps name the folder it was made for. The demo is content with
# what the tests need, if that is there.
ifeq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
DEMO_STAMP = $(STAMP)
else
DEMO_STAMP = $(VENV)/demo-installed-for
.PHONY: $(STAMP)
endif
ifneq ($(shell cat $(DEMO_STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(DEMO_STAMP)
endif

# Two OpenMP threads on a shared machine can be 30 times slower than one.
export OMP_NUM_THREADS := 1
# Without bytecode every process that a test starts compiles torch again, which takes as long as importing it.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# MindSpore needs an older numpy than the rest, so it gets an environment of its own (3 GB).
MINDSPORE = .venv-mindspore
MINDSPORE_STAMP = $(MINDSPORE)/installed-for
PADDLE = .venv-paddle
PADDLE_STAMP = $(PADDLE)/installed-for

# Any torch gets an environment of its own, too (5 GB where only the CUDA build is offered).
TORCH = 2.15.0
TORCH_VENV = .venv-torch-$(TORCH)
TORCH_STAMP = $(TORCH_VENV)/installed-for
TORCH_TESTS = tests/test_torch_private.py tests/record tests/watch tests/replay tests/precision tests/flows

# CI sets HASHES=1: then all that the tests need has the hashes that are noted here, except for torch and what comes with
# it, of which every index has a build of its own.
HASHES =
NUMERICS = --cov=roundoff.kernels --cov=roundoff.formats
WORKERS = 2
SEEDS = 1
SECONDS = 3600

.PHONY: help demo chromium test test-fast test-device test-mindspore test-paddle test-loggers test-torch fuzz faults coverage coverage-numerics check format \
        hashes hooks docs bench clean pictures wheel

help:
	@sed -n 's/^#   make/make/p' Makefile

demo: $(DEMO_STAMP)
	@$(PYTHON) -m roundoff demo

# Built in an environment of its own, of the same versions everywhere.
wheel: $(DEMO_STAMP)
	@rm -rf dist
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PYTHON) -m pip wheel -qq --no-deps --wheel-dir dist .
	@$(PYTHON) .ci/check_wheel.py dist/roundoff-*.whl

test: $(STAMP) chromium
	@rm -f .pytest_cache/v/cache/lastfailed
	$(PYTHON) -m pytest -n 2 --dist worksteal || { [ $$? = 1 ] && $(PYTHON) -m tests.repeat_failed; }

test-fast: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not slow"

test-device: $(STAMP)
	ROUNDOFF_TESTS_ON_DEVICE=1 ROUNDOFF_KINDS_ON_DEVICE=$(KINDS) $(PYTHON) -m pytest tests/device

# The tests of pages need a browser; where there is none and it cannot be installed, they are skipped, and say so.
chromium:
	@command -v chromium >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1 || { \
	  echo "Installing chromium for the tests of pages ..."; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } \
	    </dev/null >/dev/null 2>&1 || echo "chromium could not be installed: the tests of pages are skipped."; }

test-mindspore: $(STAMP) $(MINDSPORE_STAMP)
	ROUNDOFF_MINDSPORE_PYTHON=$(CURDIR)/$(MINDSPORE)/bin/python $(PYTHON) -m pytest tests/checkpoints/test_in_mindspore.py \
	  tests/checkpoints/test_optimizers_elsewhere.py

test-paddle: $(STAMP) $(PADDLE_STAMP)
	ROUNDOFF_PADDLE_PYTHON=$(CURDIR)/$(PADDLE)/bin/python $(PYTHON) -m pytest tests/checkpoints/test_optimizers_elsewhere.py

# Heavy, and of no use to most: installed next to the environment.
test-loggers: $(STAMP)
	@$(PYTHON) -m pip install -qq -c constraints.txt --upgrade --target .venv-loggers wandb mlflow-skinny trackio polars duckdb
	PYTHONPATH=.venv-loggers $(PYTHON) -m pytest tests/report/test_loggers.py tests/runs/files/test_other_readers.py

test-torch: $(TORCH_STAMP) chromium
	$(TORCH_VENV)/bin/python -m roundoff doctor --self-test
	$(TORCH_VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(TORCH_TESTS)

fuzz: $(STAMP)
	@$(PYTHON) -m tests.fuzz_readers --seconds $(SECONDS) --seed $$(date +%j)
	@$(PYTHON) -m tests.flows.fault_injection --cases $$(($(SECONDS) / 10))

faults: $(STAMP)
	@$(PYTHON) -m tests.faults.run_faults --seeds $(SEEDS)

# What child processes run is not counted, so the true figure is higher.
coverage: $(STAMP) chromium
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not slow" --cov=roundoff --cov-report=term --cov-report=html:htmlcov

coverage-numerics: $(STAMP)
	$(PYTHON) -m pytest -n 2 tests/kernels tests/formats src/roundoff/kernels src/roundoff/formats $(NUMERICS) --cov-report=
	ROUNDOFF_TESTS_ON_DEVICE=1 $(PYTHON) -m pytest tests/device/test_kernels.py $(NUMERICS) --cov-append --cov-report=term \
	  --cov-fail-under=100

check: $(STAMP)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

format: $(STAMP)
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

hashes: $(STAMP)
	@$(PYTHON) -m pip install -qq uv
	@grep -v '^torch==' constraints.txt | $(PYTHON) -m uv pip compile --quiet --no-deps --universal --python-version 3.11.9 \
	  --generate-hashes --no-header --no-annotate --output-file constraints-hashed.txt -

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
	rm -rf $(VENV) $(MINDSPORE) $(PADDLE) .venv-loggers .venv-torch-* build dist site htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): EXTRAS = dev
$(STAMP): HASHED = $(HASHES)
$(VENV)/demo-installed-for: EXTRAS = torch
# Compiling for every x86 instruction set takes twice as long and makes the demo no faster.
$(VENV)/demo-installed-for: SETTINGS = --config-settings=cmake.define.ROUNDOFF_PLAIN=ON
$(STAMP) $(VENV)/demo-installed-for: $(INSTALLED_FROM)
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
	@echo "Setting up $(VENV) (the first time, about a minute for the demo and a few for the tests) ..."
	@if cat $(STAMP) $(VENV)/demo-installed-for 2>/dev/null | grep -qvxF "$(CURDIR)" || ! $(PYTHON) -c '' 2>/dev/null; then \
	  $(PYTHON3) -m venv --clear $(VENV); \
	fi
	@# Python compiles a module when it is first imported; most of torch never is.
	@[ -z "$(HASHED)" ] || $(PYTHON) -m pip install -qq --no-compile --no-deps --require-hashes -r constraints-hashed.txt
	@$(PYTHON) -m pip install -qq --no-compile -c constraints.txt $(if $(HASHED),--no-build-isolation) $(SETTINGS) \
	  -e '.[$(EXTRAS)]'
	@echo "$(CURDIR)" > $@

$(MINDSPORE_STAMP): Makefile
	@echo "Setting up $(MINDSPORE) (a few minutes the first time) ..."
	@$(PYTHON3) -m venv --clear $(MINDSPORE)
	@$(MINDSPORE)/bin/python -m pip install -qq mindspore==2.10.0 numpy==1.26.4
	@echo "$(CURDIR)" > $(MINDSPORE_STAMP)

$(PADDLE_STAMP): Makefile
	@echo "Setting up $(PADDLE) (a few minutes the first time) ..."
	@$(PYTHON3) -m venv --clear $(PADDLE)
	@$(PADDLE)/bin/python -m pip install -qq paddlepaddle==3.3.1
	@echo "$(CURDIR)" > $(PADDLE_STAMP)

# What torch itself needs is left to torch; the rest is as in the development environment.
$(TORCH_STAMP): $(INSTALLED_FROM)
	@echo "Setting up $(TORCH_VENV) (about ten minutes the first time) ..."
	@$(PYTHON3) -m venv --clear $(TORCH_VENV)
	@$(TORCH_VENV)/bin/python -m pip install -qq --no-compile torch==$(TORCH)
	@$(TORCH_VENV)/bin/python -m pip freeze --all > $(TORCH_VENV)/with-torch.txt
	@$(TORCH_VENV)/bin/python -c 'import re, sys; \
	  name = lambda line: re.split("[=@ ]", line)[0].lower().replace("_", "-"); \
	  kept = {name(line) for line in open(sys.argv[1])}; \
	  print("".join(line for line in open("constraints.txt") if name(line) not in kept), end="")' \
	  $(TORCH_VENV)/with-torch.txt > $(TORCH_VENV)/constraints.txt
	@cat $(TORCH_VENV)/with-torch.txt >> $(TORCH_VENV)/constraints.txt
	@$(TORCH_VENV)/bin/python -m pip install -qq --no-compile -c $(TORCH_VENV)/constraints.txt -e '.[dev]'
	@echo "$(CURDIR)" > $(TORCH_STAMP)
