# One command per developer task. `make help` lists them.
# Everything is installed into .venv from the locked, hashed requirements; the only change outside this folder
# is the cache of jars (see `tailrace doctor`).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
RUN_ARGS ?=
TEST_ARGS ?=
TEST_PROCESSES ?= 4
SLOW ?=
LONG ?=
HELM ?= helm
DIST ?= dist
KEY ?=
KEYRING ?=
FAULTS_ARGS ?=
QUICK ?=
ONLY ?=
WORLDS ?=
WORLD ?=
SOAK ?=

# Compiling PySpark and its kind anew takes each of a driver's processes a second or more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test charts charts-schema charts-package package images images-jars e2e faults check audit site bench bench-soak bench-churn pictures fix docs lock clean

help: ## List the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(STAMP): requirements/dev.txt requirements/build.txt requirements/uv.txt pipeline/pyproject.toml operators/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Tailrace needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Next: make PYTHON=python3.11 setup") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes --requirement requirements/build.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-build-isolation --require-hashes --requirement requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable pipeline --editable operators
	@touch $@

setup: $(STAMP) ## Create .venv from the locked requirements and fetch the jars
	$(BIN)/python -m tailrace.jars

run: setup ## Run the demo: embedded Kafka, a pipeline, the proof
	$(BIN)/tailrace demo $(RUN_ARGS)

# Two runs: integration tests start and stop Spark sessions, and a process can hold only one at a time.
test: setup ## Run the tests, the integration tests on a real Kafka (SLOW=1: those that only CI needs; LONG=1: all others)
	PYTHONPATH=tests $(BIN)/python -m support.prepare
	$(if $(SLOW)$(LONG),,$(BIN)/python -m pytest tests/unit --numprocesses $(TEST_PROCESSES) --dist loadfile $(TEST_ARGS))
	$(BIN)/python -m pytest tests/integration --numprocesses $(TEST_PROCESSES) -m "$(if $(LONG),slow or long,$(if $(SLOW),slow,not slow and not long))" $(TEST_ARGS)

faults: setup ## Break every part and count the records that come out (an hour; QUICK=1: minutes; WORLDS=15: at random; SOAK=120: minutes of strikes)
	PYTHONPATH=tests $(BIN)/python -m support.prepare
ifneq ($(SOAK),)
	PYTHONPATH=tests $(BIN)/python -m faults.worlds.soak --minutes $(SOAK) $(FAULTS_ARGS)
else ifneq ($(WORLDS)$(WORLD)$(FOUND),)
	PYTHONPATH=tests $(BIN)/python -m faults.worlds $(if $(FOUND),--found,$(if $(WORLD),--world '$(WORLD)',--count $(WORLDS))) $(FAULTS_ARGS)
else
	$(if $(wildcard tests/faults/test_*.py),$(BIN)/python -m pytest tests/faults $(TEST_ARGS))
	PYTHONPATH=tests $(BIN)/python -m faults $(if $(QUICK),--quick,--write) $(if $(ONLY),--only $(ONLY)) $(FAULTS_ARGS)
endif

charts: $(STAMP) ## Test the Helm chart: render and check every environment
	$(BIN)/python -m pytest tests/charts $(TEST_ARGS)

charts-schema: $(STAMP) ## Regenerate the schema of the chart's values, and the Pipeline's definition, from the configuration's
	$(BIN)/python -m tailrace_operator.chart charts/values.schema.yaml charts/tailrace/values.yaml > charts/tailrace/values.schema.json
	$(BIN)/python -m tailrace_operator.crd charts/tailrace/values.schema.json > charts/tailrace-crds/templates/pipelines.yaml

# HELM is the program. With KEY and KEYRING, a key of GnuPG's and its exported file, each package is signed. With
# REGISTRY=oci://HOST/FOLDER the packages are pushed there too; log in with `helm registry login`.
charts-package: ## Package the charts into DIST (dist); KEY=… KEYRING=… sign them, REGISTRY=oci://… pushes them
	for chart in tailrace tailrace-crds tailrace-operator; do \
	  $(HELM) package charts/$$chart --destination $(DIST) $(if $(KEY),--sign --key '$(KEY)' --keyring '$(KEYRING)') && \
	  $(if $(REGISTRY),$(HELM) push $(DIST)/$$chart-$$(sed -n 's/^version: //p' charts/$$chart/Chart.yaml).tgz $(REGISTRY),true) || exit 1; \
	done

# Wheels are built from the source archives, so that nothing of this folder gets in by accident. The commit's time makes
# a wheel the same, byte by byte, wherever the commit is built.
package: $(STAMP) ## Build the wheels and source archives of both packages into DIST (dist)
	for package in pipeline operators; do \
	  SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) $(BIN)/uv build --quiet --no-build-isolation \
	    --python $(BIN)/python --out-dir $(DIST) $$package || exit 1; \
	done
	@ls $(DIST)/*.whl $(DIST)/*.tar.gz

# The jars come from this machine's cache, so that the build does not need Maven Central. images/build.py lists the
# variables.
images: images-jars ## Build the images with Docker, and record what each is made of in build/images
	$(BIN)/python images/build.py

# Without KUBECONFIG, kind creates a cluster. E2E_LOAD is a command that loads images, its arguments, onto the nodes.
e2e: images ## Run the end-to-end tests on the cluster in KUBECONFIG, or on a new kind cluster
	$(BIN)/python tests/e2e/images.py
	PYTHONPATH=tests $(BIN)/python -m e2e $(TEST_ARGS)

images-jars: $(STAMP)
	TAILRACE_JARS=images/driver/jars $(BIN)/python -m tailrace.jars spark s3

check: $(STAMP) ## Check style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: $(STAMP) ## Ask the registry for known vulnerabilities of all locked packages
	$(BIN)/uv venv --quiet --allow-existing build/audit
	$(BIN)/uv pip sync --quiet --python build/audit --require-hashes requirements/audit.txt
	PYTHONPATH=tests $(BIN)/python -m support.audit build/audit/bin/pip-audit

site: $(STAMP) ## Build the documentation as a site in build/site, and check its links (npm provides the diagrams)
	$(BIN)/uv venv --quiet --allow-existing build/site-tools
	$(BIN)/uv pip sync --quiet --python build/site-tools --require-hashes requirements/site.txt
	PYTHONPATH=docs/site $(BIN)/python -m publish build/site-tools/bin/mkdocs

bench: setup ## Measure Tailrace against Spark's own sink (quiet machine, 45 minutes; QUICK=1: 6)
	PYTHONPATH=tests $(BIN)/python -m bench.sink $(if $(QUICK),--quick,--write) $(if $(ONLY),--only $(ONLY))

bench-soak: setup ## Run 10,000 batches in a row and watch the memory (quiet machine, an hour; QUICK=1: minutes)
	PYTHONPATH=tests $(BIN)/python -m bench.soak $(if $(QUICK),--batches 300,--batches 10000 --write)

pictures: setup ## Retake the pictures of the status page and the dashboards' panels (docs/images; 6 minutes)
	PYTHONPATH=tests $(BIN)/python -m bench.pictures

bench-churn: setup ## Measure the load of each way of producing on a broker (quiet machine, 12 minutes)
	PYTHONPATH=tests $(BIN)/python -m bench.churn

fix: $(STAMP) ## Let ruff fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Regenerate the reference pages, dashboards, the tables of the worlds and the notebook's outputs
	$(BIN)/python docs/generate.py
	PYTHONPATH=tests $(BIN)/python -m faults.worlds.record
	$(BIN)/python charts/generate.py
	PYTHONPATH=tests $(BIN)/python -m support.notebook pipeline/examples/preview-notebook/preview.ipynb

lock: $(STAMP) ## Regenerate the locked requirements
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements/dev.in --output-file requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --constraints requirements/dev.txt requirements/runtime.in --output-file requirements/runtime.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --constraints requirements/dev.txt requirements/operator.in --output-file requirements/operator.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --constraints requirements/dev.txt requirements/build.in --output-file requirements/build.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --constraints requirements/dev.txt requirements/zookeeper.in --output-file requirements/zookeeper.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements/audit.in --output-file requirements/audit.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --constraints requirements/dev.txt requirements/site.in --output-file requirements/site.txt

clean: ## Remove what the other commands created here
	rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log images/driver/jars/*.jar images/operator/helm \
	  .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
