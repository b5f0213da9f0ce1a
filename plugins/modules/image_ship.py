#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_ship
short_description: Send a container image from this node's Docker to another node's
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The part of the role P(unimem.dgx_spark.image_build#role) that ships. It runs on the node that has the image, and gives
    C(docker image load) on the other node what it needs, over ssh, straight to that node's address.
  - There is no shell, no file in between, and no registry. Both ends have to succeed.
  - Layers that the other node has already, as O(layers_there) says, are not sent.
  - With root, and Docker's classic store (C(overlay2)), only the missing layers are read, and they go in parts of 1 GiB or more. What has arrived
    when a shipment is interrupted stays, as images named C(unimem-ship/...), and the next one goes on after it. Otherwise the image is saved as a
    whole by C(docker image save), which writes a copy of it below Docker's data root first.
  - The user of O(peer) has to be able to use Docker there.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._peer
attributes:
  check_mode:
    support: full
    details:
      - The connection to the other node and its Docker is tried in check mode as well. Nothing is sent.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - The module sends whenever it is called. Call it for the nodes that lack the image, as the role does.
options:
  image:
    description:
      - The image on this node, with its tag.
    type: str
    required: true
  layers:
    description:
      - The hashes of its layers (diff ids), lowest first, as C(RootFS.Layers) of C(docker image inspect) lists them.
    type: list
    elements: str
    required: true
  layers_there:
    description:
      - The layers of each image of the other node, likewise.
    type: list
    elements: list
    default: []
  all_layers:
    description:
      - Whether to send every layer, in one archive, whatever is there. Docker's containerd image store, the one of new installations of Docker 29,
        takes nothing else.
    type: bool
    default: false
  part:
    description:
      - How many bytes of layers a part has at the least, like V(1GiB).
    type: str
    default: 1GiB
"""

EXAMPLES = r"""
---
- name: Send the image
  unimem.dgx_spark.image_ship:
    image: spark/vllm:0123456789abcdef
    layers: "{{ image.images[0].RootFS.Layers }}"
    layers_there: "{{ hostvars['spark-02'].images.images | map(attribute='RootFS') | map(attribute='Layers', default=[]) }}"
    peer:
      address: 192.168.100.11
      host_key: "{{ lookup('ansible.builtin.file', 'keys/spark-02.pub') }}"
"""

RETURN = r"""
sent_bytes:
  description: Bytes that went over.
  returned: success
  type: int
  sample: 20480
spared_bytes:
  description: Bytes of layers that the other node has already.
  returned: success
  type: int
  sample: 21474836480
whole:
  description: Whether all layers were sent, since the other node did not take the archive without those that it has.
  returned: success
  type: bool
  sample: false
parts:
  description: Whether the layers themselves were read and sent in parts. Otherwise the image was saved as a whole, and what is there left out of it.
  returned: when something was sent
  type: bool
  sample: true
seconds:
  description: How long it took.
  returned: success
  type: float
  sample: 12.5
"""

import os
import shlex
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._chain_ids import common_layers
from ansible_collections.unimem.dgx_spark.plugins.module_utils._image_archive import archive, boundaries, part_config, part_name
from ansible_collections.unimem.dgx_spark.plugins.module_utils._image_ship import ShipError, feed, members_to_drop, ship
from ansible_collections.unimem.dgx_spark.plugins.module_utils._layer_store import LayerStore, StoreError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError, parse_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import PEER_OPTION, Peer, PeerError, peer_from, refusal, ssh_argv


def main() -> None:
    """Check that the peer's Docker answers, then ship: without the layers that are there, and whole where that is refused."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "layers": {"type": "list", "elements": "str", "required": True},
            "layers_there": {"type": "list", "elements": "list", "default": []},
            "all_layers": {"type": "bool", "default": False},
            "part": {"type": "str", "default": "1GiB"},
            "peer": PEER_OPTION,
        },
        supports_check_mode=True,
    )
    for program in ("docker", "ssh"):
        module.get_bin_path(program, required=True)
    image, layers = module.params["image"], module.params["layers"]
    if image.startswith("-"):
        module.fail_json(msg=f"{image!r} is no name of an image")
    try:
        peer = peer_from(module.params["peer"])
    except PeerError as exc:
        module.fail_json(msg=str(exc))
    remote = [*ssh_argv(peer), peer.login]
    status, _stdout, stderr = module.run_command([*remote, "docker", "version", "--format", "{{.Server.Version}}"])
    if status == 255:
        module.fail_json(msg=refusal(peer, stderr))
    if status != 0:
        module.fail_json(msg=f"docker does not answer {peer.login}: {stderr.strip() or f'status {status}'}; that user has to be in the group docker there")
    if module.check_mode:
        module.exit_json(changed=True, sent_bytes=0, spared_bytes=0, whole=False, seconds=0.0)
    start = time.monotonic()
    present = 0 if module.params["all_layers"] else common_layers(layers, module.params["layers_there"])
    try:
        told = ship_parts(module, remote, image, layers, present) or ship_saved(module, peer, remote, image, layers, present)
    except SizeError as exc:
        module.fail_json(msg=str(exc))
    except ShipError as exc:
        module.fail_json(msg=f"{image} did not get to {peer.login}: {exc}")
    module.exit_json(changed=True, seconds=round(time.monotonic() - start, 3), **told)


def ship_parts(module: AnsibleModule, remote: list[str], image: str, layers: list[str], present: int) -> dict[str, t.Any] | None:
    """Send the layers themselves, in parts; None where they cannot be had, and the image has to be saved as a whole.

    Raises ShipError where sending fails, since saving would fail there as well.
    """
    status, stdout, _stderr = module.run_command(["docker", "info", "--format", "{{.Driver}}\n{{.DockerRootDir}}"])
    described, image_id, _stderr = module.run_command(["docker", "image", "inspect", "--format", "{{.Id}}", "--", image])
    driver, _newline, data_root = stdout.strip().partition("\n")
    if status != 0 or described != 0 or driver != "overlay2" or os.geteuid() != 0:
        return None
    store = LayerStore(data_root)
    try:
        config = store.config(image_id.strip())
        found = store.layers(layers)
    except StoreError as exc:
        module.debug(f"saving {image} as a whole: {exc}")
        return None
    sent, load = 0, [*remote, "docker", "image", "load", "--quiet"]
    for end in [len(found)] if module.params["all_layers"] else boundaries(found, present, parse_size(module.params["part"], "part")):
        whole = end == len(found)
        content, tag = (config, image) if whole else (part_config(config, end), part_name(image_id.strip(), end))
        try:
            sent += feed(load, archive(store, content, tag, found[:end], present))
        except ShipError as exc:
            if not isinstance(exc.__cause__, StoreError):
                raise
            module.warn(f"{exc}; {image} is saved as a whole instead")
            return None
        present = end
    forget_parts(module, remote, image_id.strip())
    spared = sum(layer.size for layer in found) - sent
    return {"sent_bytes": sent, "spared_bytes": max(0, spared), "whole": spared <= 0, "parts": True}


def forget_parts(module: AnsibleModule, remote: list[str], image_id: str) -> None:
    """Take the parts' names away: the image holds their layers now. What an interrupted shipment has left is among them."""
    names = part_name(image_id, 0).rpartition(":")[0]
    listing = ["docker", "image", "ls", f"--filter=reference={names}", "--format={{.Repository}}:{{.Tag}}"]
    status, stdout, _stderr = module.run_command([*remote, *[shlex.quote(word) for word in listing]])
    parts = [name for name in stdout.split() if status == 0 and name.startswith(names + ":")]
    if parts:
        status, _stdout, stderr = module.run_command([*remote, "docker", "image", "rm", *[shlex.quote(name) for name in parts]])
        if status != 0:
            module.warn(f"names of parts of the image are left on the other node ({', '.join(parts)}): {stderr.strip()}")


def ship_saved(module: AnsibleModule, peer: Peer, remote: list[str], image: str, layers: list[str], present: int) -> dict[str, t.Any]:
    """Save the image and pass it on without the layers that are there, or whole where that is refused. Raises ShipError."""
    save, load = ["docker", "image", "save", image], [*remote, "docker", "image", "load", "--quiet"]
    drop = members_to_drop(layers, present)
    whole = not drop
    try:
        shipment = ship(save, load, drop)
    except ShipError as exc:
        if whole:
            raise
        module.warn(f"{peer.login} did not take {image} without the layers that it has; all of them are sent now: {exc}")
        whole = True
        shipment = ship(save, load, set())
    return {"sent_bytes": shipment.sent_bytes, "spared_bytes": shipment.spared_bytes, "whole": whole, "parts": False}


if __name__ == "__main__":
    main()
