# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lookup run_owner and the filter run_has_ended, as templates call them."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible.plugins.loader import lookup_loader

from ansible_collections.unimem.dgx_spark.plugins.filter.run_has_ended import FilterModule
from ansible_collections.unimem.dgx_spark.plugins.lookup.run_owner import LookupModule

run_has_ended = FilterModule().filters()["run_has_ended"]


def test_this_run_has_not_ended() -> None:
    lookup = lookup_loader.get("unimem.dgx_spark.run_owner") or LookupModule()
    (owner,) = lookup.run([])
    assert owner["id"] and owner["pid"] > 0
    assert run_has_ended(owner) is False
    assert run_has_ended({**owner, "start_time": owner["start_time"] + 1}) is True


@pytest.mark.parametrize("nonsense", [None, "alice@desk", ["a"], 7])
def test_something_else_than_an_owner_is_refused(nonsense: object) -> None:
    with pytest.raises(AnsibleFilterError, match="needs the owner of a lease"):
        run_has_ended(nonsense)
