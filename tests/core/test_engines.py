"""A function of a partition gives the same on every engine, in order; errors are one line."""

import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from PIL import Image

from compo_pipeline.core import compute, table_files
from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.table_files import (
    LOCAL,
    Parts,
    PrepareSettings,
    map_partitions,
    write_rows,
)
from compo_pipeline.core.tables import Table
from compo_pipeline.data.images import decoding
from compo_pipeline.data.images.decoding import ImageError, Limits
from compo_pipeline.data.quality.ingest import measure
from compo_pipeline.data.quality.settings import IngestSettings
from compo_pipeline.generation.counterfactuals import generation
from compo_pipeline.generation.counterfactuals.contract import Opening
from compo_pipeline.generation.counterfactuals.editors.rules import RuleEditor
from compo_pipeline.generation.counterfactuals.generation import Jobs, Parser, generate
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings, RulesSettings
from compo_pipeline.language.parsing import CaptionParser, parse_by
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import write

PROCESSES = PrepareSettings(2)
CLUSTER = PrepareSettings(2, "localhost:6379")
MODEL = "compo_en"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (else its workers give way to other tests)
WORDS = ("red", "blue", "green", "small", "large", "old", "new")
with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `scale`")


@pytest.mark.parametrize("engine", [LOCAL, PrepareSettings(1), PROCESSES], ids=str)
def test_results_come_in_the_order_of_the_partitions(engine: PrepareSettings) -> None:
    found = map_partitions(partial(operator.mul, 3), range(20), engine, threads=True)
    assert list(found) == list(range(0, 60, 3))


def test_a_bounded_number_of_partitions_is_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "cores", lambda: 3)
    taken: list[int] = []

    def partitions() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_partitions(abs, partitions(), LOCAL, threads=True)
    assert [next(results), next(results)] == [0, 1] and len(taken) <= 8


def test_an_error_of_the_function_comes_back_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="missing: ") as raised:
        list(
            map_partitions(partial(decoding.load, tmp_path, limits=Limits()), ["no.png"], PROCESSES)
        )
    assert raised.value.reason == "missing"


def test_a_worker_that_dies_names_the_key() -> None:
    with pytest.raises(SettingsError, match=r"prepare.workers: a worker died"):
        list(map_partitions(os._exit, [1], PROCESSES))


def test_a_cluster_without_ray_or_without_an_answer_is_an_error_by_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(*_: Any, **__: Any) -> None:
        raise SystemExit("no token")

    for module, refused in (
        (None, r"localhost:6379 cannot be used: .*ray.*; it needs pip install"),
        (SimpleNamespace(init=init), r"localhost:6379 cannot be used: no token; .*=token"),
    ):
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.setitem(sys.modules, "ray.util.multiprocessing", SimpleNamespace(Pool=None))
        with pytest.raises(SettingsError, match=refused):
            list(map_partitions(abs, [1], CLUSTER))


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them() -> None:
    code = """if __name__ == "__main__":
    import time
    from compo_pipeline.core.table_files import PrepareSettings, map_partitions
    list(map_partitions(time.sleep, [60, 60], PrepareSettings(2)))"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    workers: list[psutil.Process] = []
    while sum("spawn_main" in " ".join(worker.cmdline()) for worker in workers) < 2:
        time.sleep(0.1)
        workers = psutil.Process(parent.pid).children()
    time.sleep(5)  # they may still import
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


@pytest.fixture
def captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table[Caption]:
    """Thirty rows in a file, with images, of which some are broken; parts are of ten."""
    monkeypatch.setattr(table_files, "PART", 10)
    monkeypatch.setattr(generation, "_AT_ONCE", 16)
    rows = []
    for number in range(30):
        Image.new("RGB", (number + 10, 12), (number, 0, 0)).save(tmp_path / f"{number}.png")
        first, second = WORDS[number % 7], WORDS[(number + 1 + number // 7) % 7]
        texts = (f"A {first} cat sits on a {second} mat.", "A dog runs.")
        rows.append(
            Caption(f"s{number}", f"i{number}", f"{number}.png", 12, 12, texts, "t", "train")
        )
    (tmp_path / "3.png").write_bytes(b"broken")
    write_rows(tmp_path / "captions.parquet", rows, Caption)
    return Table.open(tmp_path / "captions.parquet", Caption)


def prepared(captions: Table[Caption], folder: Path, engine: PrepareSettings) -> dict[str, Any]:
    """What is computed by partitions, as bytes."""
    root = folder.parent
    parser = CaptionParser(captions, MODEL, 1)
    write_rows(folder / "parses.parquet", Parts("p", parser, len(captions), "f", engine), Parse)
    parses = Table.open(folder / "parses.parquet", Parse)
    method = Clic(ClicViews(partners="shared_noun"), ClicObjective())
    context = ViewContext.from_parses(parses, MODEL, 0, {})
    write(method, captions, context, 2, folder / "views", "f", engine)
    images = [*(row.image for row in captions), "none.png"]
    found: dict[str, Any] = {
        str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.parquet")
    }
    assert sorted(found) == ["parses.parquet", "views/epoch=00.parquet", "views/epoch=01.parquet"]
    found["images"] = list(measure(root, images, IngestSettings(), engine))
    editor = RuleEditor(RulesSettings(), "counterfactuals.rules", Opening(0))
    parser = Parser("p", partial(parse_by, MODEL))
    jobs = Jobs(captions, pa.chunked_array([["0"] * len(captions)]), sentences=1)
    places = root, folder / "state"
    made = generate(jobs, editor, parser, None, CounterfactualSettings(), *places, engine)
    found["edits"] = list(made[0])
    assert sum(row.state == "edited" for row in found["edits"]) > len(captions)
    return found


@pytest.fixture
def cluster() -> Iterator[None]:
    """A cluster of two cores on this machine."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_processes_give_equal_bytes(captions: Table[Caption], tmp_path: Path) -> None:
    local = prepared(captions, tmp_path / "local", LOCAL)
    assert prepared(captions, tmp_path / "other", PROCESSES) == local


@pytest.mark.slow
@with_ray
@pytest.mark.usefixtures("cluster")
def test_a_cluster_gives_equal_bytes(captions: Table[Caption], tmp_path: Path) -> None:
    local = prepared(captions, tmp_path / "local", LOCAL)
    assert prepared(captions, tmp_path / "other", CLUSTER) == local


@pytest.mark.slow
@with_ray
def test_errors_of_a_cluster_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: None
) -> None:
    with pytest.raises(ImageError, match="missing: ") as raised:
        list(map_partitions(partial(decoding.load, tmp_path, limits=Limits()), ["no.png"], CLUSTER))
    assert raised.value.reason == "missing"
    with pytest.raises(SettingsError, match=r"prepare.workers: a worker died") as died:
        list(map_partitions(os._exit, [1], CLUSTER))
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "none")
    with pytest.raises(
        SettingsError, match=r"No such file.*/none.*folder at the same path"
    ) as foreign:
        list(map_partitions(abs, [1], CLUSTER))
    assert "\n" not in f"{died.value}{foreign.value}"
