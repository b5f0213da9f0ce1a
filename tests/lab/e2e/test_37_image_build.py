# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""image_build: only what is missing goes over, an interrupted shipment goes on, and nothing is left anywhere."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import HOSTS, ROOT, Run, on_host, run_playbook
from models import python

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


@pytest.mark.soak
def test_an_interrupted_shipment_goes_on(tmp_path: Path) -> None:
    folder = context(tmp_path / "context", [11, 12, 13, 14])

    # The receiver itself looks for the first part, and ends the docker load of the next one.
    seen = "docker image ls --quiet --filter=reference='unimem-ship/*' | grep -q ."
    script = f"until {seen}; do sleep 0.05; done; until pkill -KILL --full '[d]ocker image load'; do sleep 0.02; done"
    watcher = subprocess.Popen(["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), TARGET, script], stdin=subprocess.DEVNULL)
    try:
        run = build(folder)
        assert watcher.poll() is not None, "the shipment was over before it could be interrupted"
    finally:
        watcher.kill()
        watcher.wait()
    assert run.rc != 0
    assert any("did not get to" in message for _host, _task, message in run.failures), run.failures
    run = build(folder)
    assert run.rc == 0, run.failures
    result = run.fact("image_build_result", TARGET)
    assert result["sent_bytes"] < 3.1 * LAYER, "what had arrived was sent again"
    assert layers(TARGET, result["image"]) == layers(SOURCE, result["image"])
    assert on_host(TARGET, "docker", "image", "ls", "--quiet", "--filter=reference=unimem-ship/*").stdout == ""


def test_a_stock_pair_is_told_before_anything_is_built_and_gets_it_with_a_key_for_this_copy(stock_pair: None, tmp_path: Path) -> None:
    keys = on_host(TARGET, "cat", "/root/.ssh/authorized_keys").stdout
    folder = context(tmp_path / "context", [31])
    without = build(folder)
    assert without.rc != 0
    said = [message for _host, _task, message in without.failures]
    assert any("ssh-copy-id" in message and "image_build_temporary_key: true" in message for message in said), said
    assert on_host(SOURCE, "docker", "image", "ls", "--quiet", f"--filter=reference={NAME}").stdout == "", "it was built first"
    run = build(folder, image_build_temporary_key=True)
    assert run.rc == 0, run.failures
    image = run.fact("image_build_result", TARGET)["image"]
    assert layers(TARGET, image) == layers(SOURCE, image)
    assert on_host(TARGET, "cat", "/root/.ssh/authorized_keys").stdout == keys
    assert on_host(SOURCE, "sh", "-c", "ls -d /run/unimem-copy-key-* 2>/dev/null", check=False).stdout == ""
    # Nothing is to be sent any more, so that nobody has to be let in.
    again = build(folder)
    assert again.rc == 0 and not again.changed, again.failures or again.changed


def test_a_deployment_of_a_stock_pair_ends_before_the_model_is_copied(stock_pair: None, tmp_path: Path) -> None:
    """A model that goes by the daemon needs no ssh; its image does."""
    extra = {"model_sync_transport": "daemon", "image_build_context": str(context(tmp_path / "context", [41])), "image_build_image": NAME}
    run = run_playbook("playbooks/deploy_qwen.yml", "--tags", "model_sync,image_build", extra={**extra, "image_build_bases": []})
    assert run.rc != 0
    assert any("ssh-copy-id" in message for _host, _task, message in run.failures), run.failures
    assert not run.results(task="List the model on the source") and not run.results(task="Find what this host lacks")


@pytest.mark.soak
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


REGISTRY = "localhost:45875"
PULLED = f"{REGISTRY}/unimem/words"


@pytest.fixture
def registry() -> Iterator[None]:
    """A registry on the building host that has the tag `latest`."""
    folder = "/srv/unimem-registry"
    on_host(SOURCE, "mkdir", "-p", f"{folder}/tags")
    python(SOURCE, f"open('{folder}/registry.py', 'w').write({(ROOT / 'tests/lab/e2e/registry.py').read_text(encoding='utf-8')!r})")
    move_tag("first")
    on_host(
        SOURCE, "systemd-run", "--quiet", "--collect", "--unit=unimem-e2e-registry",
        "python3", f"{folder}/registry.py", "45875", "unimem/words", f"{folder}/tags",
    )
    try:
        yield
    finally:
        on_host(SOURCE, "systemctl", "stop", "unimem-e2e-registry")
        on_host(SOURCE, "rm", "-rf", folder)
        for host in HOSTS:
            found = on_host(host, "docker", "image", "ls", "--quiet", "--no-trunc", f"--filter=reference={PULLED}").stdout.split()
            if found:
                on_host(host, "docker", "image", "rm", "--force", *sorted(set(found)))


def move_tag(words: str) -> None:
    on_host(SOURCE, "sh", "-c", f"printf {words} > /srv/unimem-registry/tags/latest")


@pytest.mark.soak
def test_what_a_tag_meant_at_the_first_pull_is_required_from_then_on(tmp_path: Path, registry: None) -> None:
    lock = tmp_path / "image_digests.yml"
    asked = {"image_build_image": PULLED, "image_build_context": "", "image_build_tag": "latest", "image_build_lock": str(lock)}
    run = build(tmp_path, **asked)
    assert run.rc == 0, run.failures
    first = run.fact("image_build_result", TARGET)
    assert lock.read_text() == f"{PULLED}:latest: {first['digest']}\n"
    assert layers(TARGET, first["image"]) == layers(SOURCE, first["image"])
    # The tag moves, and the hosts forget what they had: it is the first one that comes again.
    move_tag("second")
    for host in HOSTS:
        on_host(host, "sh", "-c", f"docker image rm --force $(docker image ls --quiet --no-trunc --filter=reference={PULLED} | sort -u)")
    run = build(tmp_path, **asked)
    assert run.rc == 0, run.failures
    assert run.fact("image_build_result", TARGET)["identity"] == first["identity"]


@pytest.mark.soak
def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "image_digests.yml"
    lock.write_text(f"{PULLED}:latest: newest\n")
    run = build(tmp_path, image_build_image=PULLED, image_build_context="", image_build_tag="latest", image_build_lock=str(lock))
    assert run.rc != 0 and any("does not say a digest" in message for _host, _task, message in run.failures), run.failures


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context that adds nothing of weight to the lab's engine."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "note").write_text("one more file")
    (folder / "Dockerfile").write_text("FROM unimem-lab/vllm-cpu-base:0.32.0\nCOPY note /note\n")
    return folder


EXPECTED = {
    "image_build_expect_packages": {"vllm": ">=0.32", "ray": ""},
    "image_build_expect_python": "python3.11",
    "image_build_bases": ["unimem-lab/vllm-cpu-base:0.32.0"],
}


@pytest.mark.soak
def test_an_image_that_holds_what_is_expected_is_asked_once(engine: Path) -> None:
    model = on_host(SOURCE, "sh", "-c", "ls -d /root/.cache/huggingface/hub/models--unimem--tiny-hybrid/snapshots/*").stdout.split()[0]
    on_host(SOURCE, "rm", "-rf", "/var/cache/unimem/image-probes")
    run = build(engine, image_build_expect_model=model, **EXPECTED)
    assert run.rc == 0, run.failures
    assert run.results(task="Run a program in the image", kinds=("ok",))
    again = build(engine, image_build_expect_model=model, **EXPECTED)
    assert again.rc == 0 and not again.changed, again.changed
    for told in (run, again):
        packages = told.fact("image_build_result", TARGET)["packages"]
        assert packages["vllm"] == "0.32.0" and packages["ray"].startswith("2.")
    assert not again.results(task="Run a program in the image", kinds=("ok",))


def test_an_image_that_lacks_something_is_not_sent(engine: Path) -> None:
    on_host(SOURCE, "rm", "-rf", "/var/cache/unimem/image-probes")
    on_host(SOURCE, "mkdir", "-p", "/srv/unimem-model")
    python(SOURCE, "open('/srv/unimem-model/config.json', 'w').write('{\"architectures\": [\"NobodyKnowsThis\"]}')")
    expected = {**EXPECTED, "image_build_expect_packages": {"vllm": ">=99", "sglang": ""}}
    run = build(engine, image_build_expect_model="/srv/unimem-model", image_build_expect_capability="12.1", **expected)
    on_host(SOURCE, "rm", "-rf", "/srv/unimem-model")
    assert run.rc != 0
    said = "\n".join(message for _host, _task, message in run.failures)
    lacking = ["and >= 99 is expected", "has no sglang", "does not know the model's architecture, NobodyKnowsThis", "on compute capability 12.1"]
    for words in lacking:
        assert words in said, said
    assert on_host(TARGET, "docker", "image", "ls", "--quiet", f"--filter=reference={NAME}").stdout == ""
    assert on_host(SOURCE, "docker", "ps", "--all", "--quiet", "--filter=name=unimem-probe").stdout == ""
