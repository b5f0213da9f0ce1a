# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""rsync of a list of files to another node: the two ways there, the arguments, and its exit codes as sentences.

It writes in place, because what it writes to is a folder that nothing reads from: a file that was cut off lies there under its
name with another time than the source's, so that the next run neither takes it for whole nor sends it from the start. No
--append (it never looks at what is there), no --update (a cut file passes for a newer one), no --sparse (wrong together with
--inplace in some versions), no compression (slower than the link). Deltas stay on: without an older file they cost nothing, and
they are what makes a cut file go on where it was.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import CONNECT_SECONDS, Peer, PeerError, refusal, rsh_text

#: rsync(1), EXIT VALUES, as what they mean here.
EXIT_CODES: t.Final = {
    1: "the two nodes' versions of rsync do not understand each other's options",
    2: "the two nodes' versions of rsync speak no common protocol",
    3: "a file or folder could not be chosen; the path does not exist on one of the nodes",
    5: "the peer's rsync did not start its protocol",
    10: "the connection broke",
    11: "reading or writing files failed; most often the peer's disk is full",
    12: "the connection broke, or rsync is not installed on the peer",
    13: "rsync's own messages could not be delivered",
    14: "a process of rsync ended unexpectedly",
    20: "rsync was told to stop",
    22: "there was not enough memory for rsync",
    23: "some files could not be sent or written; most often their owner or permissions forbid it",
    24: "files disappeared from the source while they were being sent",
    25: "more was to be deleted than allowed",
    30: "nothing was sent or received for too long",
    35: "the peer did not answer in time",
    127: "rsync is not installed on the peer",
    255: "ssh could not connect, or lost the connection",
}
#: Worth another try: rsync goes on where it was.
PASSING: t.Final = frozenset({10, 12, 30, 35, 255})
#: What the peer says when it is no use to try again, whatever the exit code is: a full disk ends as a broken connection as well.
_FINAL: t.Final = ("no space left on device", "disk quota exceeded", "read-only file system", "permission denied", "auth failed", "access denied")

_NAME: t.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: "  1234567  12%  100.00MB/s  0:00:12": --info=progress2 without digits grouped.
_PROGRESS: t.Final = re.compile(r"(?<![\d,.])(\d{1,20}) {1,8}\d{1,3}% ")


class Route(t.Protocol):
    """A way for rsync from this node to another one."""

    @property
    def options(self) -> list[str]:
        """What rsync has to be given for it."""

    @property
    def secret(self) -> str:
        """A password that rsync reads from a descriptor, "" where there is none."""

    @property
    def name(self) -> str:
        """Who is at the other end, for messages."""

    def destination(self, staging: str) -> str:
        """The folder there, as rsync takes it."""

    def explain(self, status: int, stderr: str) -> str:
        """An exit status of rsync as a sentence."""


@dataclass(frozen=True)
class OverSsh:
    """rsync starts ssh, and ssh starts rsync there."""

    peer: Peer

    @property
    def options(self) -> list[str]:
        return [f"--rsh={rsh_text(self.peer)}"]

    @property
    def secret(self) -> str:
        return ""

    @property
    def name(self) -> str:
        return self.peer.login

    def destination(self, staging: str) -> str:
        address = bracketed(self.peer.address)
        return f"{self.peer.user}@{address}:{staging.rstrip('/')}/" if self.peer.user else f"{address}:{staging.rstrip('/')}/"

    def explain(self, status: int, stderr: str) -> str:
        if status == 255:
            return refusal(self.peer, "\n".join(_said(stderr)))
        return sentence(self.name, status, stderr)


@dataclass(frozen=True)
class OverDaemon:
    """rsync connects to an rsync that M(unimem.dgx_spark.model_door) has started there for this copy; the folder is its only module."""

    address: str
    port: int
    user: str
    module: str
    password: str = field(repr=False)

    @property
    def options(self) -> list[str]:
        # Without it, rsync waits for a peer that is gone as long as the kernel does: two minutes.
        return [f"--contimeout={CONNECT_SECONDS}"]

    @property
    def secret(self) -> str:
        return self.password

    @property
    def name(self) -> str:
        return self.address

    def destination(self, staging: str) -> str:
        return f"rsync://{self.user}@{bracketed(self.address)}:{self.port}/{self.module}/"

    def explain(self, status: int, stderr: str) -> str:
        return sentence(self.name, status, stderr)


def daemon_from(params: t.Mapping[str, t.Any], address: str) -> OverDaemon:
    """The way through a module's `daemon` option. Raises PeerError where a value could be misread."""
    user, module, password = str(params["user"]), str(params["module"]), str(params["password"])
    if not _NAME.fullmatch(user) or not _NAME.fullmatch(module):
        raise PeerError("daemon has no valid user and module: it is what model_door returned")
    if not 0 < int(params["port"]) < 65536:
        raise PeerError(f"{params['port']} is no port")
    if len(password) < 16 or not password.isascii() or not password.isprintable():
        raise PeerError("daemon has no valid password: 16 printable characters or more")
    return OverDaemon(address, int(params["port"]), user, module, password)


def bracketed(address: str) -> str:
    """An address as rsync takes it: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address else address


def rsync_argv(route: Route, root: str, staging: str, timeout: int, password_file: str = "") -> list[str]:
    """rsync from `root` here to `staging` there, for the names on its standard input (separated by NUL)."""
    return [
        "rsync",
        "--links",
        "--perms",
        "--times",
        "--omit-dir-times",
        "--owner",
        "--group",
        "--numeric-ids",
        "--inplace",
        "--protect-args",
        f"--timeout={timeout}",
        "--info=progress2",
        "--no-human-readable",
        "--outbuf=N",
        "--from0",
        "--files-from=-",
        *([f"--password-file={password_file}"] if password_file else []),
        *route.options,
        "--",
        root.rstrip("/") + "/",
        route.destination(staging),
    ]


def sent_bytes(text: str) -> int | None:
    """Bytes that rsync has dealt with, by the last report in a piece of its output; None where there is no report."""
    found = _PROGRESS.findall(text)
    return int(found[-1]) if found else None


def is_passing(status: int, stderr: str) -> bool:
    """Whether another try may succeed."""
    lower = stderr.lower()
    return status in PASSING and not any(sign in lower for sign in _FINAL)


def _said(stderr: str) -> list[str]:
    return [line for line in stderr.strip().splitlines() if line.strip() and not line.startswith("rsync error:")]


def sentence(who: str, status: int, stderr: str) -> str:
    """An exit status of rsync, with the first thing that it said, as a sentence."""
    said = _said(stderr)
    meaning = EXIT_CODES.get(status, "rsync failed")
    lower = stderr.lower()
    if "no space left on device" in lower or "disk quota exceeded" in lower:
        meaning = "the peer's disk is full"
    elif "read-only file system" in lower:
        meaning = "the peer's file system is read-only"
    elif "auth failed" in lower or "access denied" in lower:
        meaning = "the peer's rsync daemon did not let this node in; it lets in the source's fabric address only, and closes after the copy"
    return f"rsync to {who} ended with status {status}: {meaning}" + (f" ({said[0][:400]})" if said else "")
