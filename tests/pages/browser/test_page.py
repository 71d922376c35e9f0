"""The command itself, on a registered version, as a person in front of a browser meets it."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `ui`"),
]

Browser = Callable[[Path], AbstractContextManager[Any]]

CAPTIONS = ["a red cube", "a blue <b>sphere</b>", "two cats", "a cup on a table", "nothing"]
EXAMPLE = ["a grey square", "a grey circle"]
ROWS = """[...document.querySelectorAll('#scores tbody tr')].map(row =>
    [...row.children].map(cell => [cell.firstChild.textContent, cell.className]))"""


@dataclass(frozen=True)
class Served:
    """A page that is being served from a project's folder."""

    url: str
    project: Path
    process: subprocess.Popen[bytes]
    temporary: Path


def command(project: Path, folders: tuple[Path, Path], *arguments: str) -> list[str]:
    benchmarks = project / "benchmarks"
    params = f"model.name=local-dir:{folders[0]},evaluation.device=cpu"
    params += f",benchmarks.root={benchmarks},benchmarks.images={benchmarks}"
    params += ",benchmarks.sets.sugar_crepe_pp=null"
    return [sys.executable, "-m", "compo_pipeline", "try", "--params", params, *arguments]


@pytest.fixture(scope="module")
def project(
    workspace: Path,
    models: tuple[LoadedModel, LoadedModel],
    mlflow_project: Path,
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., Any],
) -> Path:
    """A project whose champion is version 1, with one benchmark of one item."""
    import mlflow

    tracking.configure(TrackingSettings(), workspace)
    try:
        tags = version_files(models[1], workspace / "version", method="clic")
        client = mlflow.MlflowClient()
        client.create_registered_model("compo-clip")
        tags |= {"base_fingerprint": models[0].fingerprint}
        sealed(client.create_model_version("compo-clip", str(workspace / "version"), tags=tags))
        client.set_registered_model_alias("compo-clip", "champion", "1")
    finally:
        tracking.configure(TrackingSettings(), mlflow_project)
    folder = workspace / "benchmarks" / "sugar_crepe"
    folder.mkdir(parents=True)
    Image.new("RGB", (60, 40), "grey").save(folder.parent / "grey.jpg")
    item = {"filename": "grey.jpg", "caption": EXAMPLE[0], "negative_caption": EXAMPLE[1]}
    (folder / "replace_obj.json").write_text(json.dumps({"0": item}))
    return workspace


@pytest.fixture(scope="module")
def served(
    project: Path,
    folders: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
    free_port: Callable[[], int],
) -> Iterator[Served]:
    port = free_port()
    temporary = tmp_path_factory.mktemp("temporary")
    log = project / "try.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command(project, folders, "--port", str(port)),
            cwd=project,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            assert process.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(url, timeout=5)
                break
            except OSError:
                time.sleep(1)
        yield Served(url, project, process, temporary)
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def page(served: Served, chromium: Browser, tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "chromium") as opened:
        opened.go(served.url)
        opened.wait("!!document.querySelector('#compare')")
        yield opened


def emptied(page: Any) -> None:
    """Remove the image with its own button."""
    page.click("#image button[aria-label='Remove Image']")
    page.wait("!document.querySelector('#image img')")


def compared(page: Any, captions: list[str]) -> list[list[list[str]]]:
    """Press the button; the table that comes of it, each cell with its class."""
    page.click("#compare")
    page.wait(f"({ROWS}).length == {len(captions)}")
    rows: list[list[list[str]]] = page.read(ROWS)
    assert [row[0][0] for row in rows] == captions
    return rows


def test_a_person_compares_two_models(
    page: Any,
    models: tuple[LoadedModel, LoadedModel],
    image: Path,
    pixels: Image.Image,
    cosines: Callable[[LoadedModel, Image.Image, list[str]], list[float]],
    served: Served,
) -> None:
    title = page.read("document.title")
    assert title.startswith("compo-clip, version 1: CLIC, fine-tuned from ")
    assert "champion." in page.read("document.body.innerText")

    def check(image: Image.Image, captions: list[str]) -> None:
        rows = compared(page, captions)
        for column, loaded in enumerate(models, start=1):
            expected = cosines(loaded, image, captions)
            found = [float(row[column][0]) for row in rows]
            assert found == pytest.approx(expected, abs=1e-4)
            best = ["best" if value == max(expected) else "" for value in expected]
            assert [row[column][1] for row in rows] == best

    # It opens with an example and its scores.
    grey = Image.open(served.project / "benchmarks" / "grey.jpg")
    page.wait(f"({ROWS}).length == {len(EXAMPLE)}")
    check(grey, EXAMPLE)
    emptied(page)
    # The image is off the page before it is out of the form, so a single press may be too early.
    page.read(
        "window.pressing = setInterval(() => document.querySelector('#compare').click(), 3000)"
    )
    page.wait("document.body.innerText.includes('Upload an image')")
    page.read("clearInterval(window.pressing)")

    page.upload("#image input[type=file]", image)
    page.wait("!!document.querySelector('#image img')")
    page.write("#captions textarea", "\n".join(CAPTIONS))
    check(pixels, CAPTIONS)
    assert not page.read("document.querySelector('#maps img')")

    page.write("#phrase input, #phrase textarea", "a red cube")
    page.click("#compare")
    assert page.wait("document.querySelector('#maps img')?.naturalWidth") > 800

    assert len(page.requests) > 10
    assert page.foreign() == []


def test_a_file_that_is_no_image_is_refused_in_words(page: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image at all")
    emptied(page)
    page.upload("#image input[type=file]", broken)
    page.click("#compare")
    page.wait("document.body.innerText.includes('not_an_image: not one of JPEG')")


def test_no_file_but_its_own_is_served(served: Served) -> None:
    project = served.project.resolve()
    for path in ("conf/base/parameters.yml", "benchmarks/grey.jpg", "mlruns/mlflow.db"):
        assert (project / path).is_file()
        for form in (str(project / path), path):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{served.url}/gradio_api/file={form}", timeout=20)
            assert refused.value.code in (403, 404)


def test_nothing_uploaded_outlives_the_page(served: Served) -> None:
    assert list(served.temporary.glob("compo_ui_*"))
    served.process.terminate()
    assert served.process.wait(120) == 0
    assert not list(served.temporary.glob("compo_ui_*"))
