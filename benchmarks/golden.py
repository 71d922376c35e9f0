"""Compares what this checkout computes with what another revision computes, bit for bit.

    python benchmarks/golden.py <revision> [--quick] [--keep FOLDER]

Runs the same pipelines of both on this machine, in fp32, on one thread and the same data, and
compares the files that they leave: views of two epochs of every method, losses and weights of 30
steps of four methods, scores and intervals of the smoke run, decisions of the gate, the registered
export. Without `--quick` also formats for other programs, and the same of real photographs and
captions with SugarCrepe's official items; these need ../shared/data.

Prints a line for each part: equal, differs (with the first difference), or wanted. The status is 1
if a part differs and `WANTED` does not say why, or if a side could not be run. Changes of this
checkout count before they are committed. The script knows names of pipelines, settings, files and
columns, and nothing of the code.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
SIDES = ("theirs", "ours")

# Differences that are wanted, with the reason. A key is the name of a part, or "part: place" with
# the place as the script prints it; * matches any text, [[] a bracket.
WANTED: dict[str, str] = {
    "views of *: counterfactuals.parquet [[]*].fingerprint": "of the version of the scenes",
    "views of *: counterfactuals.parquet [[]*].image": "named by that version",
    "views of *: epoch=*.parquet [[]*].counterfactuals[[]*": "named by that version",
    "intervals on *: comparison.json .audits[[]*].examples*": "degenerate items are counted",
    "export of *: README.md [[]*": "the setting trains is the first of every objective",
    "export of *: reference.parquet [[]*].cosine": "monitoring does not read it",
    "export of *: reference.parquet [[]*].margin": "monitoring does not read it",
}

# Keys of JSON files: of one run, or hashes of code.
VOLATILE = frozenset({"checksum", "code"})
RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")
TRAINED = ("clic", "fsc_clip", "sparcl", "c2lip")

FP32: dict[str, Any] = {"training": {"precision": "fp32", "device": "cpu"}}
STEPS: dict[str, Any] = {
    "variant": "golden",
    "views": {"epochs": 2},
    "training": {**FP32["training"], "epochs": 10, "max_steps": 30, "batch_size": 16, "workers": 0},
    "evaluation": {"control": False},
}
# A version that was trained on rows that retrieval asks about, and not scored on zero-shot.
SECOND = STEPS | {
    "variant": "second",
    "method": "clip",
    "views": {"split": ["train", "test"]},
    "benchmarks": {"sets": {"zero_shot": None}},
}
# Real photographs; of SugarCrepe's items those whose photograph is there are scored.
PHOTOS = SHARED / "coco_mini"
COCO = STEPS | {
    "data": {"root": str(PHOTOS)},
    "model": {"name": "scenes-base", "pretrained": None},
    "benchmarks": {
        "root": str(SHARED / "benchmarks"),
        "suite": None,
        "sets": {"sugar_crepe": {"images": str(PHOTOS / "val2017")}},
    },
    "foils": {"carve": 20, "least": 10},
}


def gate(contamination: Mapping[str, float], **rule: Any) -> dict[str, Any]:
    """Settings of a gate with one rule, and with limits of contamination."""
    rules = {"composition": None, "retrieval": None, "zero_shot": None, "one": rule}
    return {"rules": rules, "contamination": {"images": None, **contamination}}


LOOSE = {"role": "retrieval", "must": "hold", "by": 100.0}
COUNTED = {"figure": "sugar_crepe/accuracy/average", "must": "hold", "by": 100.0}
# A decision's environment, the alias of the version that is judged, and changes of the gate: what
# it passes and, one each, its reasons to refuse that whole runs lead to.
DECISIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no rise": ("smoke", "first", gate({}, role="composition", must="rise", by=0.0)),
    "a fall": ("smoke", "first", gate({}, role="retrieval", must="hold", by=0.0)),
    "no such figure": ("smoke", "first", gate({}, figure="winoground/*", must="rise")),
    "no such slice": ("smoke", "first", gate({}, **COUNTED, slice="length=*")),
    "too few items": ("smoke", "first", {"items": 1000}),
    "an absent role": ("smoke", "challenger", {"contamination": {"images": None}}),
    "known images": ("smoke", "challenger", gate({"images": 0.0}, **LOOSE)),
    "known captions": ("smoke", "challenger", gate({"captions": 0.0}, **LOOSE)),
    "passed": ("smoke", "first", {}),
    "other benchmarks than the champion": ("smoke", "challenger", gate({}, **LOOSE)),
    "altered files": ("smoke", "challenger", gate({}, **LOOSE)),
    "skipped items": ("coco", "challenger", {"items": 1} | gate({}, **COUNTED)),
}


def methods_of(project: Path) -> list[str]:
    """Names of the methods that a revision has."""
    return sorted(file.stem for file in (project / "conf/base/parameters_methods").glob("*.yml"))


class Driver:
    """Runs pipelines of the revision that PYTHONPATH names, in the project of a folder."""

    def __init__(self, folder: Path) -> None:
        import mlflow
        from kedro.framework.startup import bootstrap_project

        bootstrap_project(folder)
        self.folder = folder
        self.registry = mlflow.MlflowClient(registry_uri="sqlite:///mlruns/mlflow.db")

    def run(self, pipelines: str, params: Mapping[str, Any], env: str = "smoke") -> None:
        """One `kedro run`."""
        from kedro.framework.session import KedroSession

        started = time.perf_counter()
        session: Any = KedroSession.create(self.folder, env=env, runtime_params=dict(params))
        with session:
            session.run(pipeline_names=pipelines.split(","))
        print(f"{time.perf_counter() - started:5.1f} s  {env}: {pipelines}", file=sys.stderr)

    def judge(self, env: str) -> None:
        """Judge versions, and write what their tags say of the decisions."""
        (self.folder / "data" / "gate").mkdir(exist_ok=True)
        for case, (environment, alias, changed) in DECISIONS.items():
            if environment != env:
                continue
            if case == "altered files":
                weights = max(self.folder.glob("mlruns/**/*.safetensors"), key=os.path.getmtime)
                weights.write_bytes(weights.read_bytes()[:-1] + b"!")
            with suppress(Exception):  # a refusal; any other error writes no tag
                params = {"promotion": {"gate": changed}, "registration": {"alias": alias}}
                self.run("promotion", params, env)
            version = self.registry.get_model_version_by_alias(f"compo-clip-{env}", alias)
            decision = {key: v for key, v in version.tags.items() if key.startswith("promotion.")}
            if decision.pop("promotion.at", None):  # deleted, so that one that is there is new
                self.registry.delete_model_version_tag(
                    version.name, version.version, "promotion.at"
                )
                checks = json.loads(decision.pop("promotion.checks"))
                file = self.folder / "data" / "gate" / f"{case}.json"
                file.write_text(json.dumps({"checks": checks, **decision}))

    def smoke(self) -> None:
        """The smoke run, views of all methods, weights of some, and the gate."""
        self.run("train_eval", FP32)
        for method in methods_of(self.folder):
            training = ",training" if method in TRAINED else ""
            self.run(f"counterfactuals,views{training}", STEPS | {"method": method})
        self.registry.set_registered_model_alias("compo-clip-smoke", "first", "1")
        self.run("counterfactuals,views,training,evaluation,registration", SECOND)
        self.judge("smoke")

    def further(self) -> None:
        """Formats for other programs, and real photographs where they are."""
        from compo_pipeline.models.hf_export import to_hugging_face
        from compo_pipeline.models.onnx_export import to_onnx

        run = self.folder / "data/06_models/smoke/clic/default/seed=0"
        to_hugging_face(run / "checkpoint", run / "exported" / "hugging_face")
        to_onnx(run / "checkpoint", run / "exported" / "onnx")
        if PHOTOS.is_dir():
            self.run("train_eval", COCO, "coco")
            for method in methods_of(self.folder):
                self.run("counterfactuals,views", COCO | {"method": method}, "coco")
            self.judge("coco")


def parts(methods: Iterable[str], quick: bool) -> dict[str, list[str]]:
    """Patterns of the files below data/ that belong to each compared part."""
    found: dict[str, list[str]] = {}
    runs = {"smoke": "smoke/clic/default/seed=0", "coco": "coco/clic/golden/seed=0"}
    for env in ["smoke"] if quick or not PHOTOS.is_dir() else runs:
        found[f"captions of {env}"] = [f"03_primary/{env}/*.parquet"]
        found[f"foils of {env}"] = [f"05_model_input/{env}/foils.parquet"]
        for method in methods:
            texts = f"05_model_input/{env}/{method}/golden/seed=0"
            tables = [f"{texts}/counterfactuals.parquet", f"{texts}/views/*.parquet"]
            found[f"views of {method} on {env}"] = tables
        output = f"07_model_output/{runs[env]}"
        found[f"scores on {env}"] = [f"{output}/scores.parquet", f"{output}/scored_items.parquet"]
        found[f"intervals on {env}"] = [f"{output}/comparison.json", f"{output}/metrics.json"]
        found[f"export of {env}"] = [f"{output}/export/**/*"]
        for case, decision in DECISIONS.items():
            if decision[0] == env:
                found[f"gate: {case}"] = [f"gate/{case}.json"]
    for method in TRAINED:
        run = f"smoke/{method}/golden/seed=0"
        found[f"losses of {method}"] = [f"07_model_output/{run}/curves.csv"]
        found[f"weights of {method}"] = [f"06_models/{run}/checkpoint/*.safetensors"]
    if not quick:
        found["other formats"] = [f"06_models/{runs['smoke']}/exported/**/*"]
    return found


def leaves(file: Path) -> Iterator[tuple[str, str]]:
    """What a file holds: places, each with a text that tells any two values apart."""
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        yield from flat(pq.read_table(file).to_pylist())
    elif file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        for name, tensor in sorted(load_file(file).items()):
            digest = hashlib.sha256(tensor.tobytes()).hexdigest()[:16]
            first = ", ".join(f"{value:.9g}" for value in tensor.ravel()[:3])
            yield name, f"{tensor.dtype} {list(tensor.shape)} {digest} ({first}, ...)"
    elif file.suffix == ".json":
        yield from flat(json.loads(file.read_text("utf-8")))
    elif file.suffix == ".csv":
        header, *rows = csv.reader(file.read_text("utf-8").splitlines())
        named = [name for name in header if ":" not in name]  # the rest is a checksum
        yield from flat([dict(zip(named, row, strict=False)) for row in rows])
    elif file.suffix == ".md":
        yield from flat([RUN_ID.sub("<id>", line) for line in file.read_text("utf-8").split("\n")])
    else:
        yield "sha256", hashlib.sha256(file.read_bytes()).hexdigest()


def flat(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of nested lists and mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in VOLATILE:
                yield from flat(inner, f"{place}.{key}")
    elif isinstance(value, list):
        yield f"{place}.length", str(len(value))
        for number, inner in enumerate(value):
            yield from flat(inner, f"{place}[{number}]")
    else:
        yield place, repr(value)


def differences(patterns: list[str], data: tuple[Path, Path]) -> Iterator[tuple[str, str, str]]:
    """Places of a part where the two sides differ, with both values."""
    for pattern in patterns:
        found = [(side, file) for side in data for file in side.glob(pattern) if file.is_file()]
        if not found:
            yield pattern, "no file", "no file"
        for file in sorted({file.relative_to(side) for side, file in found}):
            before, after = (
                dict(leaves(side / file)) if (side / file).exists() else {} for side in data
            )
            for place in dict.fromkeys((*before, *after)):
                values = before.get(place, "absent"), after.get(place, "absent")
                if values[0] != values[1]:
                    yield f"{file.name} {place}", *values


def write_metadata(folder: Path, checkout: Path) -> None:
    """What an installation of a checkout declares, so that its entry points are its own."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (folder / "compo_pipeline-0.dist-info").mkdir(parents=True)
    for name, text in {
        "METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n",
        "entry_points.txt": "\n".join(lines),
    }.items():
        (folder / "compo_pipeline-0.dist-info" / name).write_text(text, encoding="utf-8")


def start(side: Path, checkout: Path, *options: str) -> subprocess.Popen[bytes]:
    """A process that runs everything with a checkout's code, in a project without data."""
    project = side / "project"
    shutil.copytree(checkout / "conf", project / "conf")
    shutil.copy(checkout / "pyproject.toml", project)
    (project / "src").mkdir()  # Kedro wants one; PYTHONPATH has the code
    write_metadata(side / "metadata", checkout)
    # Without the user's store of MLflow, in which versions would be registered.
    environment = {name: v for name, v in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(side / "metadata"), str(checkout / "src"))),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "KEDRO_DISABLE_TELEMETRY": "1",
        "MPLBACKEND": "agg",
    }
    command = [sys.executable, "-P", __file__, "--drive", *options]
    with (side / "log.txt").open("wb") as log:
        return subprocess.Popen(command, cwd=project, env=environment, stdout=log, stderr=log)


def compute(revision: str, folder: Path, *options: str) -> None:
    """Run both sides at the same time, in the folders of `SIDES`.

    Raises:
        SystemExit: a side failed, or git knows no such revision.
    """
    other = folder / "checkout"
    worktree = ["git", "-C", str(ROOT), "worktree"]
    add = [*worktree, "add", "--quiet", "--detach", str(other), revision]
    if subprocess.run(add, check=False).returncode:
        raise SystemExit(2)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for side, checkout in zip(SIDES, (other, ROOT), strict=True):
            running.append(start(folder / side, checkout, *options))
        while {process.poll() for process in running} in ({None}, {None, 0}):
            time.sleep(0.2)
    finally:
        for process in running:
            process.kill()
        subprocess.run([*worktree, "remove", "--force", str(other)], check=False)
    for side, process in zip(SIDES, running, strict=True):
        if process.returncode:
            print((folder / side / "log.txt").read_text("utf-8", "replace")[-4000:])
            raise SystemExit(f"{side} failed: {revision if side == 'theirs' else ROOT}, see above")


def report(part: str, found: list[tuple[str, str, str]]) -> bool:
    """Print the lines of a part; returns whether it differs and nobody wants that."""
    reasons: dict[str, None] = {}
    differs = False
    for place, theirs, ours in found:
        names = (part, f"{part}: {place}")
        wanted = [why for key, why in WANTED.items() if any(fnmatchcase(n, key) for n in names)]
        if not wanted:
            print(f"DIFFERS  {part}: {place}: was {theirs[:200]}, is {ours[:200]}")
            differs = True
        reasons |= dict.fromkeys(wanted)
    if differs:
        return True
    print(f"wanted   {part}: {'; '.join(reasons)}" if found else f"equal    {part}")
    return False


def main() -> None:
    """Run both sides, and print a line for each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="commit, branch or tag to compare with")
    parser.add_argument("--quick", action="store_true", help="the smoke configuration alone")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="new folder for both sides")
    if sys.argv[1:2] == ["--drive"]:
        driver = Driver(Path.cwd())
        driver.smoke()
        return None if "--quick" in sys.argv else driver.further()
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"--keep: {options.keep} exists")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        compute(options.revision, folder, *["--quick"] * options.quick)
        theirs, ours = (folder / side / "project" for side in SIDES)
        data, known = (theirs / "data", ours / "data"), methods_of(theirs)
        compared = parts([one for one in methods_of(ours) if one in known], options.quick)
        differing = [report(part, list(differences(compared[part], data))) for part in compared]
    if not options.quick and not PHOTOS.is_dir():
        print(f"not run  photographs: {PHOTOS} is not there")
    seconds = time.perf_counter() - started
    print(
        f"{sum(differing)} of {len(compared)} parts differ from {options.revision}; {seconds:.0f} s"
    )
    sys.exit(any(differing))


if __name__ == "__main__":
    main()
