# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo`: two simulated Sparks, the real playbook, tokens. Where the lab cannot run: why, and the plan on recorded nodes."""

from __future__ import annotations

import time

from tools import environments, lab
from tools.console import ToolError, call, main, say
from tools.environments import Environment
from tools.places import BUILD, ROOT

INVENTORY = "inventory/lab.yml"
REPORTS = BUILD / "demo"


def _playbook(environment: Environment, *arguments: str) -> int:
    return call([environment.tool("ansible-playbook"), *arguments], environment.env(), ROOT)


def _plan(environment: Environment) -> int:
    """What needs no lab: the budget of the real model on two recorded Sparks."""
    say("\nInstead: the plan for Qwen3.5-122B-A10B-FP8 on two recorded Sparks. It reads only; nothing is started.\n")
    return _playbook(environment, "-i", "inventory/recorded.yml", "playbooks/plan.yml")


def _run() -> int:
    start = time.monotonic()
    say("make demo: a Python environment below .build and collections below .collections; then the lab, which says itself what it installs and creates.")
    environment = environments.development()
    if lab.switched_off():
        say(f"\nThe lab does not run here: {lab.SWITCH}=off.")
        return _plan(environment)
    status = lab.control(environment, "up")
    if status == lab.CANNOT_RUN_HERE:
        say("\nThe lab cannot run on this machine; the reason is above.")
        return _plan(environment)
    if status != 0:
        raise ToolError("the lab did not come up; its own message is above, with the remedy")
    status = _playbook(environment, "-i", INVENTORY, "playbooks/deploy_qwen.yml", "-e", f"deploy_reports={REPORTS}")
    if status != 0:
        raise ToolError("deploy_qwen.yml failed; its own message is above. `make demo` again continues, `make lab-down` removes the hosts")
    say("\n" + (REPORTS / "default.txt").read_text(encoding="utf-8"))
    say(f"Done in {time.monotonic() - start:.0f} s. Now, in this checkout, with .build/venv-dev/bin on PATH:")
    say(f"  ansible-playbook -i {INVENTORY} playbooks/deploy_qwen.yml      again: changed=0, nothing restarted")
    say(f"  ansible -i {INVENTORY} sparks -m unimem.dgx_spark.gpu_memory_facts")
    say(f"  ansible-playbook -i {INVENTORY} playbooks/undeploy_qwen.yml    the engine gone, the embeddings service back")
    say("  make lab-down                                                 the hosts gone")
    return 0


if __name__ == "__main__":
    main(_run)
