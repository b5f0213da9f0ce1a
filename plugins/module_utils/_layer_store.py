# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""One layer of an image out of Docker's classic store, as the very archive that its hash is of, without the layers around it.

`docker image save` writes a copy of the whole image before it prints the first byte, which for a Spark's 20 GiB image takes longer
than sending the one layer that changed. Docker keeps what it needs to put a layer's archive together again: the files, unpacked,
in overlay2/<cache id>/diff, and everything between them (headers, padding) in layerdb/sha256/<chain id>/tar-split.json.gz
(moby, layer/layer_store.go; vbatts/tar-split, tar/storage/entry.go). This reads both, and never writes.

It is somebody else's format, so nothing is believed: the archive's hash must be the layer's own (its diff id), and who cannot make
it come out falls back to `docker image save`.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import os
import re
import stat
import typing as t
import zlib
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._chain_ids import chain_ids

_DIGEST: t.Final = re.compile(r"sha256:[0-9a-f]{64}")
_CACHE_ID: t.Final = re.compile(r"[0-9a-z]{1,128}")
_CHUNK: t.Final = 1 << 20
_MAX_CONFIG: t.Final = 16 << 20
#: tar-split's two kinds of entries.
_FILE: t.Final = 1
_SEGMENT: t.Final = 2


class StoreError(RuntimeError):
    """The store is not as expected; the text says in what."""


@dataclass(frozen=True)
class Layer:
    """One layer, by its own hash and that of the chain below it."""

    diff_id: str
    chain_id: str
    #: bytes of its archive
    size: int


class LayerStore:
    """The classic store (overlay2) below Docker's data root. Reading it needs root."""

    def __init__(self, data_root: str) -> None:
        self._layers = os.path.join(data_root, "image", "overlay2", "layerdb", "sha256")
        self._images = os.path.join(data_root, "image", "overlay2", "imagedb", "content", "sha256")
        self._files = os.path.join(data_root, "overlay2")

    def config(self, image_id: str) -> bytes:
        """An image's configuration, byte by byte as its id is the hash of. Raises StoreError."""
        if not _DIGEST.fullmatch(image_id):
            raise StoreError(f"{image_id!r} is no image id")
        text = _read(os.path.join(self._images, image_id[7:]), _MAX_CONFIG)
        if hashlib.sha256(text).hexdigest() != image_id[7:]:
            raise StoreError(f"the configuration of {image_id} has another hash")
        return text

    def layers(self, diff_ids: t.Sequence[str]) -> list[Layer]:
        """The layers of an image, lowest first, with the sizes of their archives. Raises StoreError."""
        if not diff_ids or not all(_DIGEST.fullmatch(diff_id) for diff_id in diff_ids):
            raise StoreError("the image has no valid list of layers")
        found = []
        for diff_id, chain_id in zip(diff_ids, chain_ids(diff_ids)):
            kept = _read(os.path.join(self._layers, chain_id[7:], "diff"), 200).decode("ascii", "replace").strip()
            if kept != diff_id:
                raise StoreError(f"{chain_id} is another layer than {diff_id}")
            found.append(Layer(diff_id, chain_id, sum(size for _kind, _payload, size in self._entries(chain_id))))
        return found

    def read(self, layer: Layer) -> t.Iterator[bytes]:
        """The layer's archive. Raises StoreError, at its end as well: a caller must not let on that it is whole before that."""
        cache_id = _read(os.path.join(self._layers, layer.chain_id[7:], "cache-id"), 200).decode("ascii", "replace").strip()
        if not _CACHE_ID.fullmatch(cache_id):
            raise StoreError(f"{layer.chain_id} names no folder of files")
        digest = hashlib.sha256()
        count = 0
        root = os.open(os.path.join(self._files, cache_id, "diff"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for kind, payload, size in self._entries(layer.chain_id):
                for chunk in (payload,) if kind == _SEGMENT else _file(root, payload, size):
                    digest.update(chunk)
                    count += len(chunk)
                    yield chunk
        except OSError as exc:
            raise StoreError(f"a file of {layer.diff_id} cannot be read: {exc}") from exc
        finally:
            os.close(root)
        if count != layer.size or "sha256:" + digest.hexdigest() != layer.diff_id:
            raise StoreError(f"what the store has for {layer.diff_id} has another hash")

    def _entries(self, chain_id: str) -> t.Iterator[tuple[int, bytes, int]]:
        """Kind, payload (a segment's bytes, a file's name) and size of each entry, in order. Files without content are left out."""
        path = os.path.join(self._layers, chain_id[7:], "tar-split.json.gz")
        try:
            with gzip.open(path, "rb") as handle:
                for line in handle:
                    entry = json.loads(line)
                    if entry["type"] == _SEGMENT:
                        payload = base64.b64decode(entry["payload"], validate=True)
                        yield _SEGMENT, payload, len(payload)
                    elif entry["type"] == _FILE and entry.get("size", 0) > 0:
                        name = base64.b64decode(entry["name_raw"]) if entry.get("name_raw") else entry["name"].encode("utf-8", "surrogateescape")
                        yield _FILE, name, int(entry["size"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error, binascii.Error) as exc:
            raise StoreError(f"{path} cannot be read: {exc}") from exc


def _read(path: str, limit: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror}") from exc
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(f"{path} is not a regular file")
        return handle.read(limit)


def _file(root: int, name: bytes, size: int) -> t.Iterator[bytes]:
    """A file's content. Its path is walked folder by folder without following links: what a layer has in it is somebody else's."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if not parts or b".." in parts:
        raise StoreError(f"{name!r} is no name of a file in a layer")
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb", buffering=0) as handle:
        left = size
        while left:
            chunk = handle.read(min(left, _CHUNK))
            if not chunk:
                raise StoreError(f"{name!r} is shorter than it was")
            left -= len(chunk)
            yield chunk
        # The memory is wanted for a model.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
