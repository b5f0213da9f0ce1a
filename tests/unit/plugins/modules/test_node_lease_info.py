# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_lease_info tells is tested with node_lease, which tells the same (test__lease_run.py). Here: that it needs little, and its own errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _agent_archive
from ansible_collections.unimem.dgx_spark.plugins.module_utils._agent_archive import PACKAGE, collect_sources
from ansible_collections.unimem.dgx_spark.plugins.modules import node_lease_info as module


def test_ansible_sends_no_more_than_looking_needs() -> None:
    """Each deployment begins with it: what Ansible sends it packs anew each time, and the node compiles it."""
    sent: set[str] = set()
    for name in _agent_archive._imports(Path(module.__file__).read_text(encoding="utf-8")):
        sent.update(collect_sources(name.removeprefix(f"{PACKAGE}.")))
    assert not {f"{PACKAGE}.{name}" for name in ("_facts", "_restore", "_systemd", "_agent_archive")} & sent


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"deployment": "../x"}, "deployment"),
        ({"journal": "relative.json"}, "absolute path"),
        ({"owner": {"id": " "}}, "needs an id"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] and why in answer["msg"]
