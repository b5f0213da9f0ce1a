# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Archives for `docker image load` that hold only the layers that the receiver lacks, and an image in parts.

docker load looks a layer up by its chain before it reads it out of the archive (moby, image/tarexport/load.go), so what is there
need not be sent. A large image goes in parts: first the lowest layers as an image of their own, under a name of ours, then those
and some more. Each part that has arrived stays, so that an interrupted shipment goes on after the last whole part; when the image
itself has arrived, the parts' names are taken away, and it alone holds the layers.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._layer_store import Layer, LayerStore

#: The repository of the parts' names.
PARTS: t.Final = "unimem-ship"
#: A part is not worth its `docker load` below this.
LEAST_PART: t.Final = 1 << 30
_BLOCK: t.Final = 512
_RECORD: t.Final = 20 * _BLOCK


def part_name(image_id: str, count: int) -> str:
    """What the part with the lowest `count` layers of an image is called."""
    return f"{PARTS}/{image_id.split(':', 1)[-1][:12]}:{count}"


def boundaries(layers: t.Sequence[Layer], present: int, least: int = LEAST_PART) -> list[int]:
    """After how many layers each part ends; the last one is the image. Every part but the last has `least` bytes or more to send."""
    ends, gathered = [], 0
    for number in range(present, len(layers) - 1):
        gathered += layers[number].size
        if gathered >= least:
            ends.append(number + 1)
            gathered = 0
    return [*ends, len(layers)]


def part_config(config: bytes, count: int) -> bytes:
    """A configuration for the lowest `count` layers of an image, for the same machine."""
    whole = json.loads(config)
    kept = {name: whole[name] for name in ("architecture", "os", "variant") if name in whole}
    layers = {"type": "layers", "diff_ids": whole["rootfs"]["diff_ids"][:count]}
    return json.dumps({**kept, "created": "1970-01-01T00:00:00Z", "config": {}, "rootfs": layers}, sort_keys=True).encode()


def archive(store: LayerStore, config: bytes, tag: str, layers: t.Sequence[Layer], present: int) -> t.Iterator[bytes]:
    """An archive of these layers as an image, without the lowest `present` of them. Raises StoreError where a layer is not what it should be."""
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [_member(layer) for layer in layers]}]
    sent = 0
    for member, content in ((name, config), ("manifest.json", json.dumps(manifest).encode())):
        block = _header(member, len(content)) + content + _padding(len(content))
        sent += len(block)
        yield block
    done = set()
    for layer in layers[present:]:
        # One content can be in an image twice, on other layers; once is enough for both.
        if layer.diff_id in done:
            continue
        done.add(layer.diff_id)
        yield _header(_member(layer), layer.size)
        yield from store.read(layer)
        yield _padding(layer.size)
        sent += _BLOCK + layer.size + len(_padding(layer.size))
    end = 2 * _BLOCK
    yield b"\0" * (end + -(sent + end) % _RECORD)


def _member(layer: Layer) -> str:
    return f"{layer.diff_id.split(':', 1)[1]}/layer.tar"


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _BLOCK)
