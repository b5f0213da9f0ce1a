# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: misspelt_variables
short_description: Say which variables are named like those of a role and are none
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - For use in a role. Ansible does not mind a variable that nobody reads, so that a misspelt one keeps its default without a word. This lookup compares the
    names of the host's variables that begin with the role's name with the options of C(meta/argument_specs.yml).
  - Values are not looked at. The names in the variable C(deploy_other_variables) are somebody else's.
options:
  _terms:
    description:
      - The role's directory, which a role has in C(role_path).
    type: list
    elements: path
    required: true
  results:
    description:
      - Names that begin like the role's variables and that it leaves behind.
    type: list
    elements: str
    default: []
seealso:
  - plugin: unimem.dgx_spark.unknown_settings
    plugin_type: filter
"""

EXAMPLES = r"""
---
# In tasks/main.yml of a role.
- name: Check that no variable is misspelt
  ansible.builtin.assert:
    that:
      - __my_role_misspelt | length == 0
    fail_msg: "{{ __my_role_misspelt }}"
  vars:
    __my_role_misspelt: "{{ lookup('unimem.dgx_spark.misspelt_variables', role_path, results=['my_role_result']) }}"
"""

RETURN = r"""
_raw:
  description:
    - For each role a text that names the variables and what may have been meant. Empty when all are known.
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._unknown_settings import unknown_settings


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """A text for each role."""
        self.set_options(var_options=variables, direct=kwargs)
        return [self._said(Path(str(term)), variables or {}) for term in terms]

    def _said(self, role: Path, variables: dict[str, Any]) -> str:
        specification = role / "meta" / "argument_specs.yml"
        try:
            options = self._loader.load_from_file(str(specification))["argument_specs"]["main"]["options"]
        except (KeyError, TypeError) as exc:
            raise AnsibleLookupError(f"unimem.dgx_spark.misspelt_variables: {specification} has no argument_specs.main.options") from exc
        names = [name for name in variables if str(name).startswith(f"{role.name}_")]
        others = self._templar.template(variables.get("deploy_other_variables", []))
        lines = unknown_settings({variables.get("inventory_hostname", ""): names}, [*options, *self.get_option("results")], others)
        if not lines:
            return ""
        said = [f"Nothing reads what is set here; what the role {role.name} reads is in its README:", *(f"  {line}" for line in lines)]
        return "\n".join([*said, "A variable of your own that begins like the role's goes into the list deploy_other_variables."])
