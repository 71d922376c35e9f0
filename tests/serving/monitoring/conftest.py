"""A reference of unit vectors, and request logs that are written as the server writes them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from compo_pipeline.registry.reference import Reference
from compo_pipeline.serving.monitoring.drift import PairRows
from compo_pipeline.serving.requests import REQUESTS, hour_folder, write_requests

WIDTH, ROWS = 12, 300
FINGERPRINT = "f" * 64
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)

Draw = Callable[..., PairRows]
Log = Callable[..., Path]


def unit(values: NDArray[Any]) -> NDArray[np.float32]:
    normal = values / np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(normal, dtype=np.float16).astype(np.float32)


@pytest.fixture(scope="session")
def draw() -> Draw:
    """Draws pairs: texts lie near their images, a twentieth of the texts has an unknown word."""

    def rows(count: int, seed: int, shift: float = 0.0, noise: float = 1.0) -> PairRows:
        rng = np.random.default_rng([count, seed])
        images = (
            rng.standard_normal((count, WIDTH)) + 3 * np.eye(WIDTH)[0] + shift * np.eye(WIDTH)[1]
        )
        texts = images + noise * rng.standard_normal((count, WIDTH))
        words = rng.integers(4, 12, count).astype(float)
        unknown = (rng.random(count) < 0.05).astype(float)
        return PairRows(unit(images), unit(texts), words + 2, words, unknown)

    return rows


@pytest.fixture(scope="session")
def reference(draw: Draw) -> Reference:
    rows = draw(ROWS, 0)
    numbers = (each.astype(np.int32) for each in (rows.tokens, rows.words, rows.unknown_words))
    counts = {"a": 50, "red": 20, "blue": 20, "dog": 10, "cat": 10, "on": 10}
    return Reference(rows.images, rows.texts, *numbers, counts)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Writes rows of requests into a log, one file a call, and returns its folder.

    Columns are given by name; the others are those of a score by the monitored weights.
    """
    files = iter(range(1000))

    def write(
        rows: PairRows, *, time: datetime = NOW - timedelta(hours=1), **columns: Sequence[Any]
    ) -> Path:
        folder, count = tmp_path / "log", len(rows)
        number = next(files)
        given: Mapping[str, Sequence[Any]] = {
            "request": [f"r{number}-{place}" for place in range(count)],
            "row": [0] * count,
            "time": [time] * count,
            "model": ["toy"] * count,
            "version": [1] * count,
            "fingerprint": [FINGERPRINT] * count,
            "task": ["score"] * count,
            "latency": [0.1] * count,
            "image_hash": [f"{number:04x}{place:012x}" for place in range(count)],
            "image": list(rows.images.astype(np.float16)),
            "text": list(rows.texts.astype(np.float16)),
            "candidates": [1] * count,
            "tokens": rows.tokens.astype(int).tolist(),
            "words": rows.words.astype(int).tolist(),
            "unknown_words": rows.unknown_words.astype(int).tolist(),
            **columns,
        }
        table = pa.table(
            {
                field.name: pa.array(list(given[field.name]), field.type)
                if field.name in given
                else pa.nulls(count, field.type)
                for field in REQUESTS
            },
            schema=REQUESTS,
        )
        write_requests(folder / hour_folder(time) / f"a-{number:06d}.parquet", table)
        return folder

    return write
