# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""image_build: only what is missing goes over, an interrupted shipment goes on, and nothing is left anywhere."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import HOSTS, Run, on_host, run_playbook

NAME = "unimem-e2e/layers"
SOURCE, TARGET = "spark-01", "spark-02"
LAYER = 30_000_000


@pytest.fixture(autouse=True)
def no_images() -> Iterator[None]:
    """None of our images before and after."""
    _remove()
    yield
    _remove()


def _remove() -> None:
    for host in HOSTS:
        for reference in (NAME, "unimem-ship/*"):
            names = on_host(host, "docker", "image", "ls", f"--filter=reference={reference}", "--format={{.Repository}}:{{.Tag}}").stdout.split()
            if names:
                on_host(host, "docker", "image", "rm", *names)


def context(folder: Path, seeds: list[int]) -> Path:
    """A build context with a layer for each seed."""
    folder.mkdir(exist_ok=True)
    lines = ["FROM scratch"]
    for number, seed in enumerate(seeds):
        (folder / f"layer{number}").write_bytes(random.Random(seed).randbytes(LAYER))
        lines.append(f"COPY layer{number} /layer{number}")
    (folder / "Dockerfile").write_text("\n".join([*lines, 'CMD ["/layer0"]', ""]))
    return folder


def build(folder: Path, *arguments: str, **variables: Any) -> Run:
    extra = {"image_build_image": NAME, "image_build_context": str(folder), "image_build_host": SOURCE, "image_build_part": "20MB", **variables}
    return run_playbook("tests/lab/e2e/playbooks/image_build.yml", *arguments, extra=extra)


def layers(host: str, image: str) -> list[str]:
    told: list[str] = json.loads(on_host(host, "docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", image).stdout)
    return told


def test_only_the_layer_that_changed_goes_over(tmp_path: Path) -> None:
    run = build(context(tmp_path / "context", [1, 2, 3]))
    assert run.rc == 0, run.failures
    first = run.fact("image_build_result", TARGET)
    assert 3 * LAYER < first["sent_bytes"] < 3.1 * LAYER
    run = build(context(tmp_path / "context", [1, 2, 4]))
    assert run.rc == 0, run.failures
    second = run.fact("image_build_result", TARGET)
    assert LAYER < second["sent_bytes"] < 1.1 * LAYER and second["spared_bytes"] > 1.9 * LAYER
    assert layers(TARGET, second["image"]) == layers(SOURCE, second["image"])
    assert on_host(TARGET, "docker", "image", "inspect", "--format", "{{.Id}}", second["image"]).stdout.strip() == second["id"]
    again = build(tmp_path / "context")
    assert again.rc == 0 and not again.changed, again.changed
    for host in HOSTS:
        assert on_host(host, "docker", "image", "ls", "--quiet", "--filter=reference=unimem-ship/*").stdout == ""


def test_an_interrupted_shipment_goes_on(tmp_path: Path) -> None:
    folder = context(tmp_path / "context", [11, 12, 13, 14])

    def interrupt() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if on_host(TARGET, "docker", "image", "ls", "--quiet", "--filter=reference=unimem-ship/*").stdout:
                # It is the ssh of the shipment: the receiver's docker load has lost its other end.
                on_host(SOURCE, "pkill", "--signal", "KILL", "--full", "^ssh .* docker image load")
                return
            time.sleep(0.02)

    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    run = build(folder)
    watcher.join(130)
    assert run.rc != 0
    assert any("did not get to" in message for _host, _task, message in run.failures), run.failures
    run = build(folder)
    assert run.rc == 0, run.failures
    result = run.fact("image_build_result", TARGET)
    assert result["sent_bytes"] < 3.1 * LAYER, "what had arrived was sent again"
    assert layers(TARGET, result["image"]) == layers(SOURCE, result["image"])
    assert on_host(TARGET, "docker", "image", "ls", "--quiet", "--filter=reference=unimem-ship/*").stdout == ""


def test_nothing_lies_in_tmp_while_it_is_sent(tmp_path: Path) -> None:
    largest = 0
    stop = threading.Event()

    def look() -> None:
        nonlocal largest
        while not stop.is_set():
            for host in HOSTS:
                sizes = on_host(host, "find", "/tmp", "/var/tmp", "-xdev", "-type", "f", "-name", "*.tar*", "-printf", "%s\n", check=False).stdout.split()
                largest = max([largest, *map(int, sizes)])
            time.sleep(0.1)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        run = build(context(tmp_path / "context", [21, 22]))
    finally:
        stop.set()
        watcher.join(30)
    assert run.rc == 0, run.failures
    assert largest == 0
