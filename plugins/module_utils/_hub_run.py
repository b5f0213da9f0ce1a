# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Running `hf` on a node: as whom, from where, and no longer than it gets anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._child import EXTRA_PATH
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import OLDEST, REMEDY, HubError, own_words, parse_version

#: What is kept of what it says, of its end.
_MAX_SAID: t.Final = 256 << 10
#: Seconds between two looks at it, and from TERM to KILL.
_PAUSE: t.Final = 1.0
_GRACE: t.Final = 10.0
#: Seconds for it to say its version: Python starts, from a cold disk.
_START: t.Final = 120.0


@dataclass(frozen=True)
class Account:
    """A user that is not this process's."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


@dataclass(frozen=True)
class Client:
    """The program, as this node has it."""

    program: str
    environment: t.Mapping[str, str] = field(repr=False)
    account: Account | None = None
    version: tuple[int, int] = OLDEST


class Ended(t.NamedTuple):
    """How a run of it ended."""

    status: int
    stdout: str
    stderr: str
    #: it was ended because it got nowhere
    stuck: bool

    @property
    def said(self) -> str:
        return f"{self.stdout}\n{self.stderr}"


def account_for(folder: str) -> Account | None:
    """Whose files a download to this folder has to be; None where that is this process's own user.

    Root may write anywhere, and what root leaves in somebody's cache, locks included, keeps that user from using it. So root
    becomes the owner of the folder, or of the nearest one above it that is there.
    """
    if os.geteuid() != 0:
        return None
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    owner = os.stat(folder).st_uid
    if owner == 0:
        return None
    try:
        entry = pwd.getpwuid(owner)
    except KeyError:
        # A container's user, say, that this node does not have.
        return None
    return Account(owner, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)), entry.pw_name, entry.pw_dir)


def _home(account: Account | None) -> str:
    return account.home if account is not None else os.path.expanduser("~")


def find_program(name: str, account: Account | None) -> str:
    """The program's path. Raises HubError with the remedy where there is none."""
    if os.path.basename(name) == "huggingface-cli":
        raise HubError(f"huggingface-cli is the old program and is not used: name hf. If there is none, {REMEDY}")
    home = _home(account)
    who = account.name if account is not None else pwd.getpwuid(os.geteuid()).pw_name
    if "/" in name:
        path = os.path.normpath(os.path.join("/", name.replace("~", home, 1) if name.startswith("~/") else name))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
        raise HubError(f"{path} is no program on this node (model_sync_download_program): name where hf is, or {REMEDY}")
    # A login without a shell of its own has none of the places that uv and pipx install to on its PATH.
    places = [os.path.join(home, ".local", "bin"), *os.environ.get("PATH", "").split(os.pathsep), *EXTRA_PATH]
    found = shutil.which(name, path=os.pathsep.join(place for place in places if place))
    if found is None:
        text = f"this node has no program {name}, neither on PATH nor in {places[0]}: as {who}, {REMEDY}; or name its path in model_sync_download_program"
        raise HubError(text)
    return found


def client_for(name: str, folder: str, environment: t.Mapping[str, str]) -> Client:
    """Find the program, and check that it works and is not too old. Raises HubError."""
    account = account_for(folder)
    told = dict(environment)
    if account is not None:
        told = {name: value for name, value in told.items() if not name.startswith(("XDG_", "SUDO_"))}
        told.update({"HOME": account.home, "USER": account.name, "LOGNAME": account.name})
    client = Client(find_program(name, account), told, account)
    ended = run(client, ["version"], _START)
    version = parse_version(ended.stdout) if ended.status == 0 else None
    if version is None:
        why = "it said nothing for too long" if ended.stuck else own_words(ended.said) or f"status {ended.status}"
        raise HubError(f"{client.program} does not work on this node ({why}): {REMEDY}")
    if version < OLDEST:
        raise HubError(f"{client.program} is of huggingface_hub {version[0]}.{version[1]}; {OLDEST[0]}.{OLDEST[1]} or newer is needed: {REMEDY}")
    return Client(client.program, told, account, version)


def run(client: Client, arguments: t.Sequence[str], patience: float, progress: t.Callable[[], object] = lambda: None) -> Ended:
    """Run it. It is ended when, for `patience` seconds, `progress` has said the same and it has read nothing: then it hangs.

    `progress` is called about once a second. Raises HubError where it cannot be started.
    """
    return asyncio.run(_run(client, arguments, patience, progress))


async def _run(client: Client, arguments: t.Sequence[str], patience: float, progress: t.Callable[[], object]) -> Ended:
    account = client.account
    identity = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": list(account.groups)}
    try:
        process = await asyncio.create_subprocess_exec(
            client.program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(client.environment),
            cwd="/",
            # A group of its own: what it has started ends with it.
            start_new_session=True,
            **identity,  # type: ignore[arg-type]
        )
    except OSError as exc:
        who = f" as {account.name}" if account is not None else ""
        raise HubError(f"{client.program} cannot be started{who}: {exc.strerror}; {REMEDY}") from exc
    listening = [asyncio.ensure_future(_listen(stream)) for stream in (process.stdout, process.stderr)]
    ending = asyncio.ensure_future(process.wait())
    stuck = False
    try:
        seen: object = None
        since = time.monotonic()
        while not (await asyncio.wait({ending}, timeout=_PAUSE))[0]:
            now, state = time.monotonic(), (progress(), _has_read(process.pid))
            if state != seen:
                seen, since = state, now
            elif now - since >= patience:
                stuck = True
                break
    finally:
        await _end(process, ending)
        # Somebody else may hold its output open.
        await asyncio.wait(listening, timeout=_GRACE)
        for listener in listening:
            listener.cancel()
    said = [listener.result() if listener.done() and not listener.cancelled() else "" for listener in listening]
    return Ended(process.returncode if process.returncode is not None else -int(signal.SIGKILL), said[0], said[1], stuck)


async def _end(process: asyncio.subprocess.Process, ending: asyncio.Future[int]) -> None:
    """End it and what it has started, where it has not ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if ending.done():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait({ending}, timeout=_GRACE)


async def _listen(stream: asyncio.StreamReader | None) -> str:
    said = b""
    while stream is not None and (chunk := await stream.read(65536)):
        said = (said + chunk)[-_MAX_SAID:]
    return said.decode("utf-8", "replace")


def _has_read(pid: int) -> str:
    """Bytes that it has read from files: it may be looking at what is there, which writes nothing for minutes."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as handle:
            return handle.readline(64)
    except OSError:
        return ""
