# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The states of the module model_tree, each a function of its parameters that returns the module's result."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_index import Index, compare, hash_all, key_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_staging import (
    check_places,
    free_bytes,
    missing_bytes,
    publish,
    staged_bytes,
    staging_of,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import Entry, TreeError, check_links, parse_entries, read_tree
from ansible_collections.unimem.dgx_spark.plugins.module_utils._page_cache import evict_files
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size, parse_size


class IncompleteModel(TreeError):
    """The node that should have the model has not all of it."""

    def __init__(self, text: str, problems: list[dict[str, str]]) -> None:
        super().__init__(text)
        self.problems = problems


def _index_if_writable(index: Index, check_mode: bool) -> None:
    """Keep the hashes, where the model's place may be written; a read-only source is hashed again each time."""
    if index.changed and not check_mode and os.access(os.path.dirname(os.path.dirname(index.path)), os.W_OK):
        index.save()


def indexed(params: t.Mapping[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """List a complete model, every file with the digest that the other nodes verify by."""
    tree = read_tree(params["path"], params["revision"], params["root"])
    problems = tree.problems.as_list()
    if not tree.complete:
        first = "; ".join(problem["message"].rstrip(".") for problem in problems[:3])
        raise IncompleteModel(f"the model at {params['path']} is not complete: {first}. Finish its download on this node, then run again", problems)
    entries, hashed, unhashed = tree.entries, 0, []
    if params["verify"] == "content":
        index = Index.load(tree.root, key_of(tree.model_path, tree.root))
        unnamed = [entry for entry in entries if entry.kind == "file" and not entry.digest]
        if params["read"]:
            hashed = hash_all(tree.root, unnamed, index)
            digests = {entry.path: index.stamps[entry.path][4] for entry in unnamed}
        else:
            digests = {entry.path: index.known(entry, os.lstat(os.path.join(tree.root, entry.path)), "sha256") or "" for entry in unnamed}
            unhashed = [entry for entry in unnamed if not digests[entry.path]]
        entries = [Entry(entry.path, entry.kind, entry.size, entry.target, digests.get(entry.path, entry.digest)) for entry in entries]
        _index_if_writable(index, check_mode)
    told = {"root": tree.root, "model_path": tree.model_path, "revision": tree.revision, "files": [entry.as_dict() for entry in entries]}
    unverified = [entry.path for entry in unhashed]
    return {"changed": False, "tree": told, "total_bytes": tree.size, "hashed_bytes": hashed, "unverified": unverified, "problems": problems}


def _told(params: t.Mapping[str, t.Any]) -> tuple[str, str, list[Entry]]:
    """Root, key and entries of a tree that another node listed."""
    tree = params["tree"]
    root, model_path = tree.get("root"), tree.get("model_path")
    for path in (root, model_path):
        if not isinstance(path, str) or not os.path.isabs(path) or os.path.normpath(path) != path or "\0" in path:
            raise TreeError("tree has no valid root and model_path: it is what state=indexed returned")
    if os.path.commonpath([root, model_path]) != root:
        raise TreeError(f"{root} does not hold {model_path}")
    entries = parse_entries(tree.get("files"))
    check_links(entries, root)
    return root, key_of(model_path, root), entries


def _by_content(params: t.Mapping[str, t.Any], entries: t.Sequence[Entry]) -> bool:
    """Whether to compare by digest, which every file must then have."""
    if params["verify"] != "content":
        return False
    unhashed = [entry.path for entry in entries if entry.kind == "file" and not entry.digest]
    if unhashed and params["read"]:
        raise TreeError(f"{unhashed[0]} was listed without its digest: list the model with verify=content as well")
    return True


def prepared(params: t.Mapping[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Tell what this node lacks, refuse where it has no room for that, and make the staging folder."""
    root, key, entries = _told(params)
    reserve = parse_size(params["reserve"], "reserve")
    index = Index.load(root, key)
    seen = compare(root, entries, index, _by_content(params, entries), params["read"])
    if not check_mode and index.changed:
        index.save()
    lacking, free, staging = missing_bytes(entries, seen.wrong), free_bytes(root), staging_of(root, key)
    required = max(0, lacking - staged_bytes(staging)) + reserve
    if seen.wrong and free < required:
        text = f"{root} has {format_size(free)} free, and {format_size(lacking)} of the model are missing (reserve {format_size(reserve)})"
        raise TreeError(f"{text}: make {format_size(required - free)} free there")
    if seen.wrong:
        check_places(root, [entry for entry in entries if entry.path in seen.wrong])
    if seen.wrong and not check_mode:
        os.makedirs(staging, mode=0o755, exist_ok=True)
    told = {"missing": seen.wrong, "missing_bytes": lacking, "hashed_bytes": seen.hashed, "free_bytes": free, "staging": staging}
    return {"changed": bool(seen.wrong), "unverified": seen.unverified, **told}


def published(params: t.Mapping[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Verify and put into place. In check mode nothing was received: what is missing would be published."""
    root, key, entries = _told(params)
    content = _by_content(params, entries)
    index = Index.load(root, key)
    if check_mode:
        wrong = compare(root, entries, index, content, params["read"]).wrong
        return {"changed": bool(wrong), "published_bytes": missing_bytes(entries, wrong), "corrupt": []}
    receipt = publish(root, key, entries, index, content, params["read"])
    if receipt.absent:
        raise TreeError(f"{len(receipt.absent)} files were not received, {receipt.absent[0]} first: nothing was put into place")
    return {"changed": receipt.moved > 0, "published_bytes": receipt.published, "corrupt": receipt.corrupt}


def evicted(params: t.Mapping[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Drop the model's files from the page cache."""
    root, _key, entries = _told(params)
    files = [entry for entry in entries if entry.kind == "file" and os.path.isfile(os.path.join(root, entry.path))]
    if not check_mode:
        evict_files([os.path.join(root, entry.path) for entry in files])
    return {"changed": False, "evicted_bytes": sum(entry.size for entry in files)}


STATES: dict[str, t.Callable[[t.Mapping[str, t.Any], bool], dict[str, t.Any]]] = {
    "indexed": indexed,
    "prepared": prepared,
    "published": published,
    "evicted": evicted,
}
