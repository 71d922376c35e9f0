"""The guide and the hooks for contributors fit the Makefile and the version."""

import re
from pathlib import Path

import compo_pipeline


def test_the_changelog_has_the_version_and_known_headings(project: Path) -> None:
    text = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^]]+)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and versions[-1] == "0.1.0"
    assert compo_pipeline.__version__ in versions
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds
