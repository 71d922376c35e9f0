"""The check for GPUs says on any machine what was measured and what was not."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.processes import ran


@pytest.mark.slow
def test_without_a_gpu_the_processor_takes_steps_and_the_rest_is_listed_as_not_run(
    project: Path, tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("here is a GPU: make gpu-check")
    script = project / "benchmarks" / "speed" / "gpu_check.py"
    command = [sys.executable, str(script), "--out", str(tmp_path), "--methods", "clip", "c2lip"]
    done = ran(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    rows = {(row["method"], row["precision"], row["step"]): row for row in found["steps"]}
    own, plain = rows["clip", "fp32", "ours"], rows["clip", "fp32", "open_clip"]
    assert own["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert {("c2lip", "fp32", "ours"), ("c2lip", "bf16", "ours")} <= rows.keys()
    assert all(row["within tolerance"] and row["finite"] for row in found["steps"])
    assert len(found["runs"]) == 5
    assert all(text.startswith("not run") for text in found["runs"].values())
