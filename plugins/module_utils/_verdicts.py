# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The verdicts of a budget: which there are, which let a launch go on, how they read, and which node of several decides."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

FITS: t.Final = "fits"
AFTER_EVICTION: t.Final = "fits_after_cache_eviction"
AFTER_STOPPING: t.Final = "fits_after_stopping"
DOES_NOT_FIT: t.Final = "does_not_fit"
UNKNOWN: t.Final = "unknown"

#: The gate lets these through: nothing has to be stopped that the caller did not list in stoppable.
FIT_VERDICTS: t.Final = (FITS, AFTER_EVICTION, AFTER_STOPPING)

#: How each reads in a table, from the best to the worst.
VERDICTS: t.Final[Mapping[str, str]] = {
    FITS: "fits",
    AFTER_EVICTION: "fits once the page cache is evicted",
    AFTER_STOPPING: "fits once something is stopped",
    UNKNOWN: "unknown",
    DOES_NOT_FIT: "does not fit",
}
#: More than any need is: a worse verdict decides whatever the figures are.
_STEP: t.Final = 1 << 60


def words(verdict: object) -> str:
    """How *verdict* reads; one that is not known reads as it is."""
    return VERDICTS.get(str(verdict), str(verdict))


def badness(budget: Mapping[str, t.Any]) -> int:
    """A number to compare nodes by: the node with the most decides. The worse verdict first, then the least that would be left."""
    verdict = str(budget.get("verdict"))
    rank = list(VERDICTS).index(verdict if verdict in VERDICTS else UNKNOWN)
    return rank * _STEP + int(budget.get("need") or 0) - int(budget.get("have") or 0)
