# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench`: what gpu_memory_facts costs on a node, as a ratio to Ansible's own ping and setup in the same run.

Each round times the three modules one after the other on the same host over the same kept ssh connection, in an order
that changes from round to round; the table has medians over the rounds. Seconds depend on the machine, ratios less so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time

from tools import environments, lab
from tools.console import ToolError, main, say
from tools.environments import Environment
from tools.places import ROOT

MODULES = ("ansible.builtin.ping", "ansible.builtin.setup", "unimem.dgx_spark.gpu_memory_facts")


def _seconds(environment: Environment, host: str, module: str) -> float:
    """One ad-hoc call, start to end."""
    argv = [str(environment.tool("ansible")), "-i", "inventory/lab.yml", host, "-m", module]
    start = time.monotonic()
    done = subprocess.run(argv, check=False, env={**os.environ, **environment.env()}, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolError(f"{module} failed on {host}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return time.monotonic() - start


def _run() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (default: 7); one more warms up")
    parser.add_argument("--host", default="spark-01")
    options = parser.parse_args()
    if options.rounds < 3:
        raise ToolError("--rounds is a number from 3 up: fewer have no median worth printing")
    environment = environments.development()
    if lab.control(environment, "up") != 0:
        raise ToolError("the lab did not come up; its own message is above")
    seen: dict[str, list[float]] = {module: [] for module in MODULES}
    for number in range(options.rounds + 1):
        turn = number % len(MODULES)
        for module in MODULES[turn:] + MODULES[:turn]:
            took = _seconds(environment, options.host, module)
            if number:
                seen[module].append(took)
    ping = statistics.median(seen[MODULES[0]])
    say(f"\n{'module':<36} {'median s':>9} {'least':>7} {'most':>7} {'x ping':>7}    ({options.rounds} rounds, {options.host})")
    for module, times in seen.items():
        middle = statistics.median(times)
        say(f"{module:<36} {middle:9.2f} {min(times):7.2f} {max(times):7.2f} {middle / ping:7.2f}")
    return 0


if __name__ == "__main__":
    main(_run)
