"""A base, a fine-tuned model, an image, and a browser."""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

from compo_pipeline.models.loading import LoadedModel, load

SECONDS = 120.0


@pytest.fixture(scope="session")
def folders(tiny_model: Callable[..., Path]) -> tuple[Path, Path]:
    """Of two models; their images are read alike, their texts are not."""
    return tiny_model(seed=1), tiny_model(seed=2)


@pytest.fixture(scope="session")
def models(folders: tuple[Path, Path]) -> tuple[LoadedModel, LoadedModel]:
    return load(folders[0]), load(folders[1])


@pytest.fixture(scope="session")
def pixels() -> Image.Image:
    """Noise, wider than high."""
    drawn = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(drawn)


@pytest.fixture
def image(pixels: Image.Image, tmp_path: Path) -> Path:
    path = tmp_path / "noise.png"
    pixels.save(path)
    return path


@pytest.fixture(scope="session")
def cosines() -> Callable[[LoadedModel, Image.Image, list[str]], list[float]]:
    """What open_clip itself makes of an image and captions."""

    @torch.no_grad()
    def computed(loaded: LoadedModel, image: Image.Image, captions: list[str]) -> list[float]:
        seen = loaded.model.encode_image(loaded.preprocess(image)[None], normalize=True)
        read = loaded.model.encode_text(loaded.tokenize(captions), normalize=True)
        found: list[float] = (seen @ read.T)[0].tolist()
        return found

    return computed


class Page:
    """A browser page driven by a test; `requests` are the URLs that it requested."""

    def __init__(self, socket: Any) -> None:
        self.requests: list[str] = []
        self._socket, self._sent = socket, 0
        for domain in ("Network", "Page", "Runtime", "DOM"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> Any:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self._sent:
                assert "error" not in message, message
                return message["result"]

    def go(self, url: str) -> None:
        self.command("Page.navigate", url=url)

    def read(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The value of an expression as soon as it is one that counts as true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if value := self.read(expression):
                return value
            time.sleep(0.2)
        raise TimeoutError(f"{expression}; the page: {self.read('document.body.innerText')}")

    def click(self, selector: str) -> None:
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.read(f"document.querySelector({json.dumps(selector)}).click()")

    def write(self, selector: str, text: str) -> None:
        """Type into a field in place of what is there."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"!!{field}")
        self.read(f"{field}.focus(), {field}.select()")
        self.command("Input.insertText", text=text)

    def upload(self, selector: str, path: Path) -> None:
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        root = self.command("DOM.getDocument")["root"]["nodeId"]
        node = self.command("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.command("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def foreign(self) -> list[str]:
        """Requests to other hosts, without data and blob URLs."""
        asked = [urlsplit(url) for url in self.requests]
        away = [url for url in asked if url.scheme not in ("data", "blob")]
        return [url.geturl() for url in away if url.hostname != "127.0.0.1"]


@pytest.fixture(scope="session")
def chromium() -> Callable[[Path], AbstractContextManager[Page]]:
    """`with chromium(folder) as page:`, the browser's own files in the folder."""
    pytest.importorskip("websockets")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    binary = next((found for name in names if (found := shutil.which(name))), None)
    if binary is None:
        pytest.skip("there is no Chromium on this machine")
    return lambda folder: _chromium(binary, folder)


@contextmanager
def _chromium(binary: str, folder: Path) -> Iterator[Page]:
    """A fresh page of a Chromium of its own, which knows no other host than this one."""
    from websockets.sync.client import connect

    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    flags += ("--no-first-run", "--no-proxy-server", "--remote-debugging-port=0")
    flags += ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",)
    flags += (f"--user-data-dir={folder}", "--window-size=1200,1000")
    process = subprocess.Popen(
        [binary, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        place = folder / "DevToolsActivePort"
        end = time.monotonic() + SECONDS
        while not (place.is_file() and place.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < end, "Chromium does not start"
            time.sleep(0.1)
        port = place.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            (target,) = [each for each in json.load(answer) if each["type"] == "page"]
        with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)
