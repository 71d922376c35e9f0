"""Style of all figures, and figures as inline SVG that follows a page's light or dark theme."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The light theme of base.css, by the names of its variables.
THEME = {
    "ink": "#22201c",
    "soft": "#6b675e",
    "line": "#e4e0d6",
    "base": "#8a8f98",
    "control": "#c08a2d",
    "ours": "#0f6b6f",
    "other": "#7a4e7e",
}
# By role of a model.
COLOURS = {"base": THEME["base"], "control": THEME["control"], "fine_tuned": THEME["ours"]}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": THEME["soft"],
    "axes.labelcolor": THEME["soft"],
    "axes.titlecolor": THEME["ink"],
    "xtick.color": THEME["soft"],
    "ytick.color": THEME["ink"],
    "text.color": THEME["ink"],
    "grid.color": THEME["line"],
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    # Text stays text, and the same figure gives the same bytes.
    "svg.fonttype": "none",
    "svg.hashsalt": "compo_pipeline",
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_FONT = re.compile(r"'DejaVu Sans'[^;\"]*")


def save(figure: Figure, path: Path, mixed: Mapping[str, str] | None = None) -> str:
    """Save a figure as PNG for other programs; returned is the SVG for a page.

    Call it within `rc_context(STYLE)`.

    Args:
        figure: drawn in the colours of `THEME`.
        path: of the PNG file, on white.
        mixed: other colours of the figure and the CSS colours that replace them.
    """
    from matplotlib.colors import to_hex

    figure.savefig(path, facecolor="white")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = _FONT.sub("inherit", svg)
    css = {to_hex(colour): f"var(--{name})" for name, colour in THEME.items()} | dict(mixed or {})
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: css.get(found.group(), found.group()), svg)
