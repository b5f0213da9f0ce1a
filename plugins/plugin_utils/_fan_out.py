# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Who sends a model to whom, in which round: every node that has it sends to one that lacks it, so that the holders double.

A node's link is full with one receiver, so that sending to two at once takes as long as one after the other; a binomial tree,
in which each round doubles those that have it, is then as short as can be: the rounded-up binary logarithm of (all / holders).
"""

from __future__ import annotations

import typing as t


class FanOutError(ValueError):
    """There is nobody to send; the text says so."""


def rounds(lacking: t.Sequence[str], holders: t.Sequence[str]) -> list[list[dict[str, str]]]:
    """Rounds of (source, target) pairs. In a round, no node is in two pairs. Raises FanOutError where somebody lacks it and nobody has it."""
    have = list(dict.fromkeys(holders))
    waiting = [name for name in dict.fromkeys(lacking) if name not in have]
    if waiting and not have:
        raise FanOutError(f"{', '.join(waiting)} have to receive something, and no host has it")
    found = []
    while waiting:
        pairs = [{"source": source, "target": target} for source, target in zip(have, waiting)]
        found.append(pairs)
        waiting = waiting[len(pairs) :]
        have += [pair["target"] for pair in pairs]
    return found
