#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_tree
short_description: Know, receive and verify the files of a model
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The part of the role P(unimem.dgx_spark.model_sync#role) that runs on the nodes. It finds all that a model needs, in a plain directory or in the
    Hugging Face cache, tells what a node lacks of it, and puts into place what was received, verified first.
  - Content hashes are kept in an index beside the model, in a folder C(.unimem-model-sync), so that an unchanged model costs no reading.
    The index is a cache, and writing it does not count as a change.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  state:
    description:
      - V(indexed) lists the files and links of the model at O(path), with their hashes, and fails where the model is not complete.
      - V(prepared) holds this node's files against O(tree), checks the free space, and makes the folder that the missing files are received in.
      - V(published) verifies what was received and renames it into place, all of it or nothing.
      - V(evicted) drops the files of O(tree) from the page cache. It reads and writes nothing, and never reports a change.
    type: str
    choices:
      - indexed
      - prepared
      - published
      - evicted
    default: indexed
  path:
    description:
      - The model on the node that has it. A plain directory, a repository of the Hugging Face cache (C(models--org--name)), or one of its snapshots.
      - Required with O(state=indexed).
    type: path
  revision:
    description:
      - For a cache repository, which revision, by commit or by ref. Without it, that of C(refs/main), or the only one there is.
    type: str
  root:
    description:
      - The directory that holds all files of the model, those that its links lead to included. It is the same on all nodes.
      - Without it, the cache directory around a repository, or the directory around a plain one.
    type: path
  tree:
    description:
      - RV(tree), as O(state=indexed) returned it on the node that has the model.
      - Required with the other states.
    type: dict
  verify:
    description:
      - V(content) compares by hash. A blob of the Hugging Face cache has its hash as its name; other files are hashed on the node that has the model.
      - V(size) compares sizes and link targets only. It is quicker the first time, and does not see a damaged file.
    type: str
    choices:
      - content
      - size
    default: content
  read:
    description:
      - Whether files in place whose content is not known are read, to hash them. Without that they are compared by size, and listed in RV(unverified).
        Reading a model takes a disk's whole time, which a node that serves at the moment has not got.
      - What was received is read in any case.
    type: bool
    default: true
  reserve:
    description:
      - What has to stay free on the file system, beside the missing files. A size like V(1GiB), or bytes.
    type: str
    default: 1GiB
seealso:
  - module: unimem.dgx_spark.model_push
"""

EXAMPLES = r"""
---
- name: What the model needs
  unimem.dgx_spark.model_tree:
    path: /home/spark/.cache/huggingface/hub/models--Qwen--Qwen3.5-122B-A10B-FP8
  register: model

- name: What this node lacks of it
  unimem.dgx_spark.model_tree:
    state: prepared
    tree: "{{ hostvars['spark-01'].model.tree }}"
  register: lacking
"""

RETURN = r"""
tree:
  description: The model's files, as the other states take them.
  returned: with O(state=indexed)
  type: dict
  contains:
    root:
      description: The directory that holds all of them.
      type: str
      sample: /home/spark/.cache/huggingface/hub
    model_path:
      description: The directory to give to an engine.
      type: str
      sample: /home/spark/.cache/huggingface/hub/models--Qwen--Qwen3.5-122B-A10B-FP8/snapshots/0a1b2c
    revision:
      description: The commit of a cache repository, else empty.
      type: str
      sample: 0a1b2c
    files:
      description: Files and links, each with C(path) (relative to the root), C(kind), C(size), C(target) and C(digest).
      type: list
      elements: dict
total_bytes:
  description: Bytes of all files of the model.
  returned: with O(state=indexed)
  type: int
  sample: 127131426816
hashed_bytes:
  description: Bytes that had to be read, because the index did not know them.
  returned: with O(state=indexed), O(state=prepared)
  type: int
  sample: 0
unverified:
  description: Files that were compared by size only, because O(read) is V(false) and the index does not know them.
  returned: with O(state=indexed), O(state=prepared)
  type: list
  elements: str
  sample: []
missing:
  description: What this node lacks or has wrong, each with the reason (V(absent), V(kind), V(target), V(size) or V(content)).
  returned: with O(state=prepared)
  type: dict
  sample:
    models--Qwen--Qwen3.5-122B-A10B-FP8/blobs/4f6b: absent
missing_bytes:
  description: Bytes to be sent.
  returned: with O(state=prepared)
  type: int
  sample: 5368709120
free_bytes:
  description: Bytes that are free on the file system.
  returned: with O(state=prepared)
  type: int
  sample: 2199023255552
staging:
  description: The folder to send the missing files to, relative paths kept.
  returned: with O(state=prepared)
  type: str
  sample: /home/spark/.cache/huggingface/hub/.unimem-model-sync/52c1f0a9be21d3f4
published_bytes:
  description: Bytes put into place.
  returned: with O(state=published)
  type: int
  sample: 5368709120
corrupt:
  description:
    - Files that arrived with other bytes than they were sent with.
    - They were removed and nothing was put into place. Sending them again is the remedy.
  returned: with O(state=published)
  type: list
  elements: str
  sample: []
evicted_bytes:
  description: Bytes of the files that were dropped from the page cache.
  returned: with O(state=evicted)
  type: int
  sample: 127131426816
seconds:
  description: How long it took on the node.
  returned: success
  type: float
  sample: 0.021
problems:
  description: What keeps the model from being complete, each with C(code), C(message) and C(severity).
  returned: with O(state=indexed)
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_states import STATES, IncompleteModel
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import TreeError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError


def main() -> None:
    """One state, one function."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["indexed", "prepared", "published", "evicted"], "default": "indexed"},
            "path": {"type": "path"},
            "revision": {"type": "str"},
            "root": {"type": "path"},
            "tree": {"type": "dict"},
            "verify": {"type": "str", "choices": ["content", "size"], "default": "content"},
            "read": {"type": "bool", "default": True},
            "reserve": {"type": "str", "default": "1GiB"},
        },
        required_if=[
            ("state", "indexed", ["path"]),
            ("state", "prepared", ["tree"]),
            ("state", "published", ["tree"]),
            ("state", "evicted", ["tree"]),
        ],
        supports_check_mode=True,
    )
    start = time.monotonic()
    try:
        result = STATES[module.params["state"]](module.params, module.check_mode)
    except IncompleteModel as exc:
        module.fail_json(msg=str(exc), problems=exc.problems)
    except (TreeError, SizeError, OSError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(seconds=round(time.monotonic() - start, 3), **result)


if __name__ == "__main__":
    main()
