# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
# mypy: disable-error-code="import-not-found"

"""The long form of tests/unit/plugins/module_utils/test_pid_reuse.py. It needs no host of the lab, only time."""

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.pid_reuse import judge, rounds


@pytest.mark.soak
def test_pids_used_again_two_thousand_times() -> None:
    judge(rounds(2000, seed=11), 2000)
