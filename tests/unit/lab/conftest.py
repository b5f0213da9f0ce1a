# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver, built once a session. Without a C compiler these tests fail; they are never skipped."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gb10_driver import DRIVER_SOURCES, Driver, running_driver


def build(layer: Path, directory: Path) -> Path:
    """The programs of a layer of the lab, as its build.sh makes them."""
    done = subprocess.run([layer / "build.sh", "--flat", directory], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{layer.name} does not build:\n{done.stdout}{done.stderr}", pytrace=False)
    return directory


@pytest.fixture(scope="session")
def driver_binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gb10-simd, nvidia-smi and libnvidia-ml.so.1."""
    return build(DRIVER_SOURCES, tmp_path_factory.mktemp("gb10-driver"))


@pytest.fixture(scope="session")
def service_binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vllm (the embeddings server) and llama-server."""
    return build(DRIVER_SOURCES.parent / "services", tmp_path_factory.mktemp("gb10-services"))


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory whose sockets fit into an address (107 bytes), which pytest's own often do not."""
    with tempfile.TemporaryDirectory(prefix="gb10-") as directory:
        yield Path(directory)


@pytest.fixture
def driver(driver_binaries: Path, short_directory: Path) -> Iterator[Driver]:
    """A running driver with small contexts (8 MiB, 8 MiB margin)."""
    with running_driver(driver_binaries, short_directory) as running:
        yield running
