# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Boot a host: systemd-nspawn in the host's control group and network namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from . import cgroups, network, plan, poolfs
from .errors import LabError
from .paths import SOURCE

INIT = "/usr/lib/unimem-lab/init"
POOL_IN_HOST = "/var/lib/unimem-lab/pool"


def argv(host: plan.Host, docker: Path) -> list[str]:
    """The command line of a host whose root is mounted. ``docker`` becomes its /var/lib/docker."""
    return [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        f"--machine={host.machine}",
        f"--hostname={host.name}",
        f"--directory={host.root}",
        f"--network-namespace-path={network.NETNS / host.netns}",
        "--console=pipe",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--kill-signal=SIGRTMIN+3",
        # All that Docker needs inside, but not the machine's clock and kernel modules.
        "--capability=all",
        "--drop-capability=CAP_SYS_MODULE,CAP_SYS_TIME",
        "--system-call-filter=keyctl add_key request_key bpf @mount @keyring",
        # A file system of its own, not one laid over another: else Docker's overlay2 cannot work in it.
        f"--bind={docker}:/var/lib/docker",
        f"--bind={host.pool}:{POOL_IN_HOST}",
        INIT,
    ]


def start_pool(groups: cgroups.Groups, host: plan.Host, log: Path, driver_unit: str) -> None:
    """Start serving the host's memory figures; returns when they can be read."""
    host.pool.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", poolfs.__name__, "--mount", str(host.pool), "--name", host.machine]
    command += ["--cgroup", str(groups.memory_directory(host.name)), "--driver-unit", driver_unit]
    ready, child_end = os.pipe()
    try:
        with log.open("w", encoding="utf-8") as out:
            subprocess.Popen(
                [*command, "--ready", str(child_end)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=SOURCE,
                start_new_session=True,
                pass_fds=[child_end],
                preexec_fn=lambda: groups.join(cgroups.HELPERS),
            )
        os.close(child_end)
        # The helper writes when it is mounted; its end closes the pipe in any case.
        if os.read(ready, 1) != b"1":
            raise LabError(f"The memory figures of {host.name} cannot be served; the reason is in {log}.", log.read_text(encoding="utf-8").strip())
    finally:
        os.close(ready)


def boot(groups: cgroups.Groups, host: plan.Host, docker: Path, log: Path) -> None:
    """Start the host and return at once."""
    docker.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        subprocess.Popen(
            argv(host, docker),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
            preexec_fn=lambda: groups.join(host.name),
        )


def power_off(groups: cgroups.Groups, host: str) -> None:
    """Ask a host to shut down: its systemd-nspawn passes the request to the host's systemd."""
    for pid in groups.processes(host):
        try:
            name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
            if name == "systemd-nspawn":
                os.kill(pid, signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError):
            continue


def forget() -> None:
    """Remove the empty directories that systemd-nspawn itself does not remove where /run is not a tmpfs."""
    for host in plan.EVERY:
        directory = Path("/run/systemd/nspawn/propagate", host.machine)
        if directory.is_dir():
            directory.rmdir()
