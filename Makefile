# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

# Thin: each target is a tool of tools/, which makes the environment that it needs and says first what it installs.
# Arguments for a tool: make units ARGS='-k fabric'
PYTHON ?= python3
TOOL := $(PYTHON) -B -m tools
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test soak lint bench units sanity lab-up lab-down lab-test deps clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo:  ## two simulated Sparks, deploy_qwen.yml on them, tokens out
	@$(TOOL).demo $(ARGS)

test:  ## everything that CI runs: lint, units, sanity, the lab end to end (UNIMEM_LAB=off: without the lab, said loudly)
	@$(TOOL).everything $(ARGS)

soak:  ## the long tests, not part of CI (ARGS='--rounds 10')
	@$(TOOL).soak $(ARGS)

lint:  ## every check that runs none of the product (ARGS='ruff mypy': only these)
	@$(TOOL).lint $(ARGS)

bench:  ## what things cost, as ratios (ARGS="--rounds 5 facts"; ARGS=--list: what there is)
	@$(TOOL).bench $(ARGS)

units:  ## unit tests on both cores and on the nodes' Pythons
	@$(TOOL).units $(ARGS)

sanity:  ## ansible-test sanity on both cores, no ignores (ARGS='--test pep8')
	@$(TOOL).sanity $(ARGS)

lab-up:  ## the two simulated Sparks, in the situation of the seed; inventory/lab.yml then works
	@$(TOOL).lab up $(ARGS)

lab-down:  ## the simulated Sparks gone, with all that they left
	@$(TOOL).lab down $(ARGS)

lab-test:  ## only what runs on the lab: end-to-end tests and molecule
	@$(TOOL).lab test

deps:  ## the development environment and the collections that ansible.cfg looks for
	@$(TOOL).environments dev newest

clean:  ## remove what make made in the checkout (the lab must be down; the user's cache stays)
	@$(TOOL).clean
