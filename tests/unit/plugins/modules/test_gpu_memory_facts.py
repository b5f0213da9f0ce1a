# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible.module_utils import basic

from ansible_collections.unimem.dgx_spark.plugins.modules import gpu_memory_facts

try:
    from ansible.module_utils.testing import patch_module_args
except ImportError:  # the tests of modules also run on targets whose module_utils are older
    pytest.skip("ansible.module_utils.testing came with ansible-core 2.19", allow_module_level=True)

NODES = Path(__file__).parents[2] / "nodes"


class Exit(Exception):
    """What the module answered."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., dict[str, t.Any]]:
    def leave(self: basic.AnsibleModule, **result: t.Any) -> t.NoReturn:
        raise Exit(result)

    def fail(self: basic.AnsibleModule, msg: str, **result: t.Any) -> t.NoReturn:
        raise Exit({"failed": True, "msg": msg, **result})

    monkeypatch.setattr(basic.AnsibleModule, "exit_json", leave)
    monkeypatch.setattr(basic.AnsibleModule, "fail_json", fail)

    def call(check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
        with patch_module_args({**options, "_ansible_check_mode": check_mode}), pytest.raises(Exit) as caught:
            gpu_memory_facts.main()
        return t.cast("dict[str, t.Any]", caught.value.args[0])

    return call


@pytest.mark.parametrize("check_mode", [False, True])
def test_this_machine_whatever_it_is(run: t.Callable[..., dict[str, t.Any]], check_mode: bool) -> None:
    result = run(check_mode=check_mode)
    assert set(result) == {"changed", "ansible_facts"}
    assert result["changed"] is False
    facts = result["ansible_facts"]["gpu_memory"]
    assert facts["memory"]["total"] > 0
    assert "raw" not in facts


def test_only_one_fact_is_returned(run: t.Callable[..., dict[str, t.Any]]) -> None:
    assert list(run(replay=str(NODES / "spark-2026-idle"))["ansible_facts"]) == ["gpu_memory"]


def test_a_recorded_node_stands_in_for_this_machine(run: t.Callable[..., dict[str, t.Any]]) -> None:
    facts = run(replay=str(NODES / "seed-worker"))["ansible_facts"]["gpu_memory"]
    assert facts["memory"]["total"] == 125513720 * 1024
    assert facts["processes"][0]["owner"]["name"] == "vllm_embeddings"


def test_what_raw_returns_can_be_replayed(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    first = run(raw=True)["ansible_facts"]["gpu_memory"]
    raw = first.pop("raw")
    (tmp_path / "node.json").write_text(json.dumps(raw))
    assert run(replay=str(tmp_path))["ansible_facts"]["gpu_memory"] == first


def test_a_node_that_is_not_there(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    result = run(replay=str(tmp_path / "nowhere"))
    assert result["failed"] is True
    assert str(tmp_path / "nowhere") in result["msg"]


@pytest.mark.parametrize("timeout", [0, -1, 100000, "nan"])
def test_a_deadline_that_makes_no_sense(run: t.Callable[..., dict[str, t.Any]], timeout: t.Any) -> None:
    assert "must be more than 0" in run(timeout=timeout)["msg"]
