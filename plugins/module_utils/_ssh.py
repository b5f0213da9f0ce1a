# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""ssh from one node to another over the fabric: its own command line, never the controller's arguments, and never a prompt.

The peer's host key is the one that Ansible read over its own, verified connection. It is handed to ssh on the command line
(KnownHostsCommand, OpenSSH 8.5 and newer): nobody's known_hosts is needed or written, and nothing is trusted on first use.
"""

from __future__ import annotations

import re
import shlex
import typing as t
from dataclasses import dataclass

#: Fast on every CPU with AES instructions, GB10's among them; the rest of OpenSSH's list stays as a fallback.
CIPHERS: t.Final = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
CONNECT_SECONDS: t.Final = 10
#: A dead peer is noticed after 4 times this.
KEEPALIVE_SECONDS: t.Final = 15

_KEY_TYPES: t.Final = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_ADDRESS: t.Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:_-]*(%[0-9A-Za-z.-]+)?")
_USER: t.Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_KEY_DATA: t.Final = re.compile(r"[A-Za-z0-9+/]+={0,3}")


#: The option of a module that sends to another node, as the doc fragment _peer describes it.
PEER_OPTION: t.Final[dict[str, t.Any]] = {
    "type": "dict",
    "required": True,
    "options": {
        "address": {"type": "str", "required": True},
        "host_key": {"type": "str", "required": True, "no_log": False},
        "user": {"type": "str"},
        "port": {"type": "int", "default": 22},
        "identity": {"type": "path"},
    },
}


class PeerError(ValueError):
    """The peer is described in a way that ssh could misread; the text says how."""


@dataclass(frozen=True)
class Peer:
    """How to reach another node from this one."""

    address: str
    #: "ssh-ed25519 AAAA…", without a comment
    host_key: str
    user: str = ""
    port: int = 22
    #: a private key on this node; "": ssh's defaults
    identity: str = ""

    @property
    def login(self) -> str:
        return f"{self.user}@{self.address}" if self.user else self.address


def peer_from(params: t.Mapping[str, t.Any]) -> Peer:
    """A peer from a module's `peer` option. Values come from an inventory and from other nodes: none may become an option of ssh."""
    address, user, port, identity = str(params["address"]), params.get("user") or "", int(params.get("port") or 22), params.get("identity") or ""
    if not _ADDRESS.fullmatch(address):
        raise PeerError(f"{address!r} is no address")
    if user and not _USER.fullmatch(user):
        raise PeerError(f"{user!r} is no user name")
    if not 0 < port < 65536:
        raise PeerError(f"{port} is no port")
    if '"' in identity or "%" in identity or identity.startswith("-"):
        raise PeerError(f"{identity!r} cannot be used as the name of a key file")
    return Peer(address, _one_key(str(params["host_key"])), user, port, identity)


def _one_key(text: str) -> str:
    """The type and the data of the best public key in a text of keys, as .pub files hold them; comments between them do not matter."""
    words = text.split()
    keys = {kind: data for kind, data in zip(words, words[1:]) if kind in _KEY_TYPES and _KEY_DATA.fullmatch(data)}
    for kind in _KEY_TYPES:
        if kind in keys:
            return f"{kind} {keys[kind]}"
    raise PeerError("the peer's host key is not a public key of a type that ssh knows (ed25519, ecdsa or rsa)")


def ssh_argv(peer: Peer) -> list[str]:
    """The command up to, not including, the destination."""
    name = peer.address if peer.port == 22 else f"[{peer.address}]:{peer.port}"
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_SECONDS),
        "ServerAliveInterval": str(KEEPALIVE_SECONDS),
        "ServerAliveCountMax": "4",
        "Compression": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": "/dev/null",
        "GlobalKnownHostsFile": "/dev/null",
        "KnownHostsCommand": f"/bin/echo {name} {peer.host_key}",
        "Ciphers": CIPHERS,
        "LogLevel": "ERROR",
    }
    if peer.identity:
        options["IdentityFile"] = f'"{peer.identity}"'
        options["IdentitiesOnly"] = "yes"
    words = ["ssh", "-p", str(peer.port)]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return words


def rsh_text(peer: Peer) -> str:
    """The same as one text, as rsync's --rsh takes it: split at blanks, with quotes understood."""
    return " ".join(shlex.quote(word) for word in ssh_argv(peer))


def refusal(peer: Peer, stderr: str) -> str:
    """What to do when ssh to the peer does not work, as one sentence with the remedy."""
    said = stderr.strip().splitlines()[-1] if stderr.strip() else "no message"
    lower = stderr.lower()
    if "permission denied" in lower or "too many authentication failures" in lower:
        remedy = (
            "this node's user has no key there: run `ssh-keygen -t ed25519` (once) and `ssh-copy-id " + peer.login + "` on this node, or have a key made "
            "for the copy alone (model_sync_temporary_key: true, for the image image_build_temporary_key: true)"
        )
    elif "host key verification failed" in lower or "identification has changed" in lower:
        remedy = "the machine behind this address has another host key than the node that Ansible reached: the address is that of another machine"
    elif "timed out" in lower or "no route" in lower or "unreachable" in lower:
        remedy = "the fabric does not carry it: check the cable, `ip -br address` on both nodes, and the firewall"
    elif "refused" in lower:
        remedy = "no sshd listens on the fabric address: look at ListenAddress in /etc/ssh/sshd_config there"
    else:
        remedy = f"try `ssh {peer.login} true` on this node"
    return f"ssh from this node to {peer.login} does not work ({said}); {remedy}"
