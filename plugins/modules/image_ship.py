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
  - The part of the role P(unimem.dgx_spark.image_build#role) that ships. It runs on the node that has the image, and passes what C(docker image save)
    writes on to C(docker image load) on the other node, over ssh, straight to that node's address.
  - There is no shell, no file in between, and no registry. Both ends have to succeed.
  - Layers that the other node has already, as O(layers_there) says, are not sent.
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
seconds:
  description: How long it took.
  returned: success
  type: float
  sample: 12.5
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._image_ship import ShipError, common_layers, members_to_drop, ship
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import PEER_OPTION, PeerError, peer_from, refusal, ssh_argv


def main() -> None:
    """Check that the peer's Docker answers, then ship: without the layers that are there, and whole where that is refused."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "layers": {"type": "list", "elements": "str", "required": True},
            "layers_there": {"type": "list", "elements": "list", "default": []},
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
    drop = members_to_drop(layers, common_layers(layers, module.params["layers_there"]))
    save, load = ["docker", "image", "save", image], [*remote, "docker", "image", "load", "--quiet"]
    start = time.monotonic()
    whole = not drop
    try:
        try:
            shipment = ship(save, load, drop)
        except ShipError as exc:
            if whole:
                raise
            module.warn(f"{peer.login} did not take {image} without the layers that it has; all of them are sent now: {exc}")
            whole = True
            shipment = ship(save, load, set())
    except ShipError as exc:
        module.fail_json(msg=f"{image} did not get to {peer.login}: {exc}")
    told = {"sent_bytes": shipment.sent_bytes, "spared_bytes": shipment.spared_bytes, "whole": whole}
    module.exit_json(changed=True, seconds=round(time.monotonic() - start, 3), **told)


if __name__ == "__main__":
    main()
