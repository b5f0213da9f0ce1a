# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates keep the order of a list. Ansible's set filters do not: theirs is another one in each run, and with it the ranks of more than two hosts."""

from __future__ import annotations

import re

from ansible_collections.unimem.dgx_spark.tests.unit.repository.test_published_text import ROOT, files

SETS = re.compile(r"\|\s*(?:ansible\.builtin\.)?(?:difference|intersect|symmetric_difference|union)\b")
PLACES = ("roles/", "playbooks/", "inventory/", "extensions/", "tests/lab/", "README.md")


def test_no_template_makes_a_set_of_a_list() -> None:
    found = []
    for name in files():
        if name.startswith(PLACES) and name.endswith((".yml", ".md", ".j2")):
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
            found += [f"{name}:{number}" for number, line in enumerate(lines, start=1) if SETS.search(line)]
    assert not found, f"use reject('in', ...) or select('in', ...): {found}"


def test_the_pattern_finds_what_it_is_for() -> None:
    assert SETS.search("{{ a | difference(b) }}") and SETS.search("{{ a |ansible.builtin.union(b) }}") and not SETS.search("{{ a | unionize }}")
