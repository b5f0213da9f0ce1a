# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a model consists of: the closure of files and links that one revision needs, whatever the layout.

Understood are a plain directory (also `hf download --local-dir`), a repository of the Hugging Face cache (`models--org--name`,
with the revision of refs/main or the only snapshot), and one snapshot of it. Snapshots are directories of links; the files
lie in `blobs/` of the repository, or since 2026 in a store that several repositories share (`hub/blobs/ab/...`), reached
through a second link. A copy of the repository's folder alone ships links that lead nowhere, and no tool complains.

A blob's name in its repository is its hash: SHA-256 of the content for large files, git's blob SHA-1 for the others. In the shared
store a file is named by the hash of the protocol that fetched it (Xet's), which is no hash of the content: there it is the name of the
link that leads to it that tells.
"""

from __future__ import annotations

import os
import re
import stat
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import ERROR, Problems, shown
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import read_checkpoint

#: Our own folder beside the models: the index of what was verified, and what is on its way.
OWN_FOLDER: t.Final = ".unimem-model-sync"
#: More than any model has; a directory that is none (a home, say) ends here.
MAX_ENTRIES: t.Final = 20_000
#: The kernel's own limit for a path.
_MAX_HOPS: t.Final = 40

#: Not part of a model: the hub client's bookkeeping, locks, unfinished downloads, version control.
_SKIPPED_FOLDERS: t.Final = frozenset({".cache", ".git", ".locks", ".no_exist", OWN_FOLDER})
_SKIPPED_FILES: t.Final = (".incomplete", ".lock")

_SHA256: t.Final = re.compile(r"[0-9a-f]{64}")
_SHA1: t.Final = re.compile(r"[0-9a-f]{40}")
_NUMBERED: t.Final = re.compile(r"\A(?P<stem>.{1,255})-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.(?:safetensors|bin|gguf))\Z")
_WEIGHTS: t.Final = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


class TreeError(ValueError):
    """The directory cannot be taken as a model; the text says why and what to do."""


@dataclass(frozen=True)
class Entry:
    """One file or link of a model, by its path relative to the root."""

    path: str
    #: "file" or "link"
    kind: str
    #: bytes of a file, 0 of a link
    size: int = 0
    #: where a link leads, as it is written in it
    target: str = ""
    #: "sha256:…" or "git-sha1:…" of a file where it is known, else ""
    digest: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        return {"path": self.path, "kind": self.kind, "size": self.size, "target": self.target, "digest": self.digest}


@dataclass
class Tree:
    """A model: everything below `root` that it needs."""

    #: absolute; holds all entries, the same on every node
    root: str
    #: absolute; the directory that an engine is given
    model_path: str
    #: the revision of a cache repository, else ""
    revision: str = ""
    entries: list[Entry] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @property
    def complete(self) -> bool:
        """Whether everything that the model needs is there, as far as that shows without reading the weights."""
        return not self.problems.errors()


def check_relative(path: object) -> str:
    """Return a relative path of an entry that came from another machine, or raise TreeError where it could leave the root."""
    if not isinstance(path, str) or not path or "\0" in path or os.path.isabs(path) or len(path) > 4096:
        raise TreeError(f"{shown(path)} is no path inside a model")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == OWN_FOLDER:
        raise TreeError(f"{shown(path)} is no path inside a model")
    return path


def hop(path: str, target: str, root: str) -> str | None:
    """Where a link at `path` leads, relative to the root; None where it leaves the root. Both may contain further links."""
    # join() starts over at an absolute target.
    landed = os.path.relpath(os.path.normpath(os.path.join(root, os.path.dirname(path), target)), root)
    return None if landed == os.pardir or landed.startswith(os.pardir + "/") or landed == os.curdir else landed


def parse_entries(told: t.Any) -> list[Entry]:
    """Entries as another node's module returned them. They are not trusted: no path and no link may leave the root."""
    if not isinstance(told, list) or len(told) > MAX_ENTRIES:
        raise TreeError(f"expected a list of at most {MAX_ENTRIES} files")
    entries = []
    for item in told:
        if not isinstance(item, dict):
            raise TreeError(f"{shown(item)} describes no file")
        size, target, digest = item.get("size", 0), item.get("target") or "", item.get("digest") or ""
        if item.get("kind") not in ("file", "link") or isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise TreeError(f"{shown(item.get('path'))} has no valid kind or size")
        if not isinstance(target, str) or not isinstance(digest, str) or (item["kind"] == "link") != bool(target):
            raise TreeError(f"{shown(item.get('path'))} has no valid target or digest")
        entries.append(Entry(check_relative(item.get("path")), item["kind"], size, target, digest))
    if len({entry.path for entry in entries}) != len(entries):
        raise TreeError("a file is listed twice")
    return entries


def check_links(entries: t.Iterable[Entry], root: str) -> None:
    """Raise TreeError for a link that would leave the root on this node."""
    for entry in entries:
        if entry.kind == "link" and hop(entry.path, entry.target, root) is None:
            raise TreeError(f"the link {shown(entry.path)} leads out of {root}, to {shown(entry.target)}")


def locate(path: str, revision: str | None = None, root: str | None = None) -> Tree:
    """Find the layout of the model at `path`: its root, the directory to serve, its revision. Reads names only."""
    if not os.path.isabs(path):
        raise TreeError(f"{shown(path)} is not an absolute path")
    path = os.path.normpath(path)
    if not os.path.isdir(path):
        raise TreeError(f"there is no directory {path}")
    parent, name = os.path.split(path)
    repository, folder = os.path.split(parent)
    if folder == "snapshots" and os.path.basename(repository).startswith("models--"):
        tree = Tree(root or os.path.dirname(repository), path, name)
    elif name.startswith("models--") and os.path.isdir(os.path.join(path, "snapshots")):
        commit = _revision(path, revision)
        tree = Tree(root or parent, os.path.join(path, "snapshots", commit), commit)
    else:
        tree = Tree(root or parent, path)
    tree.root = os.path.normpath(tree.root)
    if tree.root == "/" and root is None:
        raise TreeError(f"{path} lies directly below /; name a directory that holds the model and nothing else that matters as the root")
    if os.path.commonpath([tree.root, path]) != tree.root or tree.root == path:
        raise TreeError(f"the root {tree.root} does not hold {path}")
    return tree


def _revision(repository: str, revision: str | None) -> str:
    """The commit of a cache repository: by name, by ref, of refs/main, or the only one there is."""
    snapshots = os.path.join(repository, "snapshots")
    present = sorted(name for name in os.listdir(snapshots) if os.path.isdir(os.path.join(snapshots, name)))
    wanted = revision or "main"
    if wanted in present:
        return wanted
    ref = os.path.join(repository, "refs", wanted)
    if ".." not in wanted.split("/") and not os.path.isabs(wanted) and os.path.isfile(ref):
        with open(ref, encoding="ascii", errors="replace") as handle:
            commit = handle.read(100).strip()
        if commit in present:
            return commit
        raise TreeError(f"{ref} names the revision {shown(commit)}, which is not in {snapshots}: the download is not finished, or was removed")
    if revision is None and len(present) == 1:
        return present[0]
    raise TreeError(f"{repository} has no revision {shown(wanted)}; there are: {', '.join(present) or 'none'}")


def read_tree(path: str, revision: str | None = None, root: str | None = None) -> Tree:
    """Find all that the model at `path` needs, and what is wrong with it. Reads names, sizes, links and the weights' headers."""
    tree = locate(path, revision, root)
    walk = _Walk(tree)
    walk.visit(os.path.relpath(tree.model_path, tree.root))
    if tree.revision:
        walk.visit_refs(os.path.dirname(os.path.dirname(tree.model_path)))
    tree.entries = [walk.found[name] for name in sorted(walk.found)]
    _check_complete(tree)
    return tree


class _Walk:
    """Collects entries: every file, every link on the way, every hop of a chain."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.found: dict[str, Entry] = {}
        self._folders: set[str] = set()

    def _add(self, entry: Entry) -> None:
        if len(self.found) >= MAX_ENTRIES:
            raise TreeError(f"{self.tree.model_path} has more than {MAX_ENTRIES} files: that is no model")
        self.found[entry.path] = entry

    def visit(self, path: str, hops: int = 0, digest: str = "") -> None:
        """Take `path`, relative to the root, and all below it or behind it; `digest` is what the link to it says of its content."""
        real = self._through_links(path, hops)
        if real is None:
            return
        full = os.path.join(self.tree.root, real)
        try:
            status = os.lstat(full)
        except FileNotFoundError:
            self.tree.problems.error("dangling_link", f"{shown(path)} is not there, but a link leads to it.")
            return
        if stat.S_ISLNK(status.st_mode):
            self._visit_link(real, os.readlink(full), hops, digest)
        elif stat.S_ISDIR(status.st_mode):
            self._visit_folder(real, full, hops)
        elif stat.S_ISREG(status.st_mode):
            self._add(Entry(real, "file", status.st_size, "", digest or _digest_in_name(full)))
        else:
            self.tree.problems.error("special_file", f"{shown(real)} is neither a file nor a directory nor a link.")

    def _through_links(self, path: str, hops: int) -> str | None:
        """The path with links among its folders replaced by where they lead; each such link becomes an entry."""
        done = ""
        parts = path.split("/")
        for number, part in enumerate(parts[:-1]):
            done = os.path.join(done, part)
            full = os.path.join(self.tree.root, done)
            if os.path.islink(full):
                landed = self._link(done, os.readlink(full), hops)
                return None if landed is None else self._through_links(os.path.join(landed, *parts[number + 1 :]), hops + 1)
        return path

    def _link(self, path: str, target: str, hops: int) -> str | None:
        """Record a link; return where it leads, None where that is a problem."""
        landed = hop(path, target, self.tree.root)
        if landed is None:
            text = f"the link {shown(path)} leads out of {self.tree.root}, to {shown(target)}; name a root that holds both."
            self.tree.problems.error("link_leaves_root", text)
            return None
        if hops >= _MAX_HOPS:
            self.tree.problems.error("link_loop", f"the link {shown(path)} leads in a circle.")
            return None
        self._add(Entry(path, "link", 0, target))
        return landed

    def _visit_link(self, path: str, target: str, hops: int, digest: str) -> None:
        landed = self._link(path, target, hops)
        if landed is None:
            return
        if not os.path.lexists(os.path.join(self.tree.root, landed)):
            unfinished = os.path.lexists(os.path.join(self.tree.root, landed + ".incomplete"))
            why = "its download is not finished (there is an .incomplete file)" if unfinished else "that is not there"
            self.tree.problems.error("dangling_link", f"{shown(path)} leads to {shown(landed)}: {why}.")
            return
        self.visit(landed, hops + 1, digest or _digest_in_name(os.path.join(self.tree.root, path)))

    def _visit_folder(self, path: str, full: str, hops: int) -> None:
        if path in self._folders:
            return
        self._folders.add(path)
        for name in sorted(os.listdir(full)):
            inside = os.path.join(full, name)
            if name in _SKIPPED_FOLDERS and os.path.isdir(inside) or name.endswith(_SKIPPED_FILES):
                continue
            self.visit(os.path.join(path, name), hops)

    def visit_refs(self, repository: str) -> None:
        """The names (main, a tag) of this revision: what an engine that is given a repository's name looks up."""
        for folder, _folders, names in os.walk(os.path.join(repository, "refs")):
            for name in names:
                full = os.path.join(folder, name)
                try:
                    with open(full, encoding="ascii", errors="replace") as handle:
                        same = handle.read(100).strip() == self.tree.revision
                except OSError:
                    continue
                if same:
                    self.visit(os.path.relpath(full, self.tree.root))


def _digest_in_name(path: str) -> str:
    """The digest of a repository's blob, which is its name."""
    folder, name = os.path.split(path)
    repository, last = os.path.split(folder)
    if last != "blobs" or not os.path.basename(repository).startswith("models--"):
        return ""
    if _SHA256.fullmatch(name):
        return f"sha256:{name}"
    return f"git-sha1:{name}" if _SHA1.fullmatch(name) else ""


def _check_complete(tree: Tree) -> None:
    """Add a problem for each sign that the model is not all there: the index, the numbering, the weights' own headers."""
    prefix = os.path.relpath(tree.model_path, tree.root) + "/"
    names = {entry.path[len(prefix) :] for entry in tree.entries if entry.path.startswith(prefix)}
    # Links dangle or not by what the walk found; names that dangle are already a problem of their own.
    weights = sorted(name for name in names if name.endswith(_WEIGHTS))
    if not weights:
        tree.problems.error("no_weights", f"{tree.model_path} has no weights ({', '.join(_WEIGHTS)}): only its configuration was downloaded.")
        return
    groups: dict[tuple[str, str, str], set[int]] = {}
    for name in weights:
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            groups.setdefault((match["stem"], match["count"], match["ending"]), set()).add(int(match["number"]))
    for (stem, count, ending), numbers in sorted(groups.items()):
        absent = sorted(set(range(1, int(count) + 1)) - numbers)
        # Some write the numbers from 0.
        if absent and not (absent == [int(count)] and 0 in numbers):
            text = f"{len(absent)} of {int(count)} weight files are missing, {stem}-{absent[0]:05d}-of-{count}{ending} first."
            tree.problems.error("shards_missing", text)
    if any(name.endswith(".safetensors") and "/" not in name for name in weights):
        headers = Problems()
        read_checkpoint(tree.model_path, headers)
        for problem in headers.as_list():
            # Limits of the reader (many or slow headers) say nothing about the files.
            severity = problem["severity"] if problem["code"] in ("headers_too_large", "index_bad_total") else ERROR
            tree.problems.add(problem["code"], problem["message"], severity)
