# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the drawing can be tested here: only in the environment that has the plotting library, and there it must."""

from __future__ import annotations

import importlib.util
import os

import pytest

#: Set by `make units` for the environment that has matplotlib: a missing library is then a failure, not a skip.
REQUIRED = os.environ.get("UNIMEM_PLOTTING") == "required"

draws = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None and not REQUIRED, reason="matplotlib is not in this environment; `make units` runs this in one that has it"
)
