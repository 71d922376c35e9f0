"""The written environment, read by Kedro."""

import shutil
from pathlib import Path

import pytest
import yaml

from compo_pipeline.configuration.settings import leaves, plain
from compo_pipeline.diagnosis.environment import write_environment
from compo_pipeline.project.settings import loader_of, read_settings


@pytest.mark.parametrize(
    ("env", "params"),
    [
        (None, {}),
        ("relations_scenes", {"seed": 3}),
        ("coco", {"training": {"epochs": 2}, "method": "fsc_clip"}),
        ("fsc_coco", {"variant": "openai_b16+lora"}),
        ("table", {"data": {"root": "photos"}, "benchmarks": {"foils": {"split": "val"}}}),
    ],
)
def test_it_has_the_settings_of_the_run_but_for_the_advice(
    bootstrapped: Path, tmp_path: Path, env: str | None, params: dict[str, object]
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(bootstrapped / "conf", conf)
    advice = {
        "method": "negclip",
        "variant": "advised",
        "training.epochs": 7,
        "negclip.views.generators": ["swap", "replace_relation"],
    }
    (conf / "advised").mkdir()
    write_environment(conf / "advised", conf, env, params, advice)
    run = dict(leaves(plain(read_settings(loader_of(conf, env, params)))))
    found = dict(leaves(plain(read_settings(loader_of(conf, "advised", {})))))
    assert found["method_settings.views.generators"] == ["swap", "replace_relation"]
    changed = {key for key in run.keys() | found.keys() if run.get(key) != found.get(key)}
    expected = advice.keys()
    own = ("method_settings.", "command.", "paths.")  # places have the names of both
    names = {key for key in changed if not key.startswith(own)}
    assert names - {"tuning.study.name"} <= expected
    assert {key: found[key] for key in expected} == {key: advice[key] for key in expected}
    named, known = (
        dict(leaves(yaml.safe_load((conf / folder / "globals.yml").read_text())))
        for folder in ("advised", "base")
    )
    assert "method" in named and named.keys() <= known.keys()  # others are refused
