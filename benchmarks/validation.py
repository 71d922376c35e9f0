"""Seconds and memory to validate a million rows of facts with the project's rules.

python benchmarks/validation.py [rows]
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from compo_pipeline.configuration.settings import parse
from compo_pipeline.datasets.quality import quarantine, suite
from compo_pipeline.datasets.quality.settings import DataValidationSettings

RULES = Path(__file__).parents[1] / "conf" / "base" / "parameters_validation.yml"


def facts(rows: int) -> pd.DataFrame:
    """Facts of which about two in a hundred break a rule."""
    draw = np.random.default_rng(0).random
    numbers = pd.Series(np.arange(rows))
    return pd.DataFrame(
        {
            "row": numbers,
            "sample_id": "train-" + numbers.astype("str"),
            "image": "train/" + numbers.astype("str") + ".jpg",
            "split": "train",
            "image_hash": "0" * 64,
            "decode_error": pd.Series(None, numbers.index, "str").mask(
                draw(rows) < 0.01, "missing: no file"
            ),
            "width": 640,
            "height": 480,
            "sentences": np.where(draw(rows) < 0.005, 1, 5),
            "least_words": 5,
            "most_words": 20,
            "repeats_id": False,
            "repeats_pair": draw(rows) < 0.005,
            "leaks": False,
        }
    )


def main() -> None:
    """Measure and print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    content = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    rules = parse(DataValidationSettings, content["validation"], "validation").rules
    with tempfile.TemporaryDirectory() as folder:
        suite.check(facts(10), rules, Path(folder) / "warm")  # imports are not what is measured
        frame = facts(rows)
        started, processor = time.perf_counter(), time.process_time()
        entries = quarantine.quarantined(
            frame, suite.check(frame, rules, Path(folder) / "docs"), rules
        )
        wall, processor = time.perf_counter() - started, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{rows} rows, {len(rules)} rules: {wall:.1f} s ({processor:.1f} s of processor), "
        f"{len(entries)} rows in quarantine, {memory:.1f} GiB at most"
    )


if __name__ == "__main__":
    main()
