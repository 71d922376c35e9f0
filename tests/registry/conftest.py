"""Experiments of the tests' MLflow store, a comparison, and a served model."""

import csv
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from PIL import Image
from tests.evaluating import evaluate
from tests.waiting import until

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.records import Score
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, compare, run_pairs
from compo_pipeline.evaluation.contamination import Overlap, TrainingRows
from compo_pipeline.evaluation.evaluate import Audit, ComparedModel, Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices, scored_items
from compo_pipeline.models.loading import load
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import Evidence, write_evidence
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings


@pytest.fixture(autouse=True, scope="module")
def process() -> Iterator[None]:
    """A server sets values of its process; other tests have Python's defaults."""
    before = csv.field_size_limit(), sys.getswitchinterval(), torch.get_num_threads()
    yield
    csv.field_size_limit(before[0])
    sys.setswitchinterval(before[1])
    torch.set_num_threads(before[2])


@pytest.fixture
def configure(mlflow_project: Path) -> Callable[[str], None]:
    """Switch to an experiment of the store."""

    def switch(experiment: str) -> None:
        settings = TrackingSettings(experiment=experiment)
        tracking.configure(settings, mlflow_project)

    return switch


@pytest.fixture(scope="session")
def choices(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Subtask]:
    """Makes a subtask of so many random images, each with two right texts and a wrong one."""

    def make(count: int) -> Subtask:
        root = tmp_path_factory.mktemp("images")
        for number in range(count):
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"{number}.png")
        items = tuple(
            Item(f"{k}", f"{k}.png", (f"cup {k}", f"a cup is {k}"), (f"key {k}",))
            for k in range(count)
        )
        return Subtask("sugar_crepe_pp", "swap_att", ("image_to_text",), root, items)

    return make


@pytest.fixture(scope="session")
def scored_files(
    version_files: Callable[..., dict[str, str]],
) -> Callable[..., tuple[dict[str, str], list[Score]]]:
    """Writes a version's folder with the evidence of an evaluation; returns tags and scores."""

    def write(
        subtask: Subtask, base: Path, tuned: Path, folder: Path, slices: ItemSlices, **metadata: Any
    ) -> tuple[dict[str, str], list[Score]]:
        models = {BASE: lambda: load(base), FINE_TUNED: lambda: load(tuned)}
        settings = EvaluationSettings(device="cpu", workers=1)
        scores, comparison = evaluate(
            [subtask], models, "clic", "CLIC", "toy", TrainingRows(), settings, slices
        )
        tags = version_files(load(tuned), folder, **metadata)
        (export,) = (folder / "artifacts").iterdir()
        by_role = {
            role: scores.having("model", [model.name]) for role, model in comparison.models.items()
        }
        write_evidence(
            export, Evidence.from_comparison(comparison), by_role, scored_items([subtask], slices)
        )
        return {**tags, "base_fingerprint": comparison.models[BASE].fingerprint}, list(scores)

    return write


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """A method that gains in retrieval image to text and loses text to image."""
    right = {("base", "i2t_r1"): 20, ("clic", "i2t_r1"): 38}
    right |= {("base", "t2i_r1"): 38, ("clic", "t2i_r1"): 20}
    scores = [
        Score(model, "retrieval", "raw", metric, str(item), f"{item}.png", (), item < count, None)
        for (model, metric), count in right.items()
        for item in range(40)
    ]
    models = {"base": "base", "fine_tuned": "clic"}
    keys = ("retrieval", "i2t_r1", "raw"), ("retrieval", "t2i_r1", "raw")
    rows = compare([scores], models, run_pairs(models), {keys[0]: 0.1, keys[1]: 0.45})
    return Comparison(
        dataset="toy",
        models={role: ComparedModel(name, name) for role, name in models.items()},
        rows=tuple(rows),
        audits=(Audit("retrieval", "raw", 40, 2, {"missing": 2}, 80, 0, 0),),
        overlaps=(Overlap("retrieval", "raw", 40, 1, 0, 40, 3),),
    )


@pytest.fixture(scope="session")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SigningSettings]:
    """Writes the PEM files of a new key."""
    folder = tmp_path_factory.mktemp("keys")

    def write(name: str) -> SigningSettings:
        private, pem = ec.generate_private_key(ec.SECP256R1()), Encoding.PEM
        secret = private.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.pem").write_bytes(secret)
        public = private.public_key().public_bytes(pem, PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pub").write_bytes(public)
        return SigningSettings(folder / f"{name}.pub", folder / f"{name}.pem")

    return write


@pytest.fixture(scope="session")
def listening() -> Callable[..., AbstractContextManager[None]]:
    """`with listening(command, url, folder, environment):` a process that answers at the URL."""

    @contextmanager
    def process(
        command: list[str], url: str, folder: Path, environment: Mapping[str, str]
    ) -> Iterator[None]:
        log = folder / "log"
        # MLflow starts its servers by name.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with log.open("w") as output:
            started = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**environment, "PATH": path},
                stdout=output,
                stderr=output,
                cwd=folder,
                start_new_session=True,
            )
        try:
            until(lambda: started.poll() is not None or _answers(url))
            assert started.poll() is None, log.read_text()
            yield
        finally:
            # The server's workers are of its session; one that died at the start leaves none.
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
            started.wait()

    return process


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False
