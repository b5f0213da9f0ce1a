# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""rsync of a list of files to another node: the arguments, and its exit codes as sentences.

No --append (it never looks at what is there), no --inplace with --update (an interrupted file passes for a newer one), no
compression (slower than the link). Deltas stay on: without an older file they cost nothing, and they make --partial-dir go on
where it was.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import Peer, refusal, rsh_text

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


class Runner(t.Protocol):
    """Runs a command with `data` on its standard input, as AnsibleModule.run_command does."""

    def __call__(self, argv: list[str], data: bytes | None) -> tuple[int, str, str]: ...


class PushError(RuntimeError):
    """The files did not all arrive; the text says why."""


def rsync_argv(peer: Peer, root: str, staging: str, timeout: int) -> list[str]:
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
        "--partial-dir=.rsync-partial",
        "--protect-args",
        f"--timeout={timeout}",
        "--from0",
        "--files-from=-",
        f"--rsh={rsh_text(peer)}",
        "--",
        root.rstrip("/") + "/",
        f"{bracketed(peer)}:{staging.rstrip('/')}/",
    ]


def bracketed(peer: Peer) -> str:
    """user@address as rsync takes it: an IPv6 address in brackets."""
    address = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"{peer.user}@{address}" if peer.user else address


def push(run: Runner, peer: Peer, root: str, staging: str, files: t.Sequence[str], timeout: int, tries: int) -> int:
    """Send the files; a connection that breaks is tried again. Return how many tries it took. Raises PushError."""
    names = b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in files)
    for number in range(1, tries + 1):
        status, _stdout, stderr = run(rsync_argv(peer, root, staging, timeout), names)
        if status == 0:
            return number
        if status not in PASSING or number == tries:
            raise PushError(explain(peer, status, stderr))
    raise PushError("no try was allowed")


def explain(peer: Peer, status: int, stderr: str) -> str:
    """An exit status of rsync as a sentence."""
    said = [line for line in stderr.strip().splitlines() if not line.startswith("rsync error:")]
    if status == 255:
        return refusal(peer, "\n".join(said))
    meaning = EXIT_CODES.get(status, "rsync failed")
    return f"rsync to {peer.login} ended with status {status}: {meaning}" + (f" ({said[0]})" if said else "")
