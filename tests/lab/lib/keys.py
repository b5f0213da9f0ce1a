# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's ssh keys, made once a checkout, and the client configuration that uses nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from . import plan
from .command import run
from .paths import Paths

#: The key with which the machine (Ansible) comes in.
CLIENT = "id_ed25519"


def host_key(host: str) -> str:
    return f"host_{host}_ed25519"


def node_key(host: str) -> str:
    """The key with which root of a host reaches the other hosts over the fabric."""
    return f"node_{host}_ed25519"


def ensure(paths: Paths) -> None:
    """Make what is missing of keys, known_hosts and ssh_config."""
    paths.keys.mkdir(parents=True, exist_ok=True)
    paths.keys.chmod(0o700)
    names = [CLIENT, *(make(host.name) for host in plan.HOSTS for make in (host_key, node_key))]
    for name in names:
        if not (paths.keys / name).exists():
            comment = name.replace("_ed25519", "@unimem-lab")
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", paths.keys / name])
    write(paths.known_hosts, known_hosts({host.name: public(paths, host_key(host.name)) for host in plan.HOSTS}))
    write(paths.ssh_config, ssh_config(paths.keys / CLIENT, paths.known_hosts))


def public(paths: Paths, name: str) -> str:
    return (paths.keys / f"{name}.pub").read_text(encoding="ascii").strip()


def known_hosts(host_keys: dict[str, str]) -> str:
    """One line a host: its name and all its addresses."""
    lines = []
    for host in plan.HOSTS:
        kind, key = host_keys[host.name].split()[:2]
        lines.append(f"{','.join((host.name, *host.addresses))} {kind} {key}\n")
    return "".join(lines)


def ssh_config(identity: Path, hosts_file: Path) -> str:
    """For ``ssh -F``: the hosts by name and by address, the second through the first."""
    lines = ["# Written by lab.py.\n"]
    for host in plan.HOSTS:
        lines.append(f"Host {host.name} {host.ssh_address}\n  HostName {host.ssh_address}\n")
        if host.jump:
            lines.append(f"  ProxyJump {host.jump}\n")
    lines.append(
        "Host *\n"
        "  User root\n"
        f'  IdentityFile "{identity}"\n'
        "  IdentitiesOnly yes\n"
        "  IdentityAgent none\n"
        f'  UserKnownHostsFile "{hosts_file}"\n'
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  BatchMode yes\n"
        "  ConnectTimeout 10\n"
        "  ServerAliveInterval 15\n"
    )
    return "".join(lines)


def write(file: Path, text: str, mode: int = 0o600) -> None:
    """Write a file whole or not at all."""
    new = file.with_name(f"{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    new.chmod(mode)
    new.replace(file)
