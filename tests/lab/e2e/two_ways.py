# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of one lab host read twice at the same moment: by pynvml and by nvidia-smi.

The host is in the inventory under two names, each with an interpreter of its own: the distribution's Python has no pynvml, as on a
stock Spark, and that of the virtual environment /opt/nvidia-ml has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import INVENTORY, Run, run_module

MODULE = "unimem.dgx_spark.gpu_memory_facts"
SMI, PYNVML = "nvidia-smi", "pynvml"
INTERPRETERS = {SMI: "/usr/bin/python3", PYNVML: "/opt/nvidia-ml/bin/python3"}
ADDRESSES = {"spark-01": "10.1.230.180", "spark-02": "192.168.200.13"}


@dataclass(frozen=True)
class Seen:
    """What one of the ways gave: the facts, and the seconds that the task took more than a ping."""

    facts: dict[str, Any]
    seconds: float

    @property
    def reasons(self) -> dict[str, str]:
        return dict(self.facts["sources"]["reasons"])

    def process(self, pid: int) -> dict[str, Any]:
        """The one entry of a process."""
        (entry,) = (process for process in self.facts["processes"] if process["pid"] == pid)
        return dict(entry)


class TwoWays:
    """One host, read both ways. ``other_seconds`` is what a ping of it takes, connection and all."""

    def __init__(self, host: str, directory: Path) -> None:
        self.inventory = directory / "two_ways.yml"
        lines = [f"    {way}: {{ansible_host: {ADDRESSES[host]}, ansible_python_interpreter: {INTERPRETERS[way]}}}" for way in INTERPRETERS]
        common = f"-F {INVENTORY.parent.parent / '.lab' / 'ssh_config'}"
        header = ["all:", f"  vars: {{ansible_user: root, ansible_ssh_common_args: '{common}'}}", "  hosts:"]
        self.inventory.write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")
        self.other_seconds = max(self._run("ansible.builtin.ping").seconds(way) for _again in range(2) for way in INTERPRETERS)

    def _run(self, module: str, arguments: str = "", *options: str) -> Run:
        run = run_module(module, arguments, "all", *options, inventory=self.inventory)
        assert run.rc == 0 and not run.failures and not run.unreachable, run.failures or run.output
        return run

    def look(self, timeout: float = 10.0, *options: str) -> dict[str, Seen]:
        """The facts by each way."""
        run = self._run(MODULE, f"timeout={timeout}", *options)
        assert not run.changed
        return {way: Seen(run.fact("gpu_memory", way), run.seconds(way) - self.other_seconds) for way in INTERPRETERS}


def agree(seen: Mapping[str, Seen], without_version: str = "") -> Iterator[Seen]:
    """Both ways say the same, all but what moves and the words of the reasons; then each of them, to look at."""
    one, other = (_steady(each.facts, without_version) for each in seen.values())
    assert one == other
    yield from seen.values()


def _steady(facts: Mapping[str, Any], without_version: str) -> dict[str, Any]:
    steady = {name: facts[name] for name in ("class", "product", "process_memory", "guards", "boot_id")}
    steady["versions"] = {name: value for name, value in facts["versions"].items() if name != without_version}
    # Sizes move, and nvidia-smi gives whole MiB.
    steady["gpus"] = [{name: value if not name.startswith("memory_") else value is None for name, value in gpu.items()} for gpu in facts["gpus"]]
    steady["processes"] = [{name: value for name, value in process.items() if name != "state"} for process in facts["processes"]]
    steady["total"] = facts["memory"]["total"]
    steady["null"] = sorted(name for name, value in facts["memory"].items() if value is None)
    return steady
