"""Images of a finished demo: its last lines on the terminal, and pages that it wrote.

python benchmarks/project/screenshots.py    # after docs/tutorials/demo.md and deploy-and-watch.md

Needs chromium and Pillow.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from PIL import Image
from rich.console import Console

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.pages.report import HEADLINES
from compo_pipeline.pages.tables import headline_table, print_table
from compo_pipeline.project.hooks import show_results

IMAGES = Path(__file__).parents[2] / "docs" / "images"
# Catalog entries, their pages, and the images of these.
PAGES = (
    ("report", "report.html", "report.png"),
    ("views_preview", "index.html", "views.png"),
    ("data_docs", "index.html", "data_docs.png"),
    ("monitoring_report", "monitoring.html", "monitoring.png"),
)
COLUMNS = 108
WIDTH, HEIGHT = 1280, 1000
CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def photograph(page: Path, image: Path) -> None:
    """Save the top of a page as it looks in a browser, in few colours."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("chromium is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}"]
        options.append(f"--screenshot={shot}")
        command = [browser, *CHROMIUM, *options, page.absolute().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        with Image.open(shot) as opened:
            opened.convert("RGB").quantize(128).save(image, optimize=True)


def main() -> None:
    """Write docs/images/terminal.svg, and the pages' images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, default=Path.cwd(), help="where the demo has run")
    project = parser.parse_args().project.absolute()
    bootstrap_project(project)
    session: Any = KedroSession.create(project, env="relations_scenes")
    with session:
        context = session.load_context()
    screen = Console(record=True, force_terminal=True, width=COLUMNS, file=io.StringIO())
    comparison = context.catalog.load("comparison")
    print_table(headline_table(comparison, HEADLINES), screen)
    screen.print("\n".join(comparison.conclusions), markup=False, highlight=False)
    own = context.settings.promotion, CommandOptions("relations_scenes"), screen
    show_results(pipelines["train_eval"], context.catalog, *own)
    # Rich names a font on a server; the viewer's own does.
    drawn = re.sub(r"@font-face \{.*?\}", "", screen.export_svg(title="make demo"), flags=re.DOTALL)
    (IMAGES / "terminal.svg").write_text(drawn, encoding="utf-8")
    for entry, page, image in PAGES:
        photograph(context.catalog.load(entry) / page, IMAGES / image)


if __name__ == "__main__":
    main()
