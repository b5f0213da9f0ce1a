# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _node, _reclaim_run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import read_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld
from ansible_collections.unimem.dgx_spark.plugins.modules import gpu_process_reclaim as module


def call(capsys: pytest.CaptureFixture[str], **parameters: t.Any) -> dict[str, t.Any]:
    with patch_module_args(parameters), pytest.raises(SystemExit):
        module.main()
    return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> t.Iterator[subprocess.Popen[bytes]]:
    """A real process that the driver is said to list, on this real machine."""
    made = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert made.stdout is not None and made.stdout.readline() == b"ready\n"
    real = _node.gather

    def gather(world: t.Any, timeout: float = 10.0, raw: bool = False) -> dict[str, t.Any]:
        facts = real(world, timeout=timeout, raw=raw)
        process = read_process(LiveWorld(), made.pid)
        if process is not None and process.state != "Z":
            owner = {"kind": "process", "name": process.name, "id": None, "unit": None, "restarted_by": None}
            row = {"pid": made.pid, "start_time": process.start_time, "memory": 1 << 20, "name": process.name, "command": " ".join(process.argv)}
            facts["processes"] = [*facts["processes"], {**row, "kinds": ["compute"], "user": "tester", "protected": None, "owner": owner}]
        return facts

    monkeypatch.setattr(_node, "gather", gather)
    monkeypatch.setattr(_reclaim_run, "lock_directory", lambda: str(tmp_path / "locks"))
    yield made
    made.kill()
    made.communicate()


def name_of(child: subprocess.Popen[bytes]) -> str:
    process = read_process(LiveWorld(), child.pid)
    assert process is not None
    return process.name


def test_report_is_the_default_and_touches_nothing(capsys: pytest.CaptureFixture[str], child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    result = call(capsys, stop=[f"process:{name_of(child)}"], journal=str(tmp_path / "j" / "x.json"))
    assert result["verdict"] == "reported" and result["would"] == "freed" and not result["changed"]
    assert [row["result"] for row in result["actions"]] == ["planned"]
    assert child.poll() is None and not (tmp_path / "j").exists()


def test_check_mode(capsys: pytest.CaptureFixture[str], child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    result = call(capsys, state="freed", stop=[f"process:{name_of(child)}"], journal=str(tmp_path / "j" / "x.json"), _ansible_check_mode=True)
    assert result["changed"] and child.poll() is None and not (tmp_path / "j").exists()


def test_a_real_process_ends_by_term(capsys: pytest.CaptureFixture[str], child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    result = call(capsys, state="freed", stop=[f"process:{name_of(child)}"], journal=str(tmp_path / "j" / "x.json"), timeout=20)
    assert child.wait(10) == -15
    assert result["verdict"] == "freed" and result["changed"] and result["actions"][0]["result"] == "ended"
    entries = json.loads((tmp_path / "j" / "x.json").read_text())["entries"]
    assert [(each["kind"], each["state"]) for each in entries] == [("process", "settled")]
    again = call(capsys, state="freed", stop=[f"process:{result['actions'][0]['target'].split(' ')[0]}"], journal=str(tmp_path / "j" / "x.json"))
    assert again["verdict"] == "nothing_to_do" and not again["changed"]


def test_this_run_and_its_ancestors_are_never_signalled(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = read_process(LiveWorld(), LiveWorld().read_link("/proc/self") and int(str(LiveWorld().read_link("/proc/self"))))
    assert own is not None
    real = _node.gather

    def gather(world: t.Any, timeout: float = 10.0, raw: bool = False) -> dict[str, t.Any]:
        facts = real(world, timeout=timeout, raw=raw)
        owner = {"kind": "process", "name": own.name, "id": None, "unit": None, "restarted_by": None}
        facts["processes"] = [
            {"pid": own.pid, "start_time": own.start_time, "memory": 1, "name": own.name, "command": own.name, "user": "x", "protected": None, "owner": owner}
        ]
        return facts

    monkeypatch.setattr(_node, "gather", gather)
    monkeypatch.setattr(_reclaim_run, "lock_directory", lambda: str(tmp_path / "locks"))
    result = call(capsys, state="freed", stop=[f"process:{own.name}"], kill_leftovers=True, journal=str(tmp_path / "j" / "x.json"))
    assert not result["changed"] and result["refused"][0]["code"] == "protected" and "this very run" in result["refused"][0]["reason"]


def test_failure_carries_the_whole_result(capsys: pytest.CaptureFixture[str], child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    result = call(capsys, state="freed", stop=[f"process:{name_of(child)}"], need="900 TiB", journal=str(tmp_path / "j" / "x.json"))
    assert result["failed"] and result["verdict"] == "not_enough" and child.poll() is None
    assert result["msg"].startswith("not_enough: 900.0 TiB are wanted") and f"pid {child.pid}" in result["msg"]
    assert {"before", "after", "held_by", "actions", "trajectory", "journal", "diff"} <= set(result)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"stop": ["everything"]}, "known kind"),
        ({"stop": ["process:*"]}, "matches everything"),
        ({"need": "12G"}, "GiB"),
        ({"timeout": 0}, "timeout"),
        ({"state": "gone"}, "must be one of"),
    ],
)
def test_parameters_that_cannot_be_meant(capsys: pytest.CaptureFixture[str], parameters: dict[str, t.Any], words: str) -> None:
    result = call(capsys, **{"state": "freed", **parameters})
    assert result["failed"] and words in result["msg"]


def test_documented_return_values_are_the_returned_ones(capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, stop=["unit:none.service"])
    result.pop("invocation", None)
    assert set(result) - {"changed"} == set(yaml.safe_load(module.RETURN))
