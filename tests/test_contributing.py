"""The guide and the hooks for contributors fit the Makefile and the version."""

import re
from pathlib import Path

import yaml

import compo_pipeline


def commands(project: Path, target: str) -> set[str]:
    """Of a target of the Makefile, from `.venv/bin`."""
    text = (project / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", text, re.MULTILINE)
    return {line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()}


def test_hooks_run_what_make_runs_without_a_network(project: Path) -> None:
    content = yaml.safe_load((project / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = content["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    fixing = commands(project, "format")
    # What `make format` repairs, `make style` checks.
    checks = {re.sub(r" --(?:check|fix)$", "", line) for line in commands(project, "style")}
    repaired = {re.sub(r" --fix$", "", line) for line in fixing}
    assert {hook["entry"] for hook in repository["hooks"]} == fixing | (checks - repaired)


def test_the_changelog_has_the_version_and_known_headings(project: Path) -> None:
    text = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^]]+)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and versions[-1] == "0.1.0"
    assert compo_pipeline.__version__ in versions
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


def test_links_and_targets_of_the_guide_are_there(project: Path) -> None:
    text = (project / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (project / link).is_file(), link
    makefile = (project / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^(?:[a-z-]+ )*{target}(?: [a-z-]+)*:", makefile, re.MULTILINE), target
    for template in (project / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(template.read_text(encoding="utf-8"))
