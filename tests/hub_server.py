"""A stand-in of the Hugging Face hub, which creates repositories and takes commits."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from huggingface_hub import ModelCard


class Hub(ThreadingHTTPServer):
    """The server.

    Attributes:
        files: content of the files of each repository, by path.
        private: names of the private repositories.
        faults: what is wrong with a card.
        seen: method, path and token of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.faults: list[str] = []
        self.seen: list[tuple[str, str, str | None]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self._path()
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            known = name in self.server.files
            if not known:
                self.server.files[name] = {}
                if asked["visibility"] == "private":
                    self.server.private.add(name)
            self._reply({"url": f"{self.server.url}/{name}"}, 409 if known else 200)
        elif path == "/api/validate-yaml":
            ModelCard(json.loads(body)["content"], ignore_metadata_errors=False)
            errors = [{"message": each} for each in self.server.faults]
            self._reply({"errors": errors, "warnings": []}, 400 if errors else 200)
        elif path.endswith("/preupload/main"):
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            files = [{"path": each["path"], **modes} for each in json.loads(body)["files"]]
            self._reply({"files": files})
        else:
            name = path.removeprefix("/api/models/").removesuffix("/commit/main")
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    content = base64.b64decode(value["content"])
                    self.server.files[name][value["path"]] = content
                elif line["key"] == "deletedFile":
                    del self.server.files[name][value["path"]]
            oid = "0" * 40
            url = f"{self.server.url}/{name}/commit/{oid}"
            self._reply({"commitUrl": url, "commitOid": oid, "hookOutput": ""})

    def do_GET(self) -> None:
        owner, name, *rest = self._path().removeprefix("/api/models/").split("/")
        place = f"{owner}/{name}"
        files = self.server.files.get(place)
        if files is None:
            self._reply({"error": "Not found"}, 404)
        elif rest:
            sizes = [(path, len(content)) for path, content in files.items()]
            entry = {"type": "file", "oid": "0" * 40}
            self._reply([{**entry, "path": path, "size": size} for path, size in sizes])
        else:
            siblings = [{"rfilename": path} for path in files]
            private = place in self.server.private
            self._reply({"id": place, "private": private, "siblings": siblings})

    def _path(self) -> str:
        self.server.seen.append((self.command, self.path, self.headers["authorization"]))
        return self.path.partition("?")[0]

    def _reply(self, answer: Any, status: int = 200) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Requests are in `seen`."""
