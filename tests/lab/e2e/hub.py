# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Hub with repositories on a loopback address: as much of the Hugging Face Hub's interface as `hf download` asks for.

Runs anywhere with nothing but Python: `python3 hub.py PORT FOLDER`; with port 0 it takes a free one. It writes `FOLDER/port` when it
listens. A repository's files at a commit are `FOLDER/repos/ORG/NAME/COMMIT/...`, and `FOLDER/repos/ORG/NAME/refs.json` has its branches.
`FOLDER/requests.log` gets a line of JSON for each request, and `FOLDER/knobs.json`, read anew each time, has what goes wrong:

token    the only token that is known                        private  without it nothing is there
gated    true: files are for those with the token; "closed": for nobody
rate     bytes a second of a file                            cut      a file's connection ends after so many bytes, each time
hang     a file stops after so many bytes, for good          status   every answer has this status and nothing else
ranges   false: a Range is not understood                    only    rate, cut and hang are those of files with this in their name
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

#: What a real repository keeps outside of git, under its SHA-256.
LARGE = (".safetensors", ".bin", ".gguf")
CHUNK = 64 << 10

API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<revision>[^/]+)")
NAMED = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)")
FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class Refusal(Exception):
    """An answer that is not 200: its status, and the header by which the Hub's client tells why."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Store:
    """The folder with the repositories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._lock = threading.Lock()

    def knobs(self) -> dict[str, Any]:
        try:
            knobs: dict[str, Any] = json.loads((self.folder / "knobs.json").read_text())
        except (OSError, ValueError):
            return {}
        return knobs

    def log(self, told: dict[str, Any]) -> None:
        with self._lock, (self.folder / "requests.log").open("a") as handle:
            handle.write(json.dumps(told) + "\n")

    def commit(self, repo: str, revision: str) -> tuple[str, Path]:
        """The commit that a revision means, and its files."""
        place = self.folder / "repos" / repo
        if not place.is_dir() or ".." in repo:
            raise Refusal(404, "RepoNotFound", "Repository not found")
        try:
            refs = json.loads((place / "refs.json").read_text())
        except OSError:
            refs = {}
        commit = refs.get(revision, revision)
        if not re.fullmatch("[0-9a-f]{40}", commit) or not (place / commit).is_dir():
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, place / commit

    @staticmethod
    def files(place: Path) -> list[Path]:
        return sorted(path for path in place.rglob("*") if path.is_file())


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listed(path: Path, place: Path) -> dict[str, Any]:
    """A file as the tree of a repository lists it."""
    content = path.read_bytes()
    told: dict[str, Any] = {"type": "file", "path": path.relative_to(place).as_posix(), "size": len(content), "oid": git_sha1(content)}
    if path.name.endswith(LARGE):
        told["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return told


def handler(store: Store) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments: Any) -> None:
            """Not on the terminal: requests.log has it."""

        def do_GET(self) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            told = {"method": self.command, "path": path, "range": self.headers.get("Range"), "token": self.headers.get("Authorization")}
            store.log({**told, "host": self.headers.get("Host")})
            try:
                self._answer(path, store.knobs())
            except Refusal as refusal:
                self._send(b"", {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}, refusal.status)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_HEAD = do_GET

        def _answer(self, path: str, knobs: dict[str, Any]) -> None:
            if knobs.get("status"):
                raise Refusal(int(knobs["status"]))
            if path.startswith("/files/"):
                # Where the large files really lie: another host of the same name service, that is told no token.
                self._large(path, knobs)
                return
            asked = API.fullmatch(path)
            file = FILE.fullmatch(path)
            sent = self.headers.get("Authorization")
            if sent is not None and sent != f"Bearer {knobs.get('token')}":
                raise Refusal(401, "", "Invalid credentials in Authorization header")
            if knobs.get("private") and sent is None:
                raise Refusal(401, "RepoNotFound", "Repository not found")
            if file and knobs.get("gated") and (sent is None or knobs["gated"] == "closed"):
                raise Refusal(403 if sent else 401, "GatedRepo", f"Access to model {file['repo']} is restricted.")
            if asked:
                self._describe(asked)
            elif file:
                self._file(file)
            elif NAMED.fullmatch(path):
                commit, _place = store.commit(path.removeprefix("/api/models/"), "main")
                self._json({"_id": "1", "id": path.removeprefix("/api/models/"), "sha": commit, "private": False})
            else:
                raise Refusal(404)

        def _describe(self, asked: re.Match[str]) -> None:
            commit, place = store.commit(asked["repo"], asked["revision"])
            files = [listed(path, place) for path in store.files(place)]
            if asked["what"] == "tree":
                self._json(files)
            else:
                siblings = [{"rfilename": file["path"]} for file in files]
                self._json({"_id": "1", "id": asked["repo"], "modelId": asked["repo"], "sha": commit, "private": False, "siblings": siblings})

        def _file(self, asked: re.Match[str]) -> None:
            commit, place = store.commit(asked["repo"], asked["revision"])
            path = place / asked["path"]
            if not path.is_file() or ".." in asked["path"]:
                raise Refusal(404, "EntryNotFound", "Entry not found")
            content = path.read_bytes()
            headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            if not path.name.endswith(LARGE):
                self._send(content, {**headers, "ETag": f'"{git_sha1(content)}"', "Content-Type": "text/plain"})
                return
            place_of_it = urllib.parse.quote(f"/files/{asked['repo']}/{commit}/{asked['path']}")
            headers["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(content))
            self._send(b"", {**headers, "Location": f"http://localhost:{store.port}{place_of_it}"}, 302)

        def _large(self, path: str, knobs: dict[str, Any]) -> None:
            content = (store.folder / "repos" / path.removeprefix("/files/")).read_bytes()
            start = 0
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            headers = {"Content-Type": "application/octet-stream", "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            if wanted and knobs.get("ranges", True):
                start = int(wanted[1])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(content[start:], headers, 206 if start else 200, knobs if str(knobs.get("only", "")) in path else {})

        def _json(self, told: Any) -> None:
            self._send(json.dumps(told).encode(), {"Content-Type": "application/json"})

        def _send(self, data: bytes, headers: dict[str, str], status: int = 200, knobs: dict[str, Any] | None = None) -> None:
            knobs = knobs or {}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            for begin in range(0, len(data), CHUNK):
                chunk = data[begin : begin + CHUNK]
                if knobs.get("cut") and begin >= knobs["cut"]:
                    self.close_connection = True
                    return
                while knobs.get("hang") and begin >= knobs["hang"] and store.knobs().get("hang"):
                    time.sleep(0.1)
                self.wfile.write(chunk)
                if knobs.get("rate"):
                    time.sleep(len(chunk) / knobs["rate"])

    return Handler


class Server(http.server.ThreadingHTTPServer):
    """Threads end with it."""

    daemon_threads = True


def serve(port: int, folder: Path) -> Server:
    """Listen, and say where."""
    store = Store(folder)
    server = Server(("127.0.0.1", port), handler(store))
    store.port = server.socket.getsockname()[1]
    (folder / "port.new").write_text(str(store.port))
    os.replace(folder / "port.new", folder / "port")
    return server


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
