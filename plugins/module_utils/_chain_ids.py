# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""How an image's layers are told apart: each by its own hash, and by that of the chain of layers below it."""

from __future__ import annotations

import hashlib
import typing as t


def chain_ids(diff_ids: t.Sequence[str]) -> list[str]:
    """The chain id of each layer: sha256 over the one below and the layer's own (OCI image spec, config.md, "Layer ChainID")."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(diff_id if not chain else "sha256:" + hashlib.sha256(f"{chain[-1]} {diff_id}".encode()).hexdigest())
    return chain


def common_layers(diff_ids: t.Sequence[str], images: t.Iterable[t.Sequence[str]]) -> int:
    """How many of the lowest layers of an image are there already, as part of any of these images."""
    most = 0
    for layers in images:
        same = 0
        for ours, theirs in zip(diff_ids, layers):
            if ours != theirs:
                break
            same += 1
        most = max(most, same)
    return most
