# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: image_identity
short_description: What makes two container images the same one
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Hashes what an image is, from what Docker says of it. Two nodes hold the same image when the results are equal.
  - An image's C(Id) does not tell. Docker's classic store has the hash of the configuration there, its containerd store (Docker 29's default)
    that of a manifest, so the same image has two, and one image can have different ones after it was saved and loaded.
  - Counted are the operating system, the architecture, the layers, and of the configuration what a container is started with. What is empty counts
    as not being there, since versions of Docker differ in that.
options:
  _input:
    description:
      - An entry of RV(community.docker.docker_image_info#module:images), or an empty dictionary for an image that is not there.
    type: dict
    required: true
"""

EXAMPLES = r"""
---
- name: Look at the image
  community.docker.docker_image_info:
    name: spark/vllm:0123456789abcdef
  register: image

- name: Check that all nodes have the same one
  ansible.builtin.assert:
    that:
      - ansible_play_hosts | map('extract', hostvars, ['image', 'images', 0]) | map('unimem.dgx_spark.image_identity') | unique | length == 1
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - 64 hexadecimal digits, or an empty text for an image that is not there.
  type: str
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

CONFIGURATION = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "OnBuild", "Shell", "StopSignal", "User", "Volumes", "WorkingDir")


def image_identity(image: Any) -> str:
    """Hash what an image is; see DOCUMENTATION."""
    if not isinstance(image, Mapping):
        raise AnsibleFilterError(f"unimem.dgx_spark.image_identity needs what Docker says of an image, not {type(image).__name__}")
    if not image:
        return ""
    layers = (image.get("RootFS") or {}).get("Layers")
    if not isinstance(layers, list) or not layers:
        raise AnsibleFilterError("unimem.dgx_spark.image_identity: this image has no list of layers")
    configuration = image.get("Config") or {}
    told = {
        "os": image.get("Os"),
        "architecture": image.get("Architecture"),
        "variant": image.get("Variant") or "",
        "layers": layers,
        "configuration": {name: configuration[name] for name in CONFIGURATION if configuration.get(name)},
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"image_identity": image_identity}
