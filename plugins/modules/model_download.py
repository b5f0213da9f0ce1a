#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_download
short_description: Download one commit of a model from the Hugging Face Hub
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The part of the role P(unimem.dgx_spark.model_sync#role) that downloads. It runs C(hf download) of the package C(huggingface_hub) on the node, for
    one commit of one repository, into a Hugging Face cache or a plain directory, and checks that the model is complete afterwards.
  - Where the commit is complete, no network is touched.
  - The download runs on the node by itself. The controller looks after it, and shows bytes, rate and time left, every 5 seconds on a terminal and
    every tenth of the way in a log. Where the controller goes away, what was begun is ended, and the next run waits for it.
  - As root, the download runs as the owner of the folder that it goes to, so that its files and locks are not root's in somebody's cache.
  - A proxy, and what else the program takes from its environment, is given with the task's C(environment).
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._attributes.flow
attributes:
  check_mode:
    support: full
    details:
      - In check mode the Hub is asked how much would be downloaded, and nothing is written.
  diff_mode:
    support: none
  action:
    support: full
  async:
    support: none
  idempotent:
    support: full
options:
  state:
    description:
      - V(report) tells from the disk alone whether the commit is complete.
      - V(downloaded) fetches what is missing of it.
    type: str
    choices:
      - report
      - downloaded
    default: report
  repository:
    description:
      - The repository, as the Hub names it.
    type: str
    required: true
  revision:
    description:
      - The full commit, 40 hexadecimal digits. A branch or a tag is refused, because it moves.
      - It may be left out where O(path) is that of a snapshot.
    type: str
  path:
    description:
      - Where the model is to be. A repository's folder in a Hugging Face cache (C(models--org--name)), one of its snapshots, or else a plain directory.
      - In a plain directory that holds another commit, files are replaced one by one; a cache keeps both.
    type: path
    required: true
  root:
    description:
      - The directory that holds all files of the model, as M(unimem.dgx_spark.model_tree) takes it.
    type: path
  include:
    description:
      - Patterns of the files to download, like V(*.safetensors). Empty, all of them.
    type: list
    elements: str
    default: []
  exclude:
    description:
      - Patterns of files not to download, like V(original/*).
    type: list
    elements: str
    default: []
  program:
    description:
      - The program, by its name or its path. It is of C(huggingface_hub) 1.0 or newer. Its name is also looked for in C(~/.local/bin).
    type: str
    default: hf
  token:
    description:
      - A token for a gated or private repository. The program gets it in its environment, and it is nowhere else.
      - Without it, the program uses what C(hf auth login) has left for its user.
    type: str
  endpoint:
    description:
      - The URL of a mirror or a Hub of one's own. Empty, the program's default.
    type: str
    default: ''
  workers:
    description:
      - How many files are downloaded at once. V(0), as many as the program does by itself (8).
    type: int
    default: 0
  timeout:
    description:
      - Seconds without a byte after which a try is given up.
    type: int
    default: 600
  tries:
    description:
      - How often a download that stands still, or whose connection broke, is tried. Finished files are kept.
    type: int
    default: 3
  reserve:
    description:
      - What has to stay free on the file system, beside what is missing. A size like V(1GiB), or bytes.
    type: str
    default: 1GiB
  progress:
    description:
      - A file on this node to write the progress to, for the action plugin, which sets it.
    type: path
seealso:
  - module: unimem.dgx_spark.model_tree
"""

EXAMPLES = r"""
---
- name: Download a model at one commit
  unimem.dgx_spark.model_download:
    state: downloaded
    repository: Qwen/Qwen3.5-122B-A10B-FP8
    revision: 0123456789abcdef0123456789abcdef01234567
    path: /home/spark/.cache/huggingface/hub/models--Qwen--Qwen3.5-122B-A10B-FP8
    token: "{{ vault_hf_token }}"
  environment:
    https_proxy: http://proxy.example.com:3128
"""

RETURN = r"""
complete:
  description: Whether the commit was complete when it was looked at last. In check mode, before the download.
  returned: success
  type: bool
  sample: true
reasons:
  description: Why it is not.
  returned: success
  type: list
  elements: str
  sample: []
layout:
  description: V(cache) or V(plain).
  returned: success
  type: str
  sample: cache
model_path:
  description: The directory to give to an engine.
  returned: success
  type: str
  sample: /home/spark/.cache/huggingface/hub/models--Qwen--Qwen3.5-122B-A10B-FP8/snapshots/0123456789abcdef0123456789abcdef01234567
revision:
  description: The commit.
  returned: success
  type: str
  sample: 0123456789abcdef0123456789abcdef01234567
downloaded_bytes:
  description:
    - Bytes of the files that came. In check mode, those that would, as the program rounds them; V(0) where it does not say.
  returned: with O(state=downloaded)
  type: int
  sample: 127131426816
removed_bytes:
  description: Bytes of unfinished files that an earlier download had left, that none would have gone on with, and that were removed.
  returned: when something was downloaded
  type: int
  sample: 0
space:
  description: V(checked), or why the free space was not.
  returned: when something was or would be downloaded
  type: str
  sample: checked
program:
  description: The program's path.
  returned: when something was or would be downloaded
  type: str
  sample: /home/spark/.local/bin/hf
version:
  description: The version of C(huggingface_hub) that it is of.
  returned: when something was or would be downloaded
  type: str
  sample: '2.4'
user:
  description: The user that it ran as, where that is not the module's own; else empty.
  returned: when something was or would be downloaded
  type: str
  sample: spark
tries:
  description: How many tries it took.
  returned: when something was downloaded
  type: int
  sample: 1
seconds:
  description: How long it took on the node.
  returned: success
  type: float
  sample: 812.4
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import HubError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub_states import STATES
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import TreeError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._progress import ProgressFile
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError


def main() -> None:
    """One state, one function."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["report", "downloaded"], "default": "report"},
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str"},
            "path": {"type": "path", "required": True},
            "root": {"type": "path"},
            "include": {"type": "list", "elements": "str", "default": []},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "program": {"type": "str", "default": "hf"},
            "token": {"type": "str", "no_log": True},
            "endpoint": {"type": "str", "default": ""},
            "workers": {"type": "int", "default": 0},
            "timeout": {"type": "int", "default": 600},
            "tries": {"type": "int", "default": 3},
            "reserve": {"type": "str", "default": "1GiB"},
            "progress": {"type": "path"},
        },
        supports_check_mode=True,
    )
    for name, least in (("workers", 0), ("timeout", 1), ("tries", 1)):
        if module.params[name] < least:
            module.fail_json(msg=f"{name} is {module.params[name]}; it has to be {least} or more")
    progress = ProgressFile(module.params["progress"])
    start = time.monotonic()
    try:
        result = STATES[module.params["state"]](module.params, module.check_mode, progress.write)
    except (HubError, TreeError, SizeError, OSError) as exc:
        module.fail_json(msg=str(exc))
    finally:
        progress.end()
    module.exit_json(**{**result, "seconds": round(time.monotonic() - start, 3)})


if __name__ == "__main__":
    main()
