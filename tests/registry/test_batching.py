"""Forward passes that requests share, and embeddings of texts that are kept."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from prometheus_client import CollectorRegistry
from tests.registry.asked import deployed, encoded
from tests.waiting import until

from compo_pipeline.models.loading import load
from compo_pipeline.registry import model
from compo_pipeline.registry.model import Vectors
from compo_pipeline.serving import server as serving
from compo_pipeline.serving.deployment import Batcher, Deployment
from compo_pipeline.serving.settings import ServingSettings


class Doubling:
    """An encoder whose first pass waits until it is released."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self, inputs: torch.Tensor) -> Vectors:
        self.sizes.append(len(inputs))
        self.begun.set()
        assert self.release.wait(60)
        if inputs.isnan().any():
            raise RuntimeError("not a number")
        doubled: Vectors = 2 * inputs.numpy()
        return doubled


def ask(batcher: Batcher, pool: ThreadPoolExecutor, *values: float) -> Future[Vectors]:
    """Embeddings of inputs [B, 1] from a thread, once they wait behind the first pass.

    Those of the first request are asked for once that pass has begun.
    """

    def asked() -> Vectors:
        model._DEADLINE.set((time.monotonic() + 600, 600))
        return batcher(torch.tensor(values)[:, None])

    encoder, before = batcher._encoder, len(batcher._waiting)
    assert isinstance(encoder, Doubling)
    first = not encoder.begun.is_set()
    future = pool.submit(asked)
    if first:
        assert encoder.begun.wait(60)
    else:
        until(lambda: len(batcher._waiting) > before)
    return future


def test_what_arrives_during_a_pass_is_the_next_batch() -> None:
    encoder, seen = Doubling(), list[int]()
    batcher = Batcher(encoder, 4, seen.append)
    with ThreadPoolExecutor(8) as pool:
        asked = [ask(batcher, pool, 1)]
        asked += [ask(batcher, pool, 2), ask(batcher, pool, 3, 4), ask(batcher, pool, 5, 6)]
        asked.append(ask(batcher, pool, 7, 8, 9, 10, 11))
        encoder.release.set()
        found = [future.result(60).ravel().tolist() for future in asked]
    assert found == [[2], [4], [6, 8], [10, 12], [14, 16, 18, 20, 22]]
    assert encoder.sizes == seen == [1, 3, 2, 5]


def test_a_fault_of_one_request_is_not_that_of_its_batch() -> None:
    encoder = Doubling()
    batcher = Batcher(encoder, 64, lambda _: None)
    with ThreadPoolExecutor(8) as pool:
        asked = [ask(batcher, pool, value) for value in (1, 2, float("nan"), 4)]
        encoder.release.set()
        with pytest.raises(RuntimeError, match="not a number"):
            asked[2].result(60)
        assert [asked[k].result(60).item() for k in (0, 1, 3)] == [2, 4, 8]
    assert encoder.sizes == [1, 3, 1, 1, 1]


def test_a_fault_after_the_pass_ends_the_request() -> None:
    def observe(size: int) -> None:
        raise OSError(f"{size} inputs are not counted")

    encoder = Doubling()
    encoder.release.set()
    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="1 inputs"):
        ask(Batcher(encoder, 64, observe), pool, 1).result(60)


def served(tiny_clip: Path, settings: ServingSettings) -> tuple[Deployment, TestClient]:
    deployment = deployed(load(tiny_clip), settings)
    return deployment, TestClient(serving.build(deployment))


def image(number: int) -> str:
    return encoded(Image.new("RGB", (40, 40), (number * 30, 99, 255 - number * 30)))


def passes(registry: CollectorRegistry, tower: str) -> tuple[float, float]:
    """Number of forward passes of a tower, and of inputs."""
    count, total = (
        registry.get_sample_value(f"compo_batch_items_{name}", {"tower": tower})
        for name in ("count", "sum")
    )
    return count or 0, total or 0


def test_an_answer_in_a_batch_is_the_answer_alone(
    tiny_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [
        {
            "dataframe_records": [{"image": image(number)}],
            "params": {"task": "rank", "texts": [f"a red {number}", "two cats"]},
        }
        for number in range(8)
    ]
    bad = {"dataframe_records": [{"image": image(1)[:60]}], "params": {"texts": ["two cats"]}}
    _, alone = served(tiny_clip, ServingSettings(batch=1, text_cache=0))
    expected = [alone.post("/invocations", json=body).json()["predictions"] for body in bodies]

    together, client = served(tiny_clip, ServingSettings(text_cache=0))
    batcher = together.current.model.encoders["image"]  # type: ignore[attr-defined]
    encoder, begun, release = batcher._encoder, threading.Event(), threading.Event()

    def encode(inputs: torch.Tensor) -> Vectors:
        begun.set()
        assert release.wait(60)
        encoded: Vectors = encoder(inputs)
        return encoded

    monkeypatch.setattr(batcher, "_encoder", encode)
    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(client.post, "/invocations", json=bodies[0])]
        assert begun.wait(60)
        asked += [pool.submit(client.post, "/invocations", json=each) for each in bodies[1:]]
        asked.append(pool.submit(client.post, "/invocations", json=bad))
        until(lambda: len(batcher._waiting) == 7)
        release.set()
        responses = [future.result(60) for future in asked]
    assert responses[-1].status_code == 400
    assert passes(together.metrics.registry, "image") == (2, 8)
    for response, (row,) in zip(responses[:-1], expected, strict=True):
        (found,) = response.json()["predictions"]
        assert found["texts"] == row["texts"]
        assert found["similarities"] == pytest.approx(row["similarities"], abs=1e-6)


@pytest.mark.parametrize(("kept", "encoded"), [(1_000_000, 3), (0, 6), (100, 6)])
def test_texts_that_are_asked_again_are_not_encoded_again(
    tiny_clip: Path, kept: int, encoded: int
) -> None:
    deployment, client = served(tiny_clip, ServingSettings(text_cache=kept))
    body = {
        "dataframe_records": [{"image": image(1)}],
        "params": {"texts": ["a cat", "a dog", "a cat", "a bird"]},
    }
    first, second = (client.post("/invocations", json=body).json() for _ in range(2))
    assert first == second
    assert passes(deployment.metrics.registry, "text")[1] == encoded
