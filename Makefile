# Speculative Decoding Lab. Needs Python 3.11 or newer, git and make.
#
#   make lab        environment, default model, JupyterLab on the first lesson
#   make test       environment, default model, every test, every lesson
#   make browser    stepper and lessons in a real Chromium: environment, browser, tests/browser
#   make floor      widgets, figures and sessions on the oldest stack that is promised (Colab's)
#   make check      ruff, mypy and the hygiene tests
#   make notebooks  run the lessons of notebooks/src/ again and store their outputs
#   make clean      remove the environment and caches (models stay in the user cache directory)
#
# Settings, as in `make lab PORT=9000 HEADLESS=1`; a file local.mk may hold them too:
#   PORT=8888     where JupyterLab listens          IP=localhost  on which address
#   HEADLESS=1    no browser, print the address     LAB_ARGS=...  more JupyterLab options
#   PYTHON=...    the Python that makes .venv       ENV=active    use the active environment
#                                                                 (conda) and install nothing
#   CONSTRAINTS=  newest versions that pyproject.toml allows, not the tested ones of
#                 constraints.txt: the way to another torch, e.g. one built for your GPU driver
#   WORKERS=2     how many tests run at a time, each on one core
#   CHROMIUM=...  the browser for `make browser`, where it is in no usual place
#   PIP_ARGS=...  more pip options, e.g. --extra-index-url with the address that pytorch.org gives
#                 for CPU builds: saves gigabytes on a Linux machine without a GPU
-include local.mk

PYTHON ?= python3
VENV ?= .venv
ENV ?= venv
CONSTRAINTS ?= constraints.txt
PIP_ARGS ?=
PORT ?= 8888
IP ?= localhost
HEADLESS ?=
LAB_ARGS ?=
PYTEST_ARGS ?=
CELL_TIMEOUT ?= 180
KERNEL_TIMEOUT ?= 120
WORKERS ?= 2
CHROMIUM ?=
export CHROMIUM
FLOOR ?= .venv-floor
FIRST ?= notebooks/00_start_here.ipynb
NOTEBOOKS := $(wildcard notebooks/[0-9]*.ipynb notebooks/fr/[0-9]*.ipynb)

ifeq ($(ENV),active)
PY := python
LAB_READY :=
ALL_READY :=
BROWSER_READY :=
else
PY := $(VENV)/bin/python
LAB_READY := $(VENV)/.lab-ready
ALL_READY := $(VENV)/.all-ready
BROWSER_READY := $(VENV)/.browser-ready
endif

# Once the model is here nothing is fetched any more: a test or lesson that asks the hub fails.
OFFLINE := HF_HUB_OFFLINE=1

# One core each: threads of several torch processes on the same cores wait for each other.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(PY) -m pytest -n $(WORKERS)

# A root shell is usual in containers; JupyterLab wants to be told.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
BROWSER_ARGS := $(if $(HEADLESS),--no-browser)

.PHONY: help lab test lessons browser floor check notebooks clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   \(make .*\)/\1/p' Makefile

# Signed, because JupyterLab takes the pictures out of notebooks that it does not trust.
lab: $(LAB_READY)
	@$(PY) -m labkit pull
	@$(if $(NOTEBOOKS),$(PY) -m nbformat.sign $(NOTEBOOKS) >/dev/null)
	@echo "JupyterLab: stop it with Ctrl-C; the address with its token is printed below."
	@exec $(PY) -m jupyterlab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/$(FIRST) \
		--ip=$(IP) --port=$(PORT) $(BROWSER_ARGS) $(AS_ROOT) $(LAB_ARGS)

test: lessons $(ALL_READY)
	@$(PY) -m labkit pull
	$(OFFLINE) $(PYTEST) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)
	$(OFFLINE) $(PYTEST) --dist loadfile --nbval-lax --nbval-current-env \
		--nbval-cell-timeout=$(CELL_TIMEOUT) --nbval-kernel-startup-timeout=$(KERNEL_TIMEOUT) \
		$(PYTEST_ARGS) $(NOTEBOOKS)

# Without this, a folder name that changed would pass as "every lesson runs".
lessons:
	@$(if $(strip $(NOTEBOOKS)),,echo "Lessons: expected notebooks/NN_name.ipynb, got none." \
		"Next: make notebooks, or name them with NOTEBOOKS=..." >&2; exit 2)

browser: $(BROWSER_READY)
	@$(PY) -m labkit pull
	@$(PY) tests/browser/chromium.py
	$(OFFLINE) $(PYTEST) --dist worksteal $(PYTEST_ARGS) tests/browser

# What runs in a notebook's kernel and can be told without a real model, and how transformers calls
# its caches. torch is the same as ever.
FLOOR_TESTS := $(wildcard tests/unit/test_viz_*.py tests/unit/test_quiz.py tests/unit/test_checks.py \
	tests/unit/test_show.py tests/unit/test_watch.py tests/unit/test_compare.py \
	tests/unit/test_session*.py tests/unit/test_broken.py tests/unit/test_trace.py \
	tests/unit/test_cache.py tests/unit/test_target.py tests/unit/test_rerun.py \
	tests/unit/test_memory.py tests/unit/test_live*.py tests/unit/test_human.py \
	tests/unit/test_race.py tests/unit/test_breaking.py tests/unit/test_whatif*.py \
	tests/unit/test_gallery.py tests/unit/test_sharing.py tests/goldens/test_*.py \
	tests/lossless/test_decoder_cases.py tests/lossless/test_public_cases.py \
	tests/parity/test_families.py)

floor: $(FLOOR)/.ready
	$(OFFLINE) OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(FLOOR)/bin/python -m pytest \
		-n $(WORKERS) --dist loadscope -m 'not real and not gpu and not interop' $(PYTEST_ARGS) \
		$(FLOOR_TESTS)

check: $(ALL_READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/unit/test_layers.py tests/unit/test_packaging.py

notebooks: $(ALL_READY)
	@$(PY) -m labkit pull
	$(PY) notebooks/build.py

clean:
	rm -rf $(VENV) $(FLOOR) build dist .ruff_cache .mypy_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: nothing is installed again until the packages asked for change.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python: expected 3.11 or newer, got $$($(PYTHON) --version 2>&1)." \
		     "Next: make lab PYTHON=/path/to/python3.11." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "Environment: expected '$(PYTHON) -m venv' to make $(VENV), got the error above." \
		     "Next: install the venv module (Debian, Ubuntu: python3-venv)." >&2; exit 2; }
	@touch $@

define install
	@$(PY) -m pip install --disable-pip-version-check $(PIP_ARGS) \
		$(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$(1)]' || { \
		echo "Environment: expected pip to install the packages, got the error above." \
		     "Next: check the network and call make again; what is already there is kept." >&2; \
		exit 2; }
endef

$(VENV)/.lab-ready: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,lab)
	@touch $@

$(VENV)/.all-ready: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,lab$(comma)test$(comma)dev)
	@touch $@ $(VENV)/.lab-ready

$(VENV)/.browser-ready: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,lab$(comma)test$(comma)dev$(comma)browser)
	@touch $@ $(VENV)/.lab-ready $(VENV)/.all-ready

$(FLOOR)/.ready: pyproject.toml constraints-floor.txt
	@$(PYTHON) -m venv $(FLOOR)
	@$(FLOOR)/bin/python -m pip install --disable-pip-version-check -q --no-compile $(PIP_ARGS) \
		-c constraints-floor.txt -e '.[test]' nbconvert
	@touch $@

comma := ,
