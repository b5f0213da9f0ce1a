# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deployments in a row, each with a failure drawn by chance or with none: each ends with tokens, or with everything as before.

What one failure leaves behind meets the next deployment. The draw is printed and can be given again: UNIMEM_SOAK_SEED, UNIMEM_SOAK_DEPLOYMENTS.
With the stand-in engine, and so much memory that the embeddings service has to go.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from harness import HOSTS, Controller, cut_off, meminfo, on_host, ranks, run_playbook
from standin import LARGE, NAME, beside, embeddings_answer, left_behind, settings, tokens, until

DEPLOYMENTS = int(os.environ.get("UNIMEM_SOAK_DEPLOYMENTS", "30"))
SEED = int(os.environ.get("UNIMEM_SOAK_SEED") or random.SystemRandom().randrange(10**6))
TTL = 45
#: With a controller that has died, the nodes act when the lease has run out: with the step's own limit, and what stopping and restoring take.
BOUND = TTL + 150.0
SHORT: dict[str, Any] = {
    **LARGE,
    "tp_launch_start_timeout": 60,
    "tp_launch_stop_grace": 5,
    "service_eviction_timeout": 60,
    "service_eviction_grace": 5,
    "deploy_lease_ttl": TTL,
}


@dataclass(frozen=True)
class Draw:
    """What goes wrong in a deployment: a fault of the stand-in's own, or something that is done so many seconds after its beginning."""

    name: str
    fault: str = ""
    #: seconds after the beginning, at random below this; 0 for before it
    within: float = 0.0
    act: Callable[[Controller], None] = lambda controller: None


def _on(host: str, *argv: str) -> Callable[[Controller], None]:
    return lambda controller: (on_host(host, *argv, check=False), None)[1]


def _cut(controller: Controller) -> None:
    with cut_off():
        time.sleep(40)


#: RANK:STAGE:ACTION, see standin_image/vllm.
FAULTS = [f"{rank}:{stage}:{action}" for rank in (0, 1) for stage in ("context", "load", "kv") for action in ("exit", "raise", "stay")]
FAULTS += ["0:complete:raise", "1:complete:hang"]
DRAWS = (
    Draw("nothing"),
    *(Draw(fault, fault) for fault in FAULTS),
    *(Draw(f"rank {rank} is killed", within=60, act=_on(host, "docker", "kill", f"unimem-{NAME}-rank{rank}")) for rank, host in enumerate(HOSTS)),
    *(Draw(f"{host}: worker processes are killed", within=60, act=_on(host, "pkill", "-KILL", "-f", "VLLM::Worker_TP")) for host in HOSTS),
    *(Draw(f"{host}: docker is restarted", within=60, act=_on(host, "systemctl", "restart", "docker")) for host in HOSTS),
    Draw("the worker's cable is out for a while", within=60, act=_cut),
    Draw("the controller is killed", within=60, act=lambda controller: controller.kill()),
    Draw("Ctrl-C", within=60, act=lambda controller: controller.interrupt()),
)


def acting(draw: Draw, delay: float, controller: Controller) -> contextlib.AbstractContextManager[None]:
    """Do what was drawn when its time has come, while the deployment runs."""

    def work() -> None:
        time.sleep(delay)
        if controller.running():
            draw.act(controller)

    return beside(work, 120)


@pytest.mark.soak
def test_each_ends_with_tokens_or_as_before(undeployed: None) -> None:
    chance = random.Random(SEED)
    before = {host: meminfo(host)["MemAvailable"] for host in HOSTS}

    def as_before() -> bool:
        missing = [before[host] - meminfo(host)["MemAvailable"] for host in HOSTS]
        return not any(left_behind(host) for host in HOSTS) and embeddings_answer() and all(lacks < 0.05 * meminfo(HOSTS[0])["MemTotal"] for lacks in missing)

    told = []
    for number in range(1, DEPLOYMENTS + 1):
        draw = chance.choice(DRAWS)
        delay = chance.uniform(0, draw.within)
        what = f"deployment {number} of {DEPLOYMENTS}, seed {SEED}: {draw.name}" + (f" after {delay:.0f} s" if draw.within else "")
        print(what, flush=True)
        begin = time.monotonic()
        with settings(draw.fault, **SHORT) as extra:
            with Controller("playbooks/deploy_qwen.yml", extra) as controller, acting(draw, delay, controller):
                until(lambda: not controller.running(), f"{what}: the play ends", 400)  # noqa: B023
                status, output = controller.wait(1), controller.output
            if status == 0:
                assert all(ranks(host) for host in HOSTS), f"{what}: it says that it works, and no rank runs\n{output[-3000:]}"
                # What was drawn may have hit a group that was accepted a moment before: it is whole, or it is gone whole.
                if tokens():
                    told.append("tokens")
                else:
                    until(lambda: not any(rank["status"] == "running" for host in HOSTS for rank in ranks(host).values()), f"{what}: it ends whole", 60)
                    told.append("ended whole")
                run = run_playbook("playbooks/undeploy_qwen.yml", extra=extra)
                assert run.rc == 0, (what, run.failures)
            else:
                told.append("as before")
        until(as_before, f"{what}: everything is as before: {[left_behind(host) for host in HOSTS]}\n{output[-3000:]}", BOUND)
        print(f"  {told[-1]}, {time.monotonic() - begin:.0f} s", flush=True)
    assert len(told) == DEPLOYMENTS
    print({outcome: told.count(outcome) for outcome in sorted(set(told))})
