# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module killed by SIGKILL after each thing that it does, while it evicts and while it restores, and a boot between: nothing is ever lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness import lab
from stand_ins import HOLD, StandIns, wait_for

ALL: dict[str, Any] = {"stop": ["unit:e2e-wrapper", "unit:e2e-woken", "container:e2e-alone"]}
ROUNDS = 200


@pytest.fixture
def services(strangers: StandIns) -> StandIns:
    """A unit that runs a container, a unit with a socket, and a container with a policy of its own."""
    strangers.container("e2e-wrapped", run=False)
    strangers.unit("e2e-wrapper.service", "/usr/bin/docker start --attach e2e-wrapped", Service="Restart=always\nRestartSec=1\nSuccessExitStatus=137 143")
    strangers.unit_file("e2e-woken.socket", "[Unit]\nDescription=end-to-end test\n[Socket]\nListenStream=127.0.0.1:7997\n[Install]\nWantedBy=sockets.target\n")
    strangers.unit("e2e-woken.service", f"{HOLD} --name e2e-woken --mib 8", start=False)
    strangers.run("systemctl", "enable", "--now", "--quiet", "e2e-woken.socket")
    strangers.run("systemctl", "start", "e2e-woken.service")
    strangers.container("e2e-alone", "--restart", "on-failure:3")
    wait_for(lambda: strangers.listens_in("e2e-wrapped"))
    return strangers


def settled(services: StandIns) -> dict[str, str]:
    """How things are, once no unit is between two states any more."""
    return dict(wait_for(lambda: (now := services.state()) and not any("ing " in word.replace("running ", "") for word in now.values()) and now))


def killed_and_restored(services: StandIns, before: dict[str, str], evict_at: int, restore_at: int | None) -> None:
    services.reclaim(die_at=evict_at, **ALL)
    if restore_at is not None:
        services.reclaim("restored", die_at=restore_at)
    result = services.reclaim("restored")
    assert result["verdict"] == "restored", (evict_at, restore_at, result["msg"])
    assert settled(services) == before, (evict_at, restore_at)
    assert result["evicted"] == []


def test_killed_at_some_steps(services: StandIns) -> None:
    """The steps where most is half done. All of them are the long test's."""
    before = settled(services)
    assert set(before.values()) == {"active enabled", "running no", "running on-failure"}
    whole = services.reclaim(**ALL)["done"]
    services.restored()
    assert settled(services) == before
    first_stop = next(index for index, what in enumerate(whole, 1) if what.startswith("start_stopping"))
    assert whole[0].startswith("write"), "the journal is written before anything is touched"
    for step in (2, first_stop, len(whole) - 2):
        killed_and_restored(services, before, step, 2)


@pytest.mark.soak
def test_killed_at_every_step_two_hundred_times(services: StandIns) -> None:
    chance = random.Random(5)
    before = settled(services)
    evicting = len(services.reclaim(**ALL)["done"])
    restoring = len(services.reclaim("restored")["done"])
    assert evicting > 10 and restoring > 5 and settled(services) == before
    for number in range(ROUNDS):
        killed_and_restored(services, before, number % evicting + 1, chance.choice([None, chance.randint(1, restoring)]))


@pytest.mark.soak
def test_evicted_services_stay_down_over_a_boot_and_come_back_after_it(strangers: StandIns) -> None:
    strangers.unit("e2e-boot.service", f"{HOLD} --name e2e-boot --mib 8")
    strangers.container("e2e-boot", "--restart", "always")
    before = strangers.state()
    assert strangers.reclaim(stop=["unit:e2e-boot", "container:e2e-boot"])["verdict"] == "freed"
    for command in ("down", "up"):
        lab(command, timeout=300).check_returncode()
    assert strangers.state() == {"e2e-boot.service": "inactive disabled", "e2e-boot": "exited no"}
    strangers.prepare()
    strangers.restored()
    assert strangers.state() == before
