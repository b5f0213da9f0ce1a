# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Several rsyncs at once: one stream over ssh is bound by one core's encryption, far below what the cable carries.

Files are dealt out by size, the largest first, each to the stream that has the least so far (LPT: never more than a third over
the best there is, Graham 1969), so that the streams end together. Each stream is tried again by itself when its connection
breaks; the first one that cannot go on ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import signal
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._alone import BusyError, hold
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rsync import Route, is_passing, rsync_argv, sent_bytes

#: Files below this are not worth a stream of their own.
LARGE: t.Final = 64 << 20
#: More streams than this add nothing on any link that was measured.
MOST_STREAMS: t.Final = 8
#: What is kept of what rsync says.
_MAX_SAID: t.Final = 64 << 10
#: Between two tries of a connection that broke: a peer that restarts its sshd, a link that flaps.
_PAUSE: t.Final = 2.0


class PushError(RuntimeError):
    """The files did not all arrive; the text says why."""


@dataclass
class Stream:
    """What one rsync sends, and how far it is."""

    names: list[str] = field(default_factory=list)
    size: int = 0
    #: bytes dealt with so far
    sent: int = 0
    tries: int = 0
    finished: bool = False


@dataclass(frozen=True)
class Copy:
    """All that the streams of one copy share."""

    route: Route
    root: str
    staging: str
    timeout: int
    tries: int


def stream_count(sizes: t.Iterable[int], asked: int, cores: int) -> int:
    """How many streams: as asked, or half of the cores (rsync and ssh need one each), but no more than there are large files."""
    large = sum(1 for size in sizes if size >= LARGE)
    return max(1, min(asked or min(MOST_STREAMS, cores // 2), large))


def balance(sizes: t.Mapping[str, int], count: int) -> list[Stream]:
    """Deal the files out to at most `count` streams. A stream that would get none is left out."""
    streams = [Stream() for _number in range(max(1, count))]
    heap = [(0, number) for number in range(len(streams))]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        size, number = heapq.heappop(heap)
        streams[number].names.append(name)
        streams[number].size += sizes[name]
        # One more for each file: empty ones, links, would else all end in one stream.
        heapq.heappush(heap, (size + sizes[name] + 1, number))
    return [stream for stream in streams if stream.names]


def push(copy: Copy, streams: t.Sequence[Stream], report: t.Callable[[], None]) -> None:
    """Send; `report` is called about once a second, and when a stream ends. Raises PushError with the first reason."""
    asyncio.run(_push(copy, streams, report))


async def _push(copy: Copy, streams: t.Sequence[Stream], report: t.Callable[[], None]) -> None:
    work = [asyncio.ensure_future(_send(copy, stream)) for stream in streams]
    try:
        waiting: set[asyncio.Future[None]] = set(work)
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
            report()
            for job in done:
                job.result()
    finally:
        for job in work:
            job.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def _send(copy: Copy, stream: Stream) -> None:
    """One stream, tried as often as is allowed."""
    for number in range(1, copy.tries + 1):
        stream.tries = number
        status, stderr = await _rsync(copy, stream)
        if status == 0:
            stream.sent, stream.finished = stream.size, True
            return
        if not is_passing(status, stderr) or number == copy.tries:
            raise PushError(copy.route.explain(status, stderr))
        await asyncio.sleep(_PAUSE)
    raise PushError("no try was allowed")


def _environment() -> dict[str, str]:
    """This process's, without what would change rsync's ways (RSYNC_RSH, RSYNC_PROXY, RSYNC_PASSWORD ...)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    return {**kept, "LC_ALL": "C.UTF-8"}


async def _rsync(copy: Copy, stream: Stream) -> tuple[int, str]:
    """Run rsync once; return its status and what it said on stderr."""
    password_file, descriptors = "", []
    if copy.route.secret:
        # A pipe is a file without a name: the secret is in no argument, no environment and on no disk.
        read, write = os.pipe()
        os.write(write, copy.route.secret.encode() + b"\n")
        os.close(write)
        password_file, descriptors = f"/dev/fd/{read}", [read]
    try:
        process = await asyncio.create_subprocess_exec(
            *rsync_argv(copy.route, copy.root, copy.staging, copy.timeout, password_file),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            pass_fds=descriptors,
            # A group of its own: ssh ends with its rsync.
            start_new_session=True,
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    names = b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in stream.names)
    try:
        _fed, _read, said = await asyncio.gather(_feed(process.stdin, names), _follow(process.stdout, stream), _listen(process.stderr))
        return await process.wait(), said
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()


async def _feed(to: asyncio.StreamWriter | None, names: bytes) -> None:
    if to is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        to.write(names)
        await to.drain()
    to.close()


async def _follow(output: asyncio.StreamReader | None, stream: Stream) -> None:
    """Note how far rsync says it is."""
    rest = ""
    while output is not None and (chunk := await output.read(65536)):
        text = rest + chunk.decode("utf-8", "replace")
        sent = sent_bytes(text)
        if sent is not None:
            stream.sent = min(sent, stream.size)
        # A report may be cut in two; its whole is shorter than this.
        rest = text[-64:]


async def _listen(errors: asyncio.StreamReader | None) -> str:
    said = b""
    while errors is not None and (chunk := await errors.read(65536)):
        said += chunk[: max(0, _MAX_SAID - len(said))]
    return said.decode("utf-8", "replace")


@contextlib.contextmanager
def alone(place: str, limit: float, waiting: t.Callable[[], None]) -> t.Iterator[None]:
    """Hold a place on another node (its address and folder) as the only copy from this one. Raises PushError after `limit` seconds."""
    try:
        with hold("model-push", place, limit, waiting):
            yield
    except BusyError as exc:
        text = f"another copy from this node to the same place has not ended within {limit:.0f} s; end it (`pgrep -af rsync`) or wait"
        raise PushError(text) from exc
