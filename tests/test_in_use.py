"""A run is written by one command at a time."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.framework.project import pipelines

from compo_pipeline.core.files import atomic_folder
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.project.hooks import ProjectHooks


@pytest.mark.parametrize("pipeline", ["train_eval", "views"])
def test_a_second_command_of_a_run_is_refused_until_the_first_ends(
    context: Callable[..., Any], bootstrapped: Path, tmp_path: Path, pipeline: str
) -> None:
    loaded = context()

    def hooks(seed: int) -> ProjectHooks:
        made = ProjectHooks()
        resume = tmp_path / f"data/06_models/scenes/clic/default/seed={seed}/resume"
        paths = SimpleNamespace(resume=str(resume))
        made._context = SimpleNamespace(settings=SimpleNamespace(paths=paths))  # type: ignore[assignment]
        return made

    first, second = hooks(0), hooks(0)
    first._lock_run(pipelines[pipeline], loaded.catalog)
    with pytest.raises(SettingsError, match="seed=0 is in use by another command; wait"):
        second._lock_run(pipelines[pipeline], loaded.catalog)
    # Another seed, what all runs of a data set share, and workers of one study are free.
    hooks(1)._lock_run(pipelines[pipeline], loaded.catalog)
    second._lock_run(pipelines["validation"], loaded.catalog)
    second._lock_run(pipelines["tuning"], loaded.catalog)
    first._unlock()
    second._lock_run(pipelines[pipeline], loaded.catalog)
    second._unlock()


def test_several_writers_of_one_folder_replace_it_one_after_another(tmp_path: Path) -> None:
    folder, failures = tmp_path / "export", list[BaseException]()

    def write(number: int) -> None:
        try:
            for _ in range(50):
                with atomic_folder(folder) as temporary:
                    (temporary / "README.md").write_text(str(number))
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert (folder / "README.md").read_text() in "0123"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
