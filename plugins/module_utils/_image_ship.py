# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""An image from one Docker daemon into another one over ssh: `docker image save | ssh peer docker image load`, without a shell,
with both ends' exit codes, without a file in between, and without the layers that the other side has.

docker load looks a layer up by its chain before it reads it out of the archive (moby, image/tarexport/load.go), so an archive
may lack layers that the receiver has. Which member of an archive is which layer: since Docker 25 its name is the layer's own
hash (diff id); before, a folder named by a hash over the chain that docker save computes (moby, image/v1/imagev1.go), and that
is computed here again. A wrong guess costs bytes, never correctness: what is not recognised is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import tarfile
import tempfile
import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._chain_ids import chain_ids
from ansible_collections.unimem.dgx_spark.plugins.module_utils._layer_store import StoreError

_BLOCK: t.Final = 512
_CHUNK: t.Final = 1 << 20
#: Pipes hold 64 KiB by default; a larger one saves changes between the processes.
_PIPE_SIZE: t.Final = 1 << 20
_F_SETPIPE_SZ: t.Final = 1031

#: An empty container configuration as moby's old image format writes it, in Go's order of fields.
_EMPTY_CONFIG: t.Final = {
    "Hostname": "",
    "Domainname": "",
    "User": "",
    "AttachStdin": False,
    "AttachStdout": False,
    "AttachStderr": False,
    "Tty": False,
    "OpenStdin": False,
    "StdinOnce": False,
    "Env": None,
    "Cmd": None,
    "Image": "",
    "Volumes": None,
    "WorkingDir": "",
    "Entrypoint": None,
    "OnBuild": None,
    "Labels": None,
}


class ShipError(RuntimeError):
    """The image did not arrive; the text says which side failed, and how."""


@dataclass(frozen=True)
class Shipment:
    """What went over."""

    sent_bytes: int
    #: bytes of layers that the receiver has already
    spared_bytes: int


def legacy_folders(diff_ids: t.Sequence[str]) -> list[str]:
    """The folders' names in an archive of Docker before 25, for all layers but the top one (whose name depends on the image)."""
    folders: list[str] = []
    for chain_id in chain_ids(diff_ids)[:-1]:
        config: dict[str, t.Any] = {"container_config": _EMPTY_CONFIG, "created": "1970-01-01T00:00:00Z", "layer_id": chain_id}
        if folders:
            config["parent"] = f"sha256:{folders[-1]}"
        text = json.dumps(config, separators=(",", ":"), sort_keys=False)
        folders.append(hashlib.sha256(text.encode()).hexdigest())
    return folders


def members_to_drop(diff_ids: t.Sequence[str], present: int) -> set[str]:
    """Names of an archive's members that hold the lowest `present` layers, in either format."""
    if present <= 0:
        return set()
    names = {f"blobs/sha256/{diff_id.split(':', 1)[1]}" for diff_id in diff_ids[:present]}
    return names | {f"{folder}/layer.tar" for folder in legacy_folders(diff_ids)[:present]}


class Sink(t.Protocol):
    """Takes all of what it is given."""

    def write(self, data: bytes) -> t.Any: ...


def filter_archive(source: t.BinaryIO, sink: Sink, drop: t.Collection[str]) -> Shipment:
    """Copy a tar archive without some of its members, as it comes."""
    sent = spared = 0
    while True:
        header = _exactly(source, _BLOCK)
        if not header.strip(b"\0"):
            # The end is two empty blocks, padded to a full record.
            sink.write(header)
            sent += _BLOCK
            while rest := source.read(_CHUNK):
                sink.write(rest)
                sent += len(rest)
            return Shipment(sent, spared)
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.TarError as exc:
            raise ShipError(f"docker image save wrote no tar archive ({exc})") from exc
        size = -(-member.size // _BLOCK) * _BLOCK
        wanted = not (member.isreg() and member.name in drop)
        if wanted:
            sink.write(header)
            sent += _BLOCK + size
        else:
            spared += size
        while size:
            block = _exactly(source, min(size, _CHUNK))
            size -= len(block)
            if wanted:
                sink.write(block)


def _exactly(source: t.BinaryIO, count: int) -> bytes:
    data = source.read(count)
    if len(data) != count:
        raise ShipError("docker image save ended in the middle of the archive")
    return data


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_SIZE)
    return read, write


def ship(save: t.Sequence[str], load: t.Sequence[str], drop: t.Collection[str]) -> Shipment:
    """Run both ends and pass the archive on between them. Raises ShipError when any of the three fails.

    AnsibleModule.run_command cannot connect two programs; asyncio starts them, without a shell, and a thread moves the bytes.
    """
    return asyncio.run(_ship(save, load, drop))


async def _ship(save: t.Sequence[str], load: t.Sequence[str], drop: t.Collection[str]) -> Shipment:
    with tempfile.TemporaryFile() as said_by_sender, tempfile.TemporaryFile() as said_by_receiver:
        from_save, save_out = _pipe()
        load_in, to_load = _pipe()
        null = asyncio.subprocess.DEVNULL
        sender = await asyncio.create_subprocess_exec(*save, stdin=null, stdout=save_out, stderr=said_by_sender)
        receiver = await asyncio.create_subprocess_exec(*load, stdin=load_in, stdout=null, stderr=said_by_receiver)
        os.close(save_out)
        os.close(load_in)
        shipment, problem = await asyncio.to_thread(_pass_on, from_save, to_load, drop, (receiver, sender))
        failed = []
        for argv, process, said in ((save, sender, said_by_sender), (load, receiver, said_by_receiver)):
            status = await process.wait()
            if status != 0:
                said.seek(0)
                words = said.read().decode("utf-8", "replace").strip()[-600:]
                failed.append(f"{' '.join(argv[:3])} ended with status {status} ({words or 'no message'})")
    if failed or problem:
        raise ShipError("; ".join(failed) or problem)
    return shipment


def _pass_on(from_save: int, to_load: int, drop: t.Collection[str], processes: t.Iterable[asyncio.subprocess.Process]) -> tuple[Shipment, str]:
    """The middle of the pipeline: what was sent, and what went wrong."""
    with os.fdopen(from_save, "rb", buffering=_CHUNK) as source, os.fdopen(to_load, "wb", buffering=0) as raw:
        try:
            return filter_archive(source, _Whole(raw), drop), ""
        except (BrokenPipeError, ShipError) as exc:
            # docker load takes the archive's end for an end: what was cut must not look whole, so it is ended before its input is closed.
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
            return Shipment(0, 0), "the receiver stopped reading" if isinstance(exc, BrokenPipeError) else str(exc)


def feed(load: t.Sequence[str], chunks: t.Iterable[bytes]) -> int:
    """Write an archive to `docker image load` as it is made; return its bytes. Raises ShipError, also when it cannot be made to its end."""
    return asyncio.run(_feed(load, chunks))


async def _feed(load: t.Sequence[str], chunks: t.Iterable[bytes]) -> int:
    with tempfile.TemporaryFile() as said:
        load_in, to_load = _pipe()
        receiver = await asyncio.create_subprocess_exec(*load, stdin=load_in, stdout=asyncio.subprocess.DEVNULL, stderr=said)
        os.close(load_in)
        sent, problem = await asyncio.to_thread(_write, to_load, chunks, receiver)
        status = await receiver.wait()
        said.seek(0)
        words = said.read().decode("utf-8", "replace").strip()[-600:]
    if problem is not None and not isinstance(problem, BrokenPipeError):
        raise ShipError(str(problem)) from problem
    if status != 0 or problem is not None:
        raise ShipError(f"{' '.join([*load[:1], *load[-4:]])} ended with status {status} ({words or 'no message'})")
    return sent


def _write(to_load: int, chunks: t.Iterable[bytes], receiver: asyncio.subprocess.Process) -> tuple[int, Exception | None]:
    sent = 0
    with os.fdopen(to_load, "wb", buffering=0) as raw:
        whole = _Whole(raw)
        try:
            for chunk in chunks:
                sent += whole.write(chunk)
        except (BrokenPipeError, StoreError) as exc:
            # As below: what was cut must not look whole.
            with contextlib.suppress(ProcessLookupError):
                os.kill(receiver.pid, signal.SIGTERM)
            return sent, exc
    return sent, None


class _Whole:
    """Writes all of what it is given: a raw pipe may take less."""

    def __init__(self, raw: t.Any) -> None:
        self._raw = raw

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) or 0 :]
        return len(data)
