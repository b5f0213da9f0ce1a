# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible runs it: options in, JSON out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.unimem.dgx_spark.plugins.modules import model_download as module
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import model_trees
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.fake_hf import FakeHf
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.model_trees import REVISION


class Call:
    """Runs the module."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, **arguments: Any) -> dict[str, Any]:
        with patch_module_args({"repository": "org/x", "revision": REVISION, **arguments}), pytest.raises(SystemExit):
            module.main()
        told: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return told


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(capsys)


def test_it_reports_by_default(run: Call, tmp_path: Path) -> None:
    told = run(path=str(model_trees.cache(tmp_path)))
    assert told["complete"] and not told["changed"] and told["layout"] == "cache" and told["seconds"] >= 0


def test_a_token_is_masked_wherever_it_turns_up(run: Call, tmp_path: Path) -> None:
    hf = FakeHf(tmp_path / "program")
    hf.dry({"status": 1, "err": "Error: t0ken-of-mine is not let in\n"})
    told = run(path=str(tmp_path / "models--org--x"), state="downloaded", program=str(hf.path), token="t0ken-of-mine")
    assert told["failed"] and "is not let in" in told["msg"]
    assert "t0ken-of-mine" not in json.dumps(told)
    assert hf.calls[-1]["env"]["HF_TOKEN"] == "t0ken-of-mine"


def test_progress_goes_away(run: Call, tmp_path: Path) -> None:
    hf = FakeHf(tmp_path / "program")
    told = run(path=str(tmp_path / "models--org--x"), state="downloaded", program=str(hf.path), progress=str(tmp_path / "progress"))
    assert told["failed"] and "is not complete" in told["msg"] and not (tmp_path / "progress").exists()


@pytest.mark.parametrize(("arguments", "expected"), [({"tries": 0}, "tries is 0"), ({"workers": -1}, "workers is -1"), ({"revision": "main"}, "full commit")])
def test_what_cannot_be_meant(run: Call, tmp_path: Path, arguments: dict[str, Any], expected: str) -> None:
    told = run(path=str(tmp_path / "models--org--x"), **arguments)
    assert told["failed"] and expected in told["msg"]
