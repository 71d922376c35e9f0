"""Hops of four flows through the code, traced while they run.

    python benchmarks/hops.py [--verbose] [--json FILE]

A flow has places that a reader looks for: where a caption's hard negative is drawn, where its loss
is computed. How one gets there is the call stack of the first call of each (`sys.setprofile`), from
Kedro's node on, or for settings from the start of the session: of all these functions, in the order
of the places and each once, those in a row that lie in one file are one hop. Beside it stand all
functions and files that run on the way, for which the reader has to know that they are none of it.
Kedro, libraries, imports and what a dataclass generates do not count.

The flows are runs of the smoke configuration without control and item cards, one node after the
other. Measures the packages of src/ that are imported: PYTHONPATH selects another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import compo_pipeline

SOURCE = f"{Path(compo_pipeline.__file__).parent.parent}{os.sep}"
FUNCTION = 1  # CO_OPTIMIZED: not set for the bodies of modules and classes
NODE = "kedro/runner/task.py:Task.execute"
PLAIN: dict[str, Any] = {"evaluation": {"control": False, "gallery": 0}}


class Flow(NamedTuple):
    """Runs of Kedro, what they need, and the places to get to: ends of `file:function`.

    A place without function is reached by any of the file's. A flow begins with the first node, or
    with the session if it is about settings.
    """

    needs: str
    runs: tuple[str, ...]
    places: tuple[str, ...]
    start: str = NODE


FLOWS = {
    "a caption to its loss": Flow(
        "ingest,validation,foils,counterfactuals",
        ("views,training",),
        (
            "noun_phrases.py:noun_phrases",
            "swaps.py:swap_across",
            "clic.py:Clic.collate",
            "hard_negative.py:s_neg",
        ),
    ),
    "a benchmark item to its row in the report": Flow(
        "",
        ("evaluation",),
        (
            "sugar_crepe.py:",
            "torch/nn/modules/module.py:Module._call_impl",
            "protocols.py:choice",
            "statistics.py:difference",
            "jinja2/environment.py:Template.render",
        ),
    ),
    "a checkpoint to the champion": Flow(
        "",
        ("registration", "promotion"),
        (
            "safetensors/torch.py:save_file",
            "mlflow/tracking/client.py:MlflowClient._create_model_version",
            "verification.py:",
            "gate.py:judge",
            "mlflow/tracking/client.py:MlflowClient.set_registered_model_alias",
        ),
    ),
    "a setting in YAML to the line that uses it": Flow(
        "",
        ("training",),
        (
            "training/settings.py:TrainingSettings.__post_init__",
            "torch/optim/adamw.py:AdamW.__init__",
        ),
        "kedro/framework/session/session.py:KedroSession.run",
    ),
}


class Trace:
    """Profile function that collects the ways to the places of a flow, and all that runs."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.ways: dict[str, list[tuple[str, str]]] = {}
        self.ran: set[tuple[str, str]] = set()
        self.nodes = 0
        self._started = 0  # frames of the start on the stack

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call or a return, see `sys.setprofile`."""
        if event not in ("call", "return") or len(self.ways) == len(self.flow.places):
            return
        name = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"
        if name.endswith(self.flow.start):
            self._started += 1 if event == "call" else -1
            self.nodes += event == "call" and self.flow.start == NODE
        elif self._started and event == "call":
            self.ran.update(own_function(frame))
            for place in self.flow.places:
                reached = place in name if place[-1] == ":" else name.endswith(place)
                if reached and place not in self.ways:
                    self.ways[place] = [*functions(frame)][::-1]

    @property
    def hops(self) -> list[tuple[str, list[str]]]:
        """Files, each with its functions in a row on the ways to the places."""
        on_the_way = dict.fromkeys(each for place in self.flow.places for each in self.ways[place])
        grouped = groupby(on_the_way, key=lambda function: function[0])
        return [(file, [name for _, name in functions]) for file, functions in grouped]


def functions(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """File and name of the product's functions on the stack, the innermost first."""
    while frame is not None:
        yield from own_function(frame)
        frame = frame.f_back


def own_function(frame: FrameType) -> Iterator[tuple[str, str]]:
    """File and name of a frame's function, if it is one of the product's and has a name."""
    code = frame.f_code
    file = code.co_filename.removeprefix(SOURCE)
    if code.co_flags & FUNCTION and file != code.co_filename and code.co_name[0] != "<":
        yield file, code.co_qualname


def run(folder: Path, pipelines: str) -> None:
    """`kedro run` of some pipelines in the smoke environment, one node after the other."""
    from kedro.framework.session import KedroSession
    from kedro.runner import SequentialRunner

    session: Any = KedroSession.create(folder, env="smoke", runtime_params=PLAIN)
    with session:
        session.run(pipeline_names=pipelines.split(","), runner=SequentialRunner())


def follow(folder: Path, flow: Flow) -> Trace:
    """The trace of a flow.

    Raises:
        SystemExit: one of its places was not reached.
    """
    if flow.needs:
        run(folder, flow.needs)
    trace = Trace(flow)
    for pipelines in flow.runs:
        sys.setprofile(trace)
        threading.setprofile(trace)
        try:
            run(folder, pipelines)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if missing := [place for place in flow.places if place not in trace.ways]:
        raise SystemExit(f"{flow.runs}: {missing} did not run; is the name in FLOWS an old one?")
    return trace


def main() -> None:
    """Print the number of hops of each flow, and write them."""
    from kedro.framework.startup import bootstrap_project

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbose", action="store_true", help="list the functions of each hop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the hops")
    options = parser.parse_args()
    target = options.json and options.json.absolute()
    root = Path(SOURCE).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(root / "conf", folder / "conf")
        shutil.copy(root / "pyproject.toml", folder)
        (folder / "src").mkdir()  # Kedro wants one; the code is this process's own
        os.chdir(folder)
        bootstrap_project(folder)
        traces = {name: follow(folder, flow) for name, flow in FLOWS.items()}
        os.chdir(root)
    figures: dict[str, dict[str, Any]] = {}
    for flow, trace in traces.items():
        ran = {"functions": len(trace.ran), "files": len({file for file, _ in trace.ran})}
        figures[flow] = {"count": len(trace.hops), **ran, "nodes": trace.nodes, "hops": trace.hops}
        shown = "{count} hops; {functions} functions in {files} files and {nodes} nodes ran"
        print(f"{flow}:", shown.format(**figures[flow]))
        for file, names in trace.hops if options.verbose else ():
            print(f"  {file}: {', '.join(names)}")
    if target:
        target.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
