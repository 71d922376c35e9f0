"""A chat server that misbehaves as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What a server does with the n-th request and its body.
Script = Callable[["Turn", int, dict[str, Any]], None]


class Turn(BaseHTTPRequestHandler):
    """One request; a script answers it with the methods below."""

    server: Chat

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            number = len(self.server.seen)
            self.server.seen.append((self.path, self.headers, json.loads(body)))
        self.server.script(self, number, json.loads(body))

    def say(
        self, text: str | None, finish: str = "stop", usage: dict[str, int] | None = None
    ) -> None:
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
        counted = {} if usage is None else {"usage": usage}
        self.reply(200, json.dumps({"choices": [choice], **counted}))

    def reply(self, status: int, body: str | bytes, headers: dict[str, str] | None = None) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def drip(self, drop: Callable[[], bytes], pause: float = 0.02) -> None:
        """Write for a minute, or until the client gives up or the test ends."""
        end = time.monotonic() + 60
        while time.monotonic() < end and not self.server.done.wait(pause):
            self.wfile.write(drop())

    def break_off(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')

    def caption(self) -> str:
        """The caption of the request at hand."""
        return str(self.server.seen[-1][2]["messages"][-1]["content"])

    def log_message(self, *args: Any) -> None:
        """Quiet."""


class Chat(ThreadingHTTPServer):
    """A server with a script; `seen` are path, headers and body of each question."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Turn)
        self.lock, self.done = threading.Lock(), threading.Event()
        self.seen: list[tuple[str, Message, dict[str, Any]]] = []
        self.script: Script = lambda turn, number, body: turn.reply(500, "no script")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no news."""
