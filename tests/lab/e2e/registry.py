# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""A registry with one image on a lab host's loopback, where Docker needs no TLS: as much of the distribution API as a pull asks for.

Runs on the host, with nothing but its Python: `python3 registry.py PORT NAME FOLDER`. FOLDER has a file for each tag with what the image's
one file says; a tag whose file changes has moved.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image(text: bytes) -> tuple[bytes, dict[str, bytes]]:
    """An image with one file: its manifest, and its blobs."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        info = tarfile.TarInfo("words")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    machine = {"aarch64": "arm64", "x86_64": "amd64"}[platform.machine()]
    layers = {"type": "layers", "diff_ids": [digest(data.getvalue())]}
    config = json.dumps({"architecture": machine, "os": "linux", "config": {"Cmd": ["/words"]}, "rootfs": layers}).encode()
    layer = gzip.compress(data.getvalue(), mtime=0)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
        "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer), "digest": digest(layer)}],
    }
    return json.dumps(manifest).encode(), {digest(config): config, digest(layer): layer}


def main() -> None:
    """Serve until the unit is stopped. What was served once by its digest stays so, as in a registry."""
    port, name, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    manifests: dict[str, bytes] = {}
    blobs: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _slash, reference = self.path.removeprefix(f"/v2/{name}/").partition("/")
            if self.path == "/v2/":
                self._send(b"{}", "application/json")
            elif kind == "manifests" and (folder / reference).is_file():
                manifest, more = image((folder / reference).read_bytes())
                manifests[digest(manifest)] = manifest
                blobs.update(more)
                self._send(manifest, MANIFEST)
            elif kind == "manifests" and reference in manifests:
                self._send(manifests[reference], MANIFEST)
            elif kind == "blobs" and reference in blobs:
                self._send(blobs[reference], "application/octet-stream")
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", digest(data))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
