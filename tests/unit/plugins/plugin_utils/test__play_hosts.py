# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._play_hosts import why_none

GROUPS = {"all": ["web-01", "spark-01", "spark-02"], "ungrouped": ["web-01"], "sparks": ["spark-01", "spark-02"], "empty": []}


def why(pattern: Any, limit: str | None = None, groups: dict[str, list[str]] | None = None) -> str:
    variables = {"groups": GROUPS if groups is None else groups, "ansible_inventory_sources": ["/etc/hosts.yml"], "ansible_limit": limit}
    if limit is None:
        del variables["ansible_limit"]
    return why_none(pattern, variables, DataLoader(), "deploy_hosts")


@pytest.mark.parametrize("pattern", ["sparks", "all", "spark-*", "all:!web-01", "~sp.*02", "nosuch,spark-01", ["nosuch", "spark-01"], "localhost"])
def test_there_are_hosts(pattern: Any) -> None:
    assert why(pattern) == ""


@pytest.mark.parametrize("limit", ["spark-02", "sparks", "spark-0*,!spark-01", "web-01,spark-01"])
def test_a_limit_leaves_some(limit: str) -> None:
    assert why("sparks", limit) == ""


@pytest.mark.parametrize("pattern", ["nosuch", "empty", "sparks:&ungrouped", ["nosuch", "none"], "sparks:!all"])
def test_no_host_matches(pattern: Any) -> None:
    shown = pattern if isinstance(pattern, str) else "nosuch,none"
    assert why(pattern) == (
        f"no host matches '{shown}' in the inventory (/etc/hosts.yml), which has web-01, spark-01, spark-02 (in groups: sparks). "
        "Give the inventory of your nodes with -i, or say which of its hosts are meant with -e deploy_hosts=PATTERN."
    )


def test_an_inventory_without_hosts() -> None:
    assert "(/etc/hosts.yml), which has no hosts. Give" in why("sparks", groups={"all": [], "ungrouped": []})


def test_an_inventory_of_many_hosts_is_not_shown_whole() -> None:
    assert "which has h0, h1, h2, h3, h4, h5, h6, h7 and 32 more. " in why("sparks", groups={"all": [f"h{number}" for number in range(40)]})


def test_a_limit_leaves_none() -> None:
    assert why("sparks", "web-01").startswith("--limit web-01 leaves none of the hosts that match 'sparks' (spark-01, spark-02).")


def test_what_is_no_pattern() -> None:
    assert why("~sp(").startswith("'~sp(' is no pattern of hosts: ") and "deploy_hosts" in why("~sp(")
