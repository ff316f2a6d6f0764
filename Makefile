# `make check` is the one word to learn: format, lint, types, tests, and the files that ask to be split.
PYTHON ?= python

.PHONY: check lint types test long

check: lint types test long

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest -n 2

long:
	@find ckptmigrate migrations tests -name '*.py' -not -path '*/fixtures/*' -exec wc -l {} + | awk '$$1 > 400 && $$2 != "total" {print "past 400 lines, split where a concept splits: " $$2 " (" $$1 ")"}'
