# The project's commands. CI calls these, and only these. Each is safe to repeat, and quick where nothing changed.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check
MODEL ?= smollm2-135m
ARGS ?=
# Of each of the eight kinds of trouble that there are: ten thousand fleets.
SIM_SEEDS ?= 1250
# Over all cores, but no more than four: each of pytest's processes comes to hold torch, transformers and a model. Each has
# a stretch of the tests in their order, so that most of what a file's tests share is made once, and takes over from others.
PYTEST := $(VENV)/bin/pytest --numprocesses auto --maxprocesses 4 --dist worksteal
TORCH := torch==2.13.0
TORCH_RANGE := $(shell sed -n 's/^ *"\(torch[^"]*\)".*/\1/p' pyproject.toml)

# Where a step has been done, a file says so; it is done again when what it depends on is newer.
HAS_VENV := $(VENV)/.has-venv
HAS_RUNTIME := $(VENV)/.has-runtime
HAS_ALL := $(VENV)/.has-all

# A fresh environment for serving takes about 200 MB; one for tests, with torch's CPU build, about 2 GB.
NEEDED_MB := 300
NEEDED_MB_ALL := 2500

say = printf '\033[1m==> %s\033[0m\n' "$(1)"
fail = { printf 'make: %s\n' "$(1)" >&2; exit 1; }

# pip compiles what it copies into an environment, but not what it leaves in place, and where PYTHONDONTWRITEBYTECODE is set each
# start would compile it anew.
compile_modules = $(PYTHON) -m compileall -q src/headrace

need_room = free=$$(df -Pm . | awk 'NR == 2 { print $$4 }'); \
	if [ "$$free" -lt $(1) ]; then $(call fail,installing needs about $(1) MB here and $$free MB are free: make room first); fi

# By far the largest, so it comes first and shows its progress: this exact version where pip finds it, else one that the package
# admits.
install_torch = if ! $(PYTHON) -c 'import torch' 2>/dev/null; then \
		$(call say,installing torch); \
		$(PIP) install '$(TORCH)' || $(PIP) install '$(TORCH_RANGE)' || \
		$(call fail,pip could not install torch: is there a network and enough disk and a build for this Python?); \
	fi

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all sim check bench bench-peers sanitize docs clean

help: ## show this
	@echo "Headrace: the commands"
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Options of a server: make serve MODEL=path-or-name ARGS='--port 8001 --max-model-len 4096'"

setup: $(HAS_ALL) ## make .venv and install the package with what tests and checks need

serve: $(HAS_RUNTIME) ## install what serving needs, fetch the model, and serve it on http://127.0.0.1:8000
	@exec $(VENV)/bin/headrace serve $(MODEL) $(ARGS)

test: $(HAS_ALL) ## run the tests, but for the slow ones
	@$(VENV)/bin/headrace pull smollm2-135m
	@$(PYTEST) -m 'not slow and not gpu' $(ARGS)

test-all: $(HAS_ALL) ## run all tests that this machine can
	@$(VENV)/bin/headrace pull smollm2-135m
	@$(VENV)/bin/headrace pull gemma3-270m
	@$(PYTEST) -m 'not gpu' $(ARGS)

sim: $(HAS_ALL) ## rehearse 10,000 fleets under drawn faults, over all cores
	@$(VENV)/bin/headrace simulate --case all --num-seeds $(SIM_SEEDS) --num-jobs $$(getconf _NPROCESSORS_ONLN) $(ARGS)

check: $(HAS_ALL) ## ruff, mypy in strict mode, and who may import whom
	@$(call say,ruff); $(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(call say,mypy); $(VENV)/bin/mypy
	@$(call say,import contracts); $(VENV)/bin/lint-imports

# Left out: cost_model, which needs published data that is not here and the extra `fits`.
bench: $(HAS_ALL) ## run the benchmarks but for those beside peers; results go to benchmarks/results/
	@$(VENV)/bin/headrace pull smollm2-135m
	@for name in $$(grep -l '__main__' benchmarks/*.py | grep -v cost_model | xargs -n 1 basename | sed 's/\.py$$//'); do \
		$(call say,$$name); $(PYTHON) -m benchmarks.$$name $(ARGS) || exit 1; \
	done

bench-peers: $(HAS_ALL) ## install other engines in environments of their own, and measure beside them (ARGS='--only NAME')
	@$(VENV)/bin/headrace pull smollm2-135m
	@$(PYTHON) -m benchmarks.peers $(ARGS)

sanitize: $(HAS_ALL) ## the native kernels' tests under ASan and UBSan, from a build of their own
	@native/sanitize.sh $(PYTHON) $(ARGS)

docs: $(HAS_ALL) ## check that the documents tell the truth: links, files, commands
	@$(VENV)/bin/pytest -q tests/tidy $(ARGS)
	@echo "Start at README.md; a running server explains its API at /docs."

clean: ## remove .venv and caches, but not fetched models
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(HAS_VENV):
	@$(call need_room,$(NEEDED_MB))
	@for python in python3 python3.13 python3.12 python3.11; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		$(call fail,no Python 3.11 or later was found: install one that python3 or python3.11 starts); \
	fi; \
	$(call say,making $(VENV) with $$($$found --version)); \
	$$found -m venv $(VENV) || $(call fail,$$found cannot make environments: install its venv module (python3-venv)); \
	touch $@

# What serving needs, and no torch; unless there is no C++ compiler, for then only torch can compute.
$(HAS_RUNTIME): $(HAS_VENV) pyproject.toml
	@$(call say,installing headrace)
	@$(PIP) install --quiet --editable . || $(call fail,pip could not install the package: is there a network?)
	@if ! $(PYTHON) -c 'import headrace.engine.ops.native._kernels' 2>/dev/null; then \
		$(call say,no native kernels were built (is there a C++ compiler?): torch will compute); \
		$(call need_room,$(NEEDED_MB_ALL)); \
		$(install_torch); \
	fi
	@$(compile_modules)
	@touch $@

$(HAS_ALL): $(HAS_VENV) pyproject.toml
	@$(call need_room,$(NEEDED_MB_ALL))
	@$(install_torch)
	@$(call say,installing headrace and what tests and checks need)
	@$(PIP) install --quiet --editable '.[torch,test,check]' || $(call fail,pip could not install them: is there a network?)
	@$(compile_modules)
	@touch $(HAS_RUNTIME) $@
