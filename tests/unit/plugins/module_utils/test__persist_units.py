# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import configparser
import os
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import PersistError, PersistStore, is_kept
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_units import PersistUnits, let_go, unit_text
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import RunResult
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_persist import NAME, Systemd
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.test__persist import RECORD

TEXT = unit_text("default", ["/opt/my python", "-I", "/x/agent.pyz", "default"], "/x/rank.json", 3, 75)


@pytest.fixture
def world() -> Systemd:
    return Systemd()


@pytest.fixture
def units(world: Systemd, tmp_path: Path) -> PersistUnits:
    return PersistUnits(world, "default", str(tmp_path))


def test_the_unit_is_one_that_systemd_reads() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(TEXT)
    assert parser["Service"]["ExecStart"] == '"/opt/my python" "-I" "/x/agent.pyz" "default"'
    assert (parser["Service"]["Restart"], parser["Service"]["RestartPreventExitStatus"], parser["Service"]["TimeoutStopSec"]) == ("on-failure", "3", "105")
    assert (parser["Unit"]["StartLimitBurst"], parser["Unit"]["StartLimitIntervalSec"]) == ("12", "86400")
    # A boot does not wait for it, and it waits for whatever a boot starts.
    assert parser["Service"]["Type"] == "exec" and "multi-user.target" in parser["Unit"]["After"]


def test_written_started_stopped_removed(units: PersistUnits, world: Systemd, tmp_path: Path) -> None:
    assert not units.exists() and units.text() == "" and not units.active()
    units.write(TEXT)
    assert units.text() == TEXT and units.enabled()
    assert (tmp_path / "multi-user.target.wants" / NAME).resolve() == tmp_path / NAME
    units.start()
    assert units.active()
    units.stop()
    assert not units.active()
    units.remove()
    assert not units.exists() and list((tmp_path / "multi-user.target.wants").iterdir()) == []
    assert not world.reloaded


def test_a_unit_that_failed_is_started_again(units: PersistUnits, world: Systemd) -> None:
    world.states[NAME] = "failed"
    units.start()
    assert units.active()


def test_a_link_in_its_place_is_replaced(units: PersistUnits, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine", encoding="utf-8")
    (tmp_path / NAME).symlink_to(tmp_path / "victim")
    assert units.text() == ""
    units.write(TEXT)
    assert units.text() == TEXT and (tmp_path / "victim").read_text(encoding="utf-8") == "mine"


def test_letting_go_takes_the_record_before_the_program_is_stopped(world: Systemd, tmp_path: Path) -> None:
    directory, system = str(tmp_path / "persist"), str(tmp_path / "system")
    assert not let_go(world, "default", directory, system) and world.argvs == []
    store, units = PersistStore("default", directory), PersistUnits(world, "default", system)
    store.save(RECORD)
    units.write(TEXT)
    units.start()
    seen: list[bool] = []
    world.on_stop = lambda: seen.append(store.exists() or units.exists())
    assert is_kept("default", directory, system)
    assert let_go(world, "default", directory, system)
    assert not is_kept("default", directory, system)
    # What it finds when it is told to stop is nothing that it would have to stop.
    assert seen == [False] and world.states[NAME] == "inactive" and not os.path.exists(directory)
    assert not let_go(world, "default", directory, system)


def test_what_systemd_refuses_is_said(world: Systemd, tmp_path: Path) -> None:
    units = PersistUnits(world, "default", str(tmp_path))
    units.write(TEXT)
    world.broken = RunResult(rc=1, stderr="Failed to connect to bus")
    for call in (units.active, units.start, units.stop):
        with pytest.raises(PersistError, match="Failed to connect to bus"):
            call()
