# Two commands matter: `make reproduce` and `make test`. Each sets up its own .venv first.
PYTHON ?= python3
SCALE ?= small
SEEDS ?= 1
STEPS ?= sync notebooks pytest wheel
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup check test test-all mutants audit reproduce lab docs book-stats readme export clean-notebooks constraints handouts slides

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## a .venv with everything, from constraints.txt (quick when nothing changed)

$(READY): constraints.txt settings.ini setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "picknet_nb needs Python 3.10 or newer; choose one with PYTHON=..."; exit 1; }
	@echo "make setup: makes .venv and installs what constraints.txt lists; minutes on a quick line, half an hour on a slow one"
	$(PYTHON) -m venv .venv
	@$(BIN)/python tools/install.py $(BIN)/pip install --progress-bar off --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

check: $(READY) ## in two minutes, for every day: sync, and the notebooks and tests that your change touches
	@$(BIN)/python tools/check.py sync changed

test: $(READY) ## notebooks and package in sync, every notebook and test file in a process of its own, wheel and source distribution in a clean environment
	$(BIN)/python tools/check.py $(STEPS)

test-all: $(READY) ## make test with all slow cells, long tests and inputs: an hour, before a release
	$(BIN)/python tools/check.py sync everything wheel

mutants: $(READY) ## apply each listed fault to a copy, say which test catches it
	$(BIN)/python tools/mutants.py

audit: $(READY) ## licences of the dependencies, and their known vulnerabilities where the network allows
	$(BIN)/python tools/audit.py

reproduce: $(READY) ## train every row on the built-in world and print the table (SCALE=smoke|small|paper SEEDS=n)
	@echo "make reproduce: draws the toy world, trains every experiment of the table $(SEEDS) time(s) at the preset '$(SCALE)' and scores it;"
	@echo "on two CPU cores smoke takes minutes, small five to ten minutes for each seed, paper hours; bars show how far it is"
	@$(BIN)/picknet reproduce --data shapes --scale $(SCALE) --seeds $(SEEDS)

lab: $(READY) ## JupyterLab on the notebooks; what it saves is clean, so that make check passes
	@echo "make lab: JupyterLab in a browser, in some ten seconds; Ctrl-C here ends it"
	@PYTHONPATH=tools $(BIN)/jupyter lab --ContentsManager.pre_save_hook=clean.before_saving --notebook-dir nbs nbs/index.ipynb

docs: $(READY) ## the web site, into site/
	@echo "make docs: the web site from the notebooks, into site/; about three minutes on two quiet cores"
	@$(BIN)/python tools/site.py
	@echo "open site/index.html; for the search box, serve it: python -m http.server --directory site"

handouts: $(READY) ## the exercises without solutions, into handouts/
	$(BIN)/python tools/handout.py

slides: $(READY) ## six decks of slides from the figures of the lessons, into slides/
	$(BIN)/python tools/slides.py

book-stats: $(READY) ## how long the method track is; modules, lines, commands, options and settings of the package
	$(BIN)/python tools/book.py

readme: $(READY) ## README.md from nbs/index.ipynb
	$(BIN)/python tools/readme.py

export: $(READY) ## the package from the notebooks
	$(BIN)/nbdev_export

clean-notebooks: $(READY) ## strip what does not belong into a commit from the notebooks
	$(BIN)/python tools/clean.py

constraints: $(READY) ## write constraints.txt from what is installed now
	$(BIN)/python tools/constraints.py
