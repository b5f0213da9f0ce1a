# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tree_hash
short_description: Hash a directory on the controller, such as a build context
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Returns one hash for all names, contents, link targets and executable bits below a directory of the controller.
  - The hash does not depend on where the directory lies, on times, owners or the umask, so that every checkout of the same commit has the same one.
  - C(.git), C(__pycache__) and C(*.pyc) do not count.
options:
  _terms:
    description:
      - Directories on the controller.
    type: list
    elements: path
    required: true
  salt:
    description:
      - Anything else that the hash has to depend on, such as build arguments.
    type: raw
"""

EXAMPLES = r"""
---
- name: Name an image by what it is built from
  ansible.builtin.set_fact:
    image: "spark/vllm:{{ lookup('unimem.dgx_spark.tree_hash', 'files/engine', salt={'VERSION': '0.32.0'}) | truncate(16, true, '') }}"
"""

RETURN = r"""
_raw:
  description:
    - For each directory, 64 hexadecimal digits.
  type: list
  elements: str
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._tree_hash import TreeHashError, tree_hash


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Hash each directory."""
        self.set_options(var_options=variables, direct=kwargs)
        try:
            # Where a relative path leads is Ansible's to say, as for the copy module: files/ of the role or the playbook, then the playbook itself.
            folders = [self.find_file_in_search_path(variables, "files", str(term), ignore_missing=True) or str(term) for term in terms]
            return [tree_hash(folder, self.get_option("salt")) for folder in folders]
        except (TreeHashError, OSError) as exc:
            raise AnsibleLookupError(f"unimem.dgx_spark.tree_hash: {exc}") from exc
