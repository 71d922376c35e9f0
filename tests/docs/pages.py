"""The commands of the documentation, and what tests/docs/commands.yml says of each."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[2]
PLAN = Path("tests/docs/commands.yml")
FOLDERS = (".", "docs/**", "src/**")
# Of a line of a page, or within a list item.
FENCE = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# A quoted string or an escaped character, or else a comment.
COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<!\S)#[^\n]*""", re.DOTALL)
SPAN = re.compile(r"(?<!`)`((?:kedro run|compo-pipeline)\b[^`]*)`(?!`)")


def pages() -> list[Path]:
    """The README files, the guides, and the pages of a new project."""
    found = (page for folder in FOLDERS for page in PROJECT.glob(f"{folder}/*.md"))
    return sorted(page for page in found if page.name != "CHANGELOG.md")


def is_complete(command: str) -> bool:
    """Whether bash would run it, and not wait for a closing quote or the end of a document."""
    checked = subprocess.run(
        ["bash", "-n"],
        input=command + "\n",
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    # Other errors are of placeholders, such as <list>.
    return not re.search("unexpected (EOF|end of file)|here-document", checked.stderr)


def commands(markdown: str) -> Iterator[str]:
    """The commands of the blocks marked `sh`, each on one line but for its strings."""
    for indent, block in FENCE.findall(markdown):
        command = ""
        for line in re.sub(rf"^{indent}", "", block, flags=re.MULTILINE).splitlines():
            command = f"{command}\n{line}" if command else line
            # A backslash at the end of the last line is complete to bash.
            if not command.endswith("\\") and is_complete(command):
                if "<<" not in command:
                    command = COMMENT.sub(lambda found: found[1] or "", command)
                if command.strip():
                    yield re.sub(r" *\\\n\s*", " ", command.strip())
                command = ""
        if command:
            raise ValueError(f"bash waits for the end of this command of a page: {command}")


def commands_of_pages() -> dict[str, list[str]]:
    """The pages of each command, by the command."""
    found: dict[str, list[str]] = {}
    for page in pages():
        for command in commands(page.read_text(encoding="utf-8")):
            found.setdefault(command, []).append(str(page.relative_to(PROJECT)))
    return found


def spans() -> set[str]:
    """Commands of this project within the text of the pages."""
    texts = (FENCE.sub("", page.read_text(encoding="utf-8")) for page in pages())
    return {" ".join(span.split()) for text in texts for span in SPAN.findall(text)}


def plan() -> dict[str, Any]:
    """The content of commands.yml."""
    content: dict[str, Any] = yaml.safe_load((PROJECT / PLAN).read_text(encoding="utf-8"))
    return content


def executed(story: Mapping[str, Any]) -> Iterator[str]:
    """The commands of pages that a story executes."""
    for step in story["steps"]:
        command = step if isinstance(step, str) else step.get("run", step.get("server"))
        if command is not None:
            yield command.strip()


def replaced(command: str, replacements: Mapping[str, str]) -> str:
    """A command with what a reader would type in place of some of its parts."""
    for part, value in replacements.items():
        command = command.replace(part, str(value))
    return command
