"""A rehearsal is the chain of its environment on a few rows, apart from the real run."""

from pathlib import Path
from typing import Any

import pytest
from kedro.framework.project import pipelines

from compo_pipeline.configuration import rehearsal
from compo_pipeline.configuration.settings import SettingsError, leaves
from compo_pipeline.datasets.quality.ingest import draw_sample
from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import SampleSettings
from compo_pipeline.presentation.pages import render
from compo_pipeline.project.settings import check_settings, run_settings
from compo_pipeline.run.provenance import Site
from compo_pipeline.training.optimisation import refuse_long_warmup

ENVS = ("coco", "fsc_cc3m", "sparcl_coco", "table")
ROWS = 1000


def written(configured: Any) -> set[Path]:
    """Paths of all that the pipelines write of a run, and of its state."""
    names = set().union(*(pipelines[name].all_outputs() for name in ("train_eval", "tuning")))
    paths = {
        Path(configured.catalog[name]._filepath)
        for name in names
        if hasattr(configured.catalog[name], "_filepath")
    }
    state = dict(configured.params["paths"])
    del state["embeddings"]  # of models by their weights, whatever run they are of
    return paths | {Path(path) for path in state.values()}


@pytest.mark.parametrize("env", ENVS)
def test_nothing_is_written_where_the_real_run_writes(context, env) -> None:
    real, rehearsed = written(context(env)), written(context(env, subset=ROWS))
    assert len(real) == len(rehearsed) > 20
    assert not real & rehearsed
    names = [context(env, **params).params["registration"] for params in ({}, {"subset": ROWS})]
    assert names[0]["name"] != names[1]["name"]
    assert (names[0]["alias"], names[1]["alias"]) == ("challenger", None)


@pytest.mark.parametrize("env", ENVS)
def test_only_names_rows_and_a_fixed_warm_up_differ(context, env) -> None:
    before, after = (
        dict(leaves(context(env, **params).params)) for params in ({}, {"subset": ROWS})
    )
    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    names = ("paths.", "site.", "dataset", "subset", "ingest.journal", "registration.", "tuning.")
    rows = {key for key in changed if not key.startswith(names)}
    assert rows <= {"data.sample.rows", "foils.carve", "training.optimizer.warmup_steps"}
    assert after["data.sample.rows"] == ROWS


@pytest.mark.parametrize("env", ["fsc_coco", "fsc_cc3m", "siglip_cc3m"])
def test_the_warm_up_ends_before_a_rehearsal_does(context, env) -> None:
    """The papers' fifty steps are more than a rehearsal has."""
    training = run_settings(context(env, subset=ROWS).params).training
    steps = training.epochs * max(1, ROWS // training.batch_size)
    refuse_long_warmup(steps, training.optimizer)
    with pytest.raises(SettingsError):
        refuse_long_warmup(steps, run_settings(context(env).params).training.optimizer)


def test_a_smaller_sample_of_the_recipe_stays(context) -> None:
    given = {"subset": 1000, "data": {"sample": {"rows": 10}}}
    assert context("coco", **given).params["data"]["sample"]["rows"] == 10


@pytest.mark.parametrize(
    ("env", "rows", "images"),
    [("coco", 1000, 100), ("fsc_cc3m", 50_000, 2000), ("laion", 5, 1), ("fsc_scenes", 1000, 0)],
)
def test_images_are_held_out_in_proportion(context, env, rows, images) -> None:
    assert context(env, subset=rows).params["foils"]["carve"] == images


def test_its_rows_are_among_those_of_any_larger_sample() -> None:
    records = [
        RawCaption(f"{n}", f"{n}", f"{n}.png", "a cat", (), "train" if n % 3 else "test")
        for n in range(90)
    ]

    def drawn(rows: int) -> set[str]:
        taken, _ = draw_sample(records, SampleSettings(rows=rows))
        return {one.sample_id for one in taken if one.split == "train"}

    assert drawn(5) < drawn(20) and len(drawn(5)) == 5


def test_the_name_of_the_data_is_given_once() -> None:
    """Runs of a comparison get it, and the rows, from the command that starts them."""
    name = rehearsal.dataset_name("coco", 1000)
    assert rehearsal.dataset_name(name, 1000) == name != "coco"
    assert rehearsal.dataset_name("coco", None) == "coco"


def test_a_file_that_asks_for_one_is_refused(context) -> None:
    values = {**context("coco").params, "subset": 100}
    with pytest.raises(SettingsError, match=r"^subset: .*--params subset=100 alone"):
        rehearsal.applied(values, {})


@pytest.mark.parametrize("pipeline", ["promotion", "rollback"])
def test_nothing_of_a_rehearsal_is_promoted(context, pipeline) -> None:
    parameters = run_settings(context("coco", subset=ROWS).params)
    with pytest.raises(SettingsError, match=r"^subset: .* is never promoted"):
        check_settings(parameters, pipelines[pipeline])


def test_pages_with_facts_say_so_at_their_top() -> None:
    for rows in (None, ROWS):
        facts = Site(rehearsed=rows).facts("train_eval")
        page = render("base.html", {"title": "A page", "facts": facts})
        assert ('<p class="rehearsal">A rehearsal on 1,000 training rows' in page) is bool(rows)
        assert "<dt>rehearsal</dt>" not in page
