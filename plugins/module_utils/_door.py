# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A door for one copy: an rsync daemon as a transient unit of systemd, on one address, for one peer, one folder and one secret.

What it needs lies in a folder of its own below /run, which is memory: a crash of the machine takes it along, and whatever else
ends the unit (its time is up, it was stopped, it died) makes systemd remove it. Nothing of it is enabled or survives a boot.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import typing as t
from dataclasses import dataclass

#: Everything of ours below it, one folder a door.
BASE: t.Final = "/run/unimem-model-sync"
UNIT: t.Final = "unimem-model-sync-"
#: The name that rsync has for the folder.
MODULE: t.Final = "model"

_NAME: t.Final = re.compile(r"[0-9a-f]{8,32}")
_SECRET: t.Final = re.compile(r"[A-Za-z0-9_-]{16,128}")


class DoorError(ValueError):
    """A door cannot be opened like this; the text says why."""


@dataclass(frozen=True)
class Door:
    """What a door is asked to be."""

    #: hexadecimal digits that make the unit's name
    name: str
    #: where it listens
    address: str
    #: who is let in
    allow: str
    #: the folder that is written to
    folder: str
    #: seconds after which systemd ends it
    seconds: int

    @property
    def unit(self) -> str:
        return f"{UNIT}{self.name}.service"

    @property
    def directory(self) -> str:
        return os.path.join(BASE, self.name)

    @property
    def user(self) -> str:
        return f"copy-{self.name}"


def door_from(params: t.Mapping[str, t.Any]) -> Door:
    """A door from a module's options. Raises DoorError for what a configuration file could misread."""
    name, folder = str(params["name"]), str(params.get("folder") or "")
    if not _NAME.fullmatch(name):
        raise DoorError(f"{name!r} is no name of a door: 8 to 32 hexadecimal digits")
    if params["state"] == "closed":
        return Door(name, "", "", "", 0)
    for text in (params["address"], params["allow"]):
        try:
            parsed = ipaddress.ip_address(text)
        except ValueError as exc:
            raise DoorError(f"{text!r} is no IP address") from exc
        if parsed.is_unspecified or parsed.is_multicast:
            raise DoorError(f"{text} is not the address of one node's link")
    if not os.path.isabs(folder) or any(character in folder for character in "\n\r\0%#;\\") or folder != folder.strip():
        raise DoorError(f"{folder!r} cannot be written in rsyncd.conf: use model_sync_transport=ssh for a path with these characters")
    if int(params["seconds"]) < 1:
        raise DoorError("seconds has to be 1 or more")
    return Door(name, str(params["address"]), str(params["allow"]), folder, int(params["seconds"]))


def check_secret(secret: str) -> str:
    """Return a secret that can stand in a secrets file. Raises DoorError; the text does not have it."""
    if not _SECRET.fullmatch(secret):
        raise DoorError("the password has to be 16 to 128 letters, digits, - and _")
    return secret


def configuration(door: Door) -> str:
    """rsyncd.conf: one module, written only, from one address, with a secret, in a chroot of the folder."""
    return "\n".join(
        [
            "uid = root",
            "gid = root",
            "use chroot = yes",
            "numeric ids = yes",
            "munge symlinks = no",
            "list = no",
            "max connections = 64",
            "max verbosity = 1",
            "reverse lookup = no",
            "syslog facility = daemon",
            f"[{MODULE}]",
            f"path = {door.folder}",
            "read only = no",
            "write only = yes",
            f"hosts allow = {door.allow}",
            "hosts deny = *",
            f"auth users = {door.user}",
            f"secrets file = {os.path.join(door.directory, 'secrets')}",
            "strict modes = yes",
            # Nothing that removes, or that has the daemon run or keep anything.
            "refuse options = delete* remove-source-files log-file* backup* devices specials",
            "",
        ]
    )


def free_port(address: str) -> int:
    """A port that nothing listens on at this address. Raises OSError where the address is not this node's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def write_files(door: Door, secret: str) -> None:
    """Write the folder that the daemon reads, root's alone. Raises OSError."""
    os.makedirs(BASE, mode=0o700, exist_ok=True)
    os.mkdir(door.directory, 0o700)
    for name, text in (("rsyncd.conf", configuration(door)), ("secrets", f"{door.user}:{secret}\n")):
        descriptor = os.open(os.path.join(door.directory, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(text)


def remove_files(door: Door) -> None:
    """Remove the folder, if it is there."""
    shutil.rmtree(door.directory, ignore_errors=True)


def start_argv(door: Door, port: int, rsync: str, remove: str) -> list[str]:
    """systemd-run for the daemon: it ends by itself, and its folder with it."""
    properties = {
        "Description": "rsync daemon for one copy of a model (unimem.dgx_spark.model_sync)",
        "Type": "exec",
        "RuntimeMaxSec": str(door.seconds),
        "ExecStopPost": f"{remove} -rf -- {door.directory}",
        "Restart": "no",
        "KillMode": "control-group",
        "TimeoutStopSec": "10",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "ProtectHome": "no",
        "UMask": "0022",
        # For systemd with control groups v2: the kernel drops what comes from elsewhere before rsync sees it.
        "IPAddressDeny": "any",
        # Its own address: whoever opened it looks whether it answers. rsync itself lets only the peer in.
        "IPAddressAllow": f"{door.allow} {door.address}",
    }
    argv = ["systemd-run", f"--unit={door.unit}", "--collect", "--quiet"]
    argv += [f"--property={name}={value}" for name, value in properties.items()]
    configuration_file = os.path.join(door.directory, "rsyncd.conf")
    return [*argv, "--", rsync, "--daemon", "--no-detach", f"--config={configuration_file}", f"--address={door.address}", f"--port={port}"]


def listens(address: str, port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=timeout):
            return True
    except OSError:
        return False
