# The commands of this project. `make build` and `make serve` need Python >= 3.11, Rust, make and a C compiler, nothing else.
# PYTHON=... names another interpreter, ARGS=... is passed on to the server; tools/setup.py lists the other variables.
.DEFAULT_GOAL := help
.PHONY: help build serve test lint format bench lock clean

VENV := .venv/bin
RUN := PATH="$(CURDIR)/$(VENV):$$PATH:$$HOME/.cargo/bin" VIRTUAL_ENV="$(CURDIR)/.venv" PYO3_PYTHON="$(CURDIR)/$(VENV)/python"
SETUP := python=$$(sh tools/find_python.sh) && "$$python" -m tools.setup

help:
	@echo 'make build    set up .venv and build the extension (release)'
	@echo 'make serve    the same, then serve SmolLM2-135M-Instruct on 127.0.0.1:8000'
	@echo 'make test     all tests: cargo and pytest'
	@echo 'make lint     formatting, clippy, ruff, mypy, stub test, source rules'
	@echo 'make format   rewrite the sources in their standard format'
	@echo 'make bench    the CPU benchmark beside its peers (see benches/README.md)'
	@echo 'make lock     resolve requirements/*.txt anew'

build:
	@$(SETUP)

serve: build
	@exec $(VENV)/frizzen serve smollm2-135m $(ARGS)

test:
	@$(SETUP) --dev
	$(RUN) python -m tools.quarantine check
	$(RUN) python -m tools.quarantine cargo -- cargo test --no-fail-fast
	$(RUN) python -m tools.instructions --check
	$(RUN) python -m pytest --quarantine-complete

lint:
	@$(SETUP) --dev
	@$(RUN) python -m tools.lint

format:
	@$(SETUP) --dev
	$(RUN) cargo fmt --all
	$(RUN) ruff check --fix-only --quiet
	$(RUN) ruff format --quiet

bench: build
	@$(RUN) python -m benches.cpu.run $(ARGS)

lock:
	@python=$$(sh tools/find_python.sh) && "$$python" -m tools.lock

clean:
	rm -rf .venv target dist python/frizzen/_core*.so
