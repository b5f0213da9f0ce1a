# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads SGLang's command lines with SGLang's own parser: no GPU, and nothing of what SGLang depends on.

A program for the Python of an environment that has SGLang's wheel: ``python -I -B sglang_parser.py PROGRAMS``, where PROGRAMS is the directory
that the role mounts in the container. It answers one line of JSON with one line of JSON. What the package's parser is made of is the package's
own; whatever else that imports of the package is a stand-in which is empty, false and takes everything. A stand-in cannot make a command
line right: as a list of choices it allows nothing, and as a type it gives a value that nobody meant.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import io
import json
import os
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

#: What is really loaded, with all below it: the entry point, and what makes the parser.
OWN = ("sglang.launch_server", "sglang.srt.server_args", "sglang.srt.arg_groups", "sglang.srt.environ")


class _Anything(type):
    """The type of the stand-ins: classes, so that they can be called, inherited from and named in annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (StandIn,), {})

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __bool__(cls) -> bool:
        return False

    def __add__(cls, other: Any) -> Any:
        return other


class StandIn(metaclass=_Anything):
    """Whatever it is asked for, it is."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
        return cls


class _Module(types.ModuleType):
    """A module that has everything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Anything(name, (StandIn,), {})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for the package's modules, but for its own parser; the packages around that are empty, whatever they would import."""

    def __init__(self, package: Path) -> None:
        self.package = package

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        if fullname.split(".")[0] != "sglang" or any(f"{fullname}.".startswith(f"{name}.") for name in OWN):
            return None
        spec = ModuleSpec(fullname, self, is_package=True)
        if any(name.startswith(f"{fullname}.") for name in OWN):
            spec.submodule_search_locations = [str(self.package.joinpath(*fullname.split(".")[1:]))]
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


class _Read(BaseException):
    """Thrown where the server would be started, with what its command line was read as."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.read = read


class Parser:
    """One version's parser."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        distribution = importlib.metadata.distribution("sglang")
        self.version = distribution.version
        sys.meta_path.insert(0, _Finder(Path(str(distribution.locate_file("sglang")))))
        self.module = importlib.import_module("sglang.srt.server_args")
        self.type: Any = self.module.ServerArgs
        old = dataclasses.is_dataclass(self.type)
        if old:
            # It would look at the GPU and the model. Newer ones are no dataclasses, and do that when the server is started.
            self.type.__post_init__ = lambda _self: None
        self.prepare: Any = self.module.prepare_server_args
        self.module.prepare_server_args = self._prepare  # type: ignore[attr-defined]
        self.usual = self._fields(self.prepare(["--model-path", "/"]))

    def _prepare(self, argv: list[str]) -> Any:
        """In the place of prepare_server_args, the last thing that is done before the server is started."""
        raise _Read(self.prepare(argv))

    def _fields(self, read: Any) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(read)] if dataclasses.is_dataclass(read) else read.__struct_fields__
        return {name: getattr(read, name) for name in names}

    def options(self) -> list[dict[str, Any]]:
        """Every option: its names and where its value goes."""
        parser = argparse.ArgumentParser()
        self.type.add_cli_args(parser)
        return [{"names": list(action.option_strings), "dest": action.dest} for action in parser._actions]

    def run(self, command: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
        """What the server would be started with, as far as it is not the usual; or why the command line is refused."""
        if command[0] != "python3":
            raise ValueError(f"{command[0]} is not what runs SGLang")
        said = io.StringIO()
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            with contextlib.redirect_stderr(said):
                if command[1] == "-m":
                    sys.argv = list(command[2:])
                    runpy.run_module(command[2], run_name="__main__", alter_sys=True)
                else:
                    sys.argv = list(command[1:])
                    runpy.run_path(str(self.programs / Path(command[1]).name), run_name="__main__")
        except _Read as done:
            return {"read": {name: value for name, value in self._fields(done.read).items() if value != self.usual[name]}}
        except SystemExit:
            return {"refused": said.getvalue().strip().rsplit("\n", 1)[-1]}
        finally:
            os.environ.clear()
            os.environ.update(before)
        raise RuntimeError(f"{command} read no command line")


def main() -> None:
    """Answer until nobody asks any more."""
    answers = sys.stdout
    # What the package prints is no answer.
    sys.stdout = sys.stderr
    parser = Parser(Path(sys.argv[1]))
    answers.write(json.dumps({"version": parser.version, "options": parser.options()}) + "\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        # A stand-in that came through is told as what it is, and equals nothing.
        answers.write(json.dumps(parser.run(asked["command"], asked["environment"]), default=repr) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
