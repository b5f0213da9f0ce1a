# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import stat
import typing as t
from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import LeaseError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_units import LeaseUnits
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, RunResult

COMMAND = ["/usr/bin/python3", "-I", "-B", "/var/lib/unimem/lease/agent.pyz"]


class Systemd(FakeWorld):
    """Notes what systemctl and systemd-run are told, and lets transient units run."""

    def __init__(self) -> None:
        super().__init__()
        self.argvs: list[list[str]] = []
        self.active: set[str] = set()
        self.broken: dict[str, RunResult] = {}
        self.dead: set[str] = set()

    def run(self, argv: Sequence[str], timeout: float) -> RunResult:
        self.argvs.append(list(argv))
        if argv[0] in self.broken:
            return self.broken[argv[0]]
        if argv[0] == "systemd-run":
            unit = next(word[len("--unit=") :] for word in argv if word.startswith("--unit="))
            self.active.add(unit.replace(".service", ".timer") if any(word.startswith("--on-active") for word in argv) else unit)
        elif "stop" in argv:
            self.active -= set(argv)
        elif "is-active" in argv:
            names = argv[argv.index("--") + 1 :]
            return RunResult(rc=0, stdout="".join(f"{'active' if name in self.active - self.dead else 'inactive'}\n" for name in names))
        elif "list-units" in argv:
            return RunResult(rc=0, stdout="".join(f"{name} loaded active\n" for name in sorted(self.active)))
        return RunResult(rc=0)


@pytest.fixture
def world() -> Systemd:
    return Systemd()


@pytest.fixture
def units(world: Systemd, tmp_path: Path) -> LeaseUnits:
    return LeaseUnits(world, "/var/lib/unimem/lease", str(tmp_path / "system"))


def transient(world: Systemd) -> dict[str, list[str]]:
    return {argv[-1]: argv for argv in world.argvs if argv[0] == "systemd-run"}


def test_armed_and_disarmed(units: LeaseUnits, world: Systemd, tmp_path: Path) -> None:
    units.arm(COMMAND, True, 300)
    assert world.active == {"unimem-lease.timer", "unimem-lease-guard.service"} and units.missing(True) == []
    runs = transient(world)
    assert runs["expire"][-5:] == [*COMMAND, "expire"] and runs["guard"][-5:] == [*COMMAND, "guard"]
    assert {"--on-active=10", "--on-unit-inactive=10", "--timer-property=AccuracySec=1s"} <= set(runs["expire"])
    assert {"--property=Restart=on-failure", "--property=OOMScoreAdjust=-900"} <= set(runs["guard"])
    file = tmp_path / "system" / "unimem-lease-boot.service"
    link = tmp_path / "system" / "multi-user.target.wants" / "unimem-lease-boot.service"
    assert link.resolve() == file and stat.S_IMODE(file.stat().st_mode) == 0o644
    text = file.read_text(encoding="utf-8")
    assert "ConditionPathExists=/var/lib/unimem/lease/lease.json" in text
    assert 'ExecStart="/usr/bin/python3" "-I" "-B" "/var/lib/unimem/lease/agent.pyz" "boot"' in text
    assert len(units.left()) == 4
    units.disarm()
    assert units.left() == [] and not file.exists() and not os.path.lexists(link)


def test_systemd_is_not_made_to_read_its_files_again(units: LeaseUnits, world: Systemd) -> None:
    units.arm(COMMAND, True, 300)
    units.disarm()
    assert not [argv for argv in world.argvs if "daemon-reload" in argv or ("enable" in argv)]


def test_a_short_lease_is_looked_at_more_often(units: LeaseUnits, world: Systemd) -> None:
    units.arm(COMMAND, False, 4)
    assert "--on-active=4" in transient(world)["expire"] and "guard" not in transient(world)


@pytest.mark.parametrize(
    ("result", "message"),
    [(RunResult(rc=127, missing=True), "there is no systemd-run"), (RunResult(rc=1, stderr="Failed to connect to bus"), "Failed to connect to bus")],
)
def test_what_cannot_be_armed_leaves_nothing(units: LeaseUnits, world: Systemd, result: RunResult, message: str) -> None:
    world.broken["systemd-run"] = result
    with pytest.raises(LeaseError, match=message):
        units.arm(COMMAND, True, 300)
    assert units.left() == []


def test_a_unit_that_ends_at_once_is_noticed(units: LeaseUnits, world: Systemd) -> None:
    world.dead.add("unimem-lease-guard.service")
    with pytest.raises(LeaseError, match="unimem-lease-guard.service did not start"):
        units.arm(COMMAND, True, 300)
    assert world.active == set()


def test_the_service_does_not_stop_itself(units: LeaseUnits, world: Systemd) -> None:
    units.disarm(from_service=True)
    stopped = {word for argv in world.argvs if "stop" in argv for word in argv}
    assert "unimem-lease.service" not in stopped and "unimem-lease.timer" in stopped


def test_resting_keeps_the_next_boot(units: LeaseUnits, world: Systemd, tmp_path: Path) -> None:
    units.arm(COMMAND, True, 300)
    units.rest()
    assert world.active == set() and [os.path.basename(name) for name in units.left()] == ["unimem-lease-boot.service"] * 2


def test_words_mean_themselves_to_systemd(units: LeaseUnits, tmp_path: Path) -> None:
    units.arm(t.cast("list[str]", ["/opt/my python/%n/$HOME\\\"x", "agent.pyz"]), False, 300)
    text = (tmp_path / "system" / "unimem-lease-boot.service").read_text(encoding="utf-8")
    assert 'ExecStart="/opt/my python/%%n/$$HOME\\\\\\"x" "agent.pyz" "boot"' in text


def test_a_planted_link_is_replaced_and_not_followed(units: LeaseUnits, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine", encoding="utf-8")
    directory = tmp_path / "system"
    directory.mkdir()
    for name in ("unimem-lease-boot.service", "unimem-lease-boot.service.new"):
        (directory / name).symlink_to(victim)
    units.arm(COMMAND, False, 300)
    assert victim.read_text(encoding="utf-8") == "mine"
    assert not (directory / "unimem-lease-boot.service").is_symlink()
