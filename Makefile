# Every habit of the project is a target here; .ci/run calls the same ones. `make` alone lists them.
#
# PYTHON   the interpreter that .venv is made from:    make setup PYTHON=python3.12
# SUITE    what `make bench` measures:                 make bench SUITE=decode
# MINUTES  how long `make soak` starts programs, and `make load` streams: make soak MINUTES=2 ARGS="--seed 7"
# ARGS     more arguments for pytest or the benchmark: make test ARGS="tests/control -x"
# JOBS     how many processes share the tests:         make test JOBS=0 ARGS="tests/cli --pdb"

PYTHON ?= python3.11
SUITE  ?= all
MINUTES ?= 10
ARGS   ?=
JOBS   ?= logical
GPU_PYTHON ?= python3
TRITON := triton==3.6.0

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --disable-pip-version-check -c constraints.txt

# Tests that share what a module sets up stay together, until a process has none left and takes some of another's.
PYTEST := $(BIN)/pytest -n $(JOBS) --maxprocesses 8 --dist worksteal

# Two stamps: the demo needs the runtime alone, the tests need the tools too. A stamp is older than pyproject.toml or
# constraints.txt when one of them changed, so pip runs then and only then.
CLIENTS := .clients
RUNTIME := $(VENV)/.runtime-installed
DEV     := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test clients test-avx2 test-torch wheel wheel-test fuzz check parity quality kernels gpu agents drafts soak load examples docs reference bench size changelog clean pauses apart

help:            ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /  make \1\t/' | expand -t 20

setup: $(DEV)    ## make .venv with everything that tests and checks need

demo: $(RUNTIME) ## run an agent in its sandbox, beside a real model
	@$(BIN)/loopwright demo

test: $(DEV)     ## the whole test suite
	$(PYTEST) $(ARGS)

# A lesser machine, emulated: torch, oneDNN and numpy are told too.
test-avx2: $(DEV) ## the whole test suite as on a processor without AVX-512
	LOOPWRIGHT_PROCESSOR=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) $(ARGS)

test-torch: $(DEV) ## the whole test suite as on a machine without a C++ compiler: torch computes
	CXX=no-compiler $(PYTEST) $(ARGS)

wheel: $(DEV)    ## dist/loopwright-….whl, with compiled kernels on Linux x86-64
	@$(BIN)/python tests/packaging/make_wheel.py dist

wheel-test: $(DEV) ## install the wheel into a fresh environment without a compiler, and serve from it
	@$(BIN)/python tests/packaging/wheel_alone.py "$$($(BIN)/python tests/packaging/make_wheel.py dist)"

fuzz: $(DEV)     ## 100,000 malformed messages each way across the boundary of a program
	LOOPWRIGHT_TEST_FUZZ=100000 $(BIN)/pytest --timeout 3600 tests/system/test_abi_fuzz.py $(ARGS)

check: $(DEV)    ## format, lint, types, layers, documents; no behaviour
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/project

parity: $(DEV)   ## every architecture in every mode against transformers: the largest errors
	PYTHONPATH=tests $(BIN)/python tests/engine/parity.py

quality: $(DEV)  ## the quality gate: each way of keeping the default model's weights beside bfloat16; minutes
	$(BIN)/python tests/engine/quality.py

kernels: $(DEV) .kernels/.installed ## Triton's kernels by its interpreter, on the CPU: parity, and that a row's bits are its own; minutes
	PYTHONPATH=.kernels $(BIN)/pytest --timeout 900 tests/interpreted $(ARGS)

gpu:             ## on a machine with a GPU: parity, then speed, in ten minutes; gpu-report.md; GPU_PYTHON has torch for CUDA
	PYTHONPATH=src $(GPU_PYTHON) tests/gpu/speed.py --tests --report gpu-report.md $(ARGS)

agents: $(DEV)   ## the three agents beside the real model: each comes to its end, with an answer
	@$(BIN)/python tests/programs/live_agents.py

drafts: $(DEV)   ## draft models beside the real one: how many of their guesses stand, and what that saves
	@$(BIN)/python tests/programs/live_drafts.py

soak: $(DEV)     ## a thousand programs in 256 pages for MINUTES: nothing leaks, is stuck, or says anything else than alone
	@$(BIN)/python tests/system/soak.py --minutes $(MINUTES) $(ARGS)

apart: $(DEV)    ## random requests for MINUTES, each alone and all at once in too few pages: the same answers, over HTTP; ARGS="--seed 7"
	@$(BIN)/python tests/system/apart.py --minutes $(MINUTES) $(ARGS)

load: $(DEV)     ## 200 streams for MINUTES over a scripted engine, clients that go included: nothing leaks; what the server adds
	@$(BIN)/python tests/system/load.py --minutes $(MINUTES) $(ARGS)

pauses: $(DEV)   ## how long a large request holds the event loop, by kind of body; ARGS="--bytes 500000 --max-context 131072"
	@$(BIN)/python tests/system/pauses.py $(ARGS)

clients: $(DEV) $(CLIENTS)/.installed ## the clients of docs/clients.md, in environments of their own, against the real server; npm too
	cd tests/clients && $(abspath $(CLIENTS))/all/bin/pytest --ignore test_instructor.py $(ARGS)
	cd tests/clients && $(abspath $(CLIENTS))/instructor/bin/pytest test_instructor.py $(ARGS)
	cd tests/clients/node && node --test --test-concurrency=1

examples: $(DEV) ## run every program of programs/ and compare its events
	$(BIN)/pytest tests/programs

docs: $(DEV)     ## check that documents name only what exists; show the next change notes
	$(BIN)/pytest tests/project
	$(BIN)/towncrier build --draft --version next

reference: $(DEV) ## write the references in docs/ from the source: calls, sdk, metadata, configuration, metrics, programs
	$(BIN)/python tests/project/calls_reference.py
	$(BIN)/python tests/project/sdk_reference.py
	$(BIN)/python tests/project/openai_reference.py
	$(BIN)/python tests/project/json_schema_reference.py
	$(BIN)/python tests/project/configuration_reference.py
	$(BIN)/python tests/project/metrics_reference.py
	$(BIN)/python tests/programs/gallery.py

bench: $(RUNTIME) ## measure: SUITE=launch | calls | dev | decode | growth | batching | overhead | serving | techniques | memory | size | all
	$(BIN)/loopwright bench $(SUITE) $(ARGS)

size: $(RUNTIME) ## lines of code, by layer and by program
	$(BIN)/loopwright bench size

changelog: $(DEV) ## move the notes of changes/ into CHANGELOG.md: VERSION=0.2.0
	$(BIN)/towncrier build --yes --version $(VERSION)

clean:           ## remove .venv and the tools' caches; the model and the runner stay in the cache directory
	rm -rf $(VENV) $(CLIENTS) .kernels tests/clients/node/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) here; install it or name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

# The tools come on top of the runtime in one pip run, and pip is not asked twice: the runtime's stamp is written too.
$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $(RUNTIME) $@

# torch's CPU build comes without Triton, and nothing else here wants it.
.kernels/.installed: | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --no-deps --target .kernels $(TRITON)
	@touch $@

# Their versions are all pinned, so pip has nothing to resolve.
$(CLIENTS)/.installed: $(addprefix tests/clients/,requirements.txt requirements-instructor.txt node/package-lock.json)
	$(PYTHON) -m venv $(CLIENTS)/all
	$(CLIENTS)/all/bin/pip install --disable-pip-version-check --no-deps -r tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)/instructor
	$(CLIENTS)/instructor/bin/pip install --disable-pip-version-check --no-deps -r tests/clients/requirements-instructor.txt
	cd tests/clients/node && npm ci
	@touch $@
