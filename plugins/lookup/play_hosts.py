# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: play_hosts
short_description: Give a play its hosts, and end the run where there are none
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Returns a pattern of hosts as it is, for the keyword C(hosts) of a play, and fails where it matches no host of the inventory, or none that
    C(--limit) leaves. Ansible itself only warns then, and ends well.
  - No host is connected to. The filters of this collection are loaded, which would else take each task that has one of them 0.1 to 0.2 seconds.
  - Whoever only checks or lists a playbook, with C(--syntax-check) or C(--list-tasks), needs no hosts.
options:
  _terms:
    description:
      - The pattern, a text or a list of them.
    type: list
    elements: raw
    required: true
  variable:
    description:
      - The variable that the user sets to another pattern, for the message.
    type: str
    required: true
seealso:
  - plugin: ansible.builtin.inventory_hostnames
    plugin_type: lookup
"""

EXAMPLES = r"""
---
- name: Say hello to the nodes, of which there must be some
  hosts: "{{ lookup('unimem.dgx_spark.play_hosts', hello_hosts | default('sparks'), variable='hello_hosts') }}"
  gather_facts: false
  tasks:
    - name: Say it
      ansible.builtin.debug:
        msg: Hello, {{ inventory_hostname }}
"""

RETURN = r"""
_raw:
  description:
    - The pattern.
  type: list
  elements: raw
"""

from typing import Any

from ansible import context
from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import filter_loader
from ansible.plugins.lookup import LookupBase

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._play_hosts import why_none

_LISTINGS = ("syntax", "listhosts", "listtags", "listtasks")
#: Any one: Ansible loads all filters of a collection with the first.
_A_FILTER = "unimem.dgx_spark.format_size"


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Give the pattern, or fail."""
        self.set_options(var_options=variables, direct=kwargs)
        if not any(context.CLIARGS.get(listing) for listing in _LISTINGS):
            for pattern in terms:
                why = why_none(pattern, variables or {}, self._loader, self.get_option("variable"))
                if why:
                    raise AnsibleLookupError(why)
            # A play's hosts are worked out in the process that forks one for each task and host. What is loaded here none of them loads again.
            filter_loader.get(_A_FILTER)
        return terms
