# make          set up, measure what this machine can in some minutes, write results/this/report.zip
# make test     set up, lint, types, the site without its pictures, tests
# make test-cluster   the workflow on a real one-node Slurm, and under faults (root and Debian's slurm-wlm)
# make pages    tables of README and docs, docs/overview.svg and docs/history.md, from the recorded measurements; docs/picture.png
# make docs     the site, into site/: open site/index.html
# make docs-check   what is wrong on its pages and in their links, without the pictures
# make wheel    the package with its kernels compiled for Hopper, into dist/
# make dist     sdists and wheels for a package index, checked
# make coverage | pictures   lines that the tests reach; approved pictures anew
# make lint | format | clean

PYTHON ?= $(shell for v in 3.13 3.12 3.11 3.14; do python$$v -c '' 2>/dev/null && echo python$$v && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Packages are installed without bytecode, which Python writes where it first imports: hundreds of processes start here.
unexport PYTHONDONTWRITEBYTECODE

comma := ,
KERNELS = $(shell find src -name "*.cu" -o -name "*.cuh")
# The CUDA extra follows the driver; without one there is no CUDA in the environment.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/cuda\1/p')
# spectile.torch is tested on the CPU, and the plain name brings gigabytes of CUDA's libraries.
TORCH := torch==2.13.0+cpu
# uv finds and unpacks packages in a tenth of pip's time, but knows nothing of an index that pip alone is told of.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
install = { $(PIP) uv && $(BIN)/python -m uv pip install --quiet $(1); } || $(PIP) $(1)
LIBRARY := .$(if $(CUDA),[$(CUDA)])
TESTED := .[$(if $(CUDA),$(CUDA)$(comma))compile,docs,jax,mpi]
STUDY := src/spectile_study
LINT := $(addprefix lint-,style cuda workflow words layers types)

# Two workers, each with whole files of tests (and one with all of tests/study: tests/conftest.py); folders are named with
# the long ones first, which then end together.
# Threads that wait in BLAS or OpenMP would take the processor from the other worker.  A GPU is not shared by two.
WORKERS := $(if $(CUDA),0,2)
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive pytest -q --durations=15 -n $(WORKERS) --dist loadfile --no-loadscope-reorder
FOLDERS := tests/workflow tests/study tests/cpu tests/random tests/gpu

# What a Snakemake that was killed leaves behind stops the next one until it is told to go on.
LOCKED = test -z "$$(ls .snakemake/locks 2>/dev/null)" || echo "This folder is locked: another Snakemake works in it or was killed there. If none is running: $(BIN)/snakemake --unlock, then make again; finished records are kept."

.DEFAULT_GOAL := report
.PHONY: report test pytest test-cluster coverage pictures pages docs docs-check lint $(LINT) wheel dist format system clean
.DELETE_ON_ERROR:

report: $(VENV)/installed
	@echo snakemake --cores all; snakemake --cores all || { status=$$?; $(LOCKED); exit $$status; }

test: lint docs-check pytest

pytest: $(VENV)/installed-dev system
	$(PYTEST) --mpl -m "not cluster and not slow" $(FOLDERS)

# Which lines the tests reach: measured and shown, never enforced.  Worker processes count, compiled CPU kernels do not.
coverage: $(VENV)/installed-dev
	pytest -q -m "not cluster and not slow" --cov=spectile --cov=spectile_study --cov-report=term:skip-covered --cov-report=html:logs/coverage

# The approved pictures of tests/study/pictures, drawn anew: look at them before you commit them.
pictures: $(VENV)/installed-dev
	pytest -q tests/study/test_pictures.py --mpl-generate-path=tests/study/pictures

# What is written from results/recorded; a test holds the pages against them.
pages: $(VENV)/installed-dev
	python docs/tables.py
	python docs/overview.py
	python docs/history.py
	python docs/picture.py

# Every warning is an error, and a name that leads nowhere is one.
SPHINX := sphinx-build --quiet --fail-on-warning --keep-going --builder html

docs: $(VENV)/installed-dev
	$(SPHINX) docs site

# The site without pictures, half a minute of a core, then every link and anchor in it and in the pages of the repository.
# The programs of the gallery are run by its tests.
docs-check: $(VENV)/installed-dev
	$(SPHINX) --define plot_gallery=0 docs logs/site
	lychee --offline --include-fragments --no-progress --exclude-path _static logs/site $$(git ls-files "*.md")

# After those are there: both may be installed by apt-get, which runs once at a time.
test-cluster: $(VENV)/installed-dev system
	$(PYTEST) -m cluster tests/cluster tests/workflow

# Each step by itself, so that `make -j` takes several at once.
lint: $(LINT)

lint-style: $(VENV)/installed-dev
	ruff check --quiet .
	ruff format --quiet --check .

lint-cuda: $(VENV)/installed-dev
	clang-format --dry-run --Werror $(KERNELS)

lint-workflow: $(VENV)/installed-dev
	snakefmt --check Snakefile workflow
	snakemake --lint

lint-words: $(VENV)/installed-dev
	codespell $$(git ls-files "*.md" "*.py" "*.cu" "*.cuh" "*.yaml" "*.toml" "*.rst" "*.smk")

lint-layers: $(VENV)/installed-dev
	lint-imports --no-cache --no-logo

lint-types: $(VENV)/installed-dev
	mypy

# The wheel that users of an H100 or H200 want: with machine code, so that no first call waits for the compiler.
wheel: $(VENV)/installed-dev
	spectile compile --arch sm_90a --out src/spectile/cubins
	python -m pip wheel --quiet --no-deps --wheel-dir dist .

# What a package index takes: sdists and wheels of both distributions, without compiled kernels.
dist: $(VENV)/installed-dev
	$(call install,build twine)
	rm -rf dist
	for project in . $(STUDY); do $(BIN)/python -m build --outdir dist $$project || exit; done
	$(BIN)/python -m twine check --strict dist/*

format: $(VENV)/installed-dev
	ruff check --fix --quiet .
	ruff format --quiet .
	clang-format -i $(KERNELS)
	snakefmt Snakefile workflow

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; ok = (3, 11) <= v <= (3, 14); sys.exit(0 if ok else f"Python 3.11 to 3.14 is needed and {sys.executable} is {v[0]}.{v[1]}: name another one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml $(STUDY)/pyproject.toml | $(VENV)/bin/python
	@echo "Installing spectile, its study and what they need into $(VENV), a minute or two"
	$(call install,-e "$(LIBRARY)" -e $(STUDY))
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(STUDY)/pyproject.toml | $(VENV)/bin/python
	@echo "Installing spectile and the tools of its tests into $(VENV), a minute or two"
	$(call install,-e "$(TESTED)" -e "$(STUDY)[dev]")
	@$(PIP) --no-compile "$(TORCH)" \
	  || { test -z "$$CI" && echo "no CPU build of PyTorch here: the tests of spectile.torch are skipped (make TORCH=torch takes any)"; }
	@touch $@ $(VENV)/installed

# The report is opened in a browser by a test, and eigenproblems of several ranks are solved by ScaLAPACK; CI machines get
# Debian's, others are told what they miss.
system:
	@{ command -v chromium && ldconfig -p | grep scalapack; } >/dev/null \
	  || { test -n "$$CI" && test "$$(id -u)" = 0 && apt-get update -qq \
	    && apt-get install -qq -y chromium >/dev/null \
	    && apt-get install -qq -y --no-install-recommends libscalapack-mpich2.2 >/dev/null; } \
	  || echo "no Chromium or no ScaLAPACK here: their tests are skipped (Debian: apt-get install chromium libscalapack-mpich2.2)"

clean:
	rm -rf dist site docs/api/*.rst docs/api/names docs/api/examples docs/examples src/spectile/cubins $(VENV) .snakemake .mypy_cache .ruff_cache .pytest_cache logs results/this
