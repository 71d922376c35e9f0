"""What the workflow for continuous integration runs exists."""

import re
import shlex

import pytest
import yaml

from compo_pipeline.pipeline_registry import register_pipelines


@pytest.fixture
def commands(project):
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [shlex.split(step["run"]) for step in steps if "run" in step]


def test_tests_the_chain_and_a_dry_promotion_are_run(commands, project):
    assert [".ci/run"] in commands
    assert ["make", "test-all"] in commands
    assert re.search(r"^test-all:", (project / "Makefile").read_text(), re.MULTILINE)
    runs = [command for command in commands if command[0].endswith("kedro") and command[1] == "run"]
    options = [dict(re.findall(r"--(\w+)=(\S+)", " ".join(run))) for run in runs]
    assert [each["pipeline"] for each in options] == ["train_eval", "promotion"]
    assert {each["pipeline"] for each in options} <= register_pipelines().keys()
    assert all((project / "conf" / each["env"]).is_dir() for each in options)
    assert runs[-1][-2:] == ["--params", "promotion.dry_run=true"]


def test_every_supported_python_is_tested(project):
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    supported = re.findall(r'Python :: (3\.\d+)"', (project / "pyproject.toml").read_text())
    assert tested == supported
