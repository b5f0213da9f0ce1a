# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Pack a file of this collection, with all that it imports from the collection, into an archive that Python runs by itself.

What is packed is what is running: the sources come from the loader that this very code was loaded by, be it a directory or the
archive in which Ansible sends a module to a node. So a node keeps the code of the run that left it there.
"""

from __future__ import annotations

import ast
import functools
import importlib
import io
import types
import typing as t
import zipfile

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

PACKAGE = "ansible_collections.unimem.dgx_spark.plugins.module_utils"

#: A constant date, so that the same sources make the same archive.
_DATE = (2026, 1, 1, 0, 0, 0)

_MAIN = "import sys\n\nfrom {module} import main\n\nsys.exit(main(sys.argv))\n"


#: Seconds for an archive to say that it can run: a busy node starts Python slowly.
_CHECK_SECONDS = 60.0


class ArchiveError(Exception):
    """The archive cannot be made; the text says which source is missing."""


def collect_sources(name: str) -> dict[str, str]:
    """The sources of one of the collection's module_utils and of all that it imports of them, by module name. Raises ArchiveError."""
    found: dict[str, str] = {}
    left = [f"{PACKAGE}.{name}"]
    while left:
        module = left.pop()
        if module not in found:
            found[module] = _source(module)
            left += _imports(found[module])
    return found


@functools.cache
def build_archive(agent: types.ModuleType) -> bytes:
    """An archive that runs ``main(sys.argv)`` of one of the module_utils. Raises ArchiveError. A process's sources do not change.

    The module itself is taken and not its name: Ansible sends a node only what is imported.
    """
    name = agent.__name__.rpartition(".")[2]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        sources = collect_sources(name)
        packages = {module.rsplit(".", depth)[0] for module in sources for depth in range(1, module.count(".") + 1)}
        texts = {f"{package.replace('.', '/')}/__init__.py": "" for package in packages}
        texts.update({f"{module.replace('.', '/')}.py": text for module, text in sources.items()})
        texts["__main__.py"] = _MAIN.format(module=f"{PACKAGE}.{name}")
        for path in sorted(texts):
            archive.writestr(zipfile.ZipInfo(path, _DATE), texts[path], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _source(module: str) -> str:
    try:
        loader: t.Any = importlib.import_module(module).__loader__
        text = loader.get_source(module)
    except (ImportError, AttributeError, OSError) as exc:
        raise ArchiveError(f"the source of {module} cannot be read: {exc}") from exc
    if not isinstance(text, str):
        raise ArchiveError(f"{module} has no source")
    return text


def _imports(text: str) -> list[str]:
    """The collection's module_utils that a source imports, wherever in it."""
    found = []
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ImportFrom):
            if statement.level:
                raise ArchiveError(f"a relative import of {statement.module or '.'}: only absolute ones can be packed")
            if statement.module == PACKAGE:
                found += [f"{PACKAGE}.{alias.name}" for alias in statement.names]
            elif statement.module and statement.module.startswith(f"{PACKAGE}."):
                found.append(statement.module)
        elif isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names if alias.name.startswith(f"{PACKAGE}.")]
    return found


def check_agent(world: World, command: t.Sequence[str]) -> str | None:
    """Have an archive on this node prove that it runs there (C(check) is to print C(ready)); else why not."""
    done = world.run([*command, "check"], _CHECK_SECONDS)
    if done.rc == 0 and done.stdout.strip() == "ready":
        return None
    if done.timed_out:
        return f"has not ended within {_CHECK_SECONDS:.0f} s"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return f"ended with status {done.rc}: {lines[-1] if lines else 'no message'}"
