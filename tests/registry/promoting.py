"""A process that promotes: `python promoting.py <store> <model> <alias> <folder>`.

Scores of versions are invented from their numbers: a later version is better. The process creates a
file in the folder when it compares, and waits there for the file that lets it go on.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.core.records import Score
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import ScoresFingerprint
from compo_pipeline.registry import promotion
from compo_pipeline.registry.evidence import Evidence
from compo_pipeline.registry.settings import Gate, GateRule, PromotionSettings, SigningSettings

GATE = Gate(
    version=1, rules={"itt": GateRule("rise", figure="sugar_crepe_pp/itt/swap_att")}, items=20
)
SETTINGS = PromotionSettings(gate=GATE)
ITEMS = 40
NONE: Mapping[str, str] = MappingProxyType({})
# Nothing of the items is in the training data.
CLEAN = Overlap("sugar_crepe_pp", "swap_att", ITEMS, 0, 0, ITEMS, 0)


def made_up(right: int) -> list[Score]:
    """Scores of a model that has so many items right."""
    name = ("m", "sugar_crepe_pp", "swap_att", "itt")
    return [
        Score(*name, str(item), f"{item}.png", (0.5, 0.4, 0.1 if good else 0.45), good, None)
        for item, good in ((item, item < right) for item in range(ITEMS))
    ]


def opened(
    version: int,
    right: int,
    base: int = 0,
    scored: tuple[ScoresFingerprint, ...] = (),
    overlaps: tuple[Overlap, ...] = (CLEAN,),
    selecting: Mapping[str, str] = NONE,
) -> Any:
    """What stands for the verified files of a version with invented scores."""
    return SimpleNamespace(
        evidence=Evidence("v", "b", scored, {}, overlaps, dict(selecting)),
        lineage=SimpleNamespace(version=version, fingerprint="v", base_fingerprint="b"),
        read=lambda _: (made_up(right), made_up(base), {}),
    )


def main(store: str, name: str, alias: str, folder: str) -> int:
    import mlflow

    logging.basicConfig(level=logging.INFO)

    mlflow.set_tracking_uri(store)
    mlflow.set_registry_uri(store)

    def wait() -> None:
        (Path(folder) / f"{alias} compares").touch()
        while not (Path(folder) / f"{alias} goes on").exists():
            time.sleep(0.05)

    def slow(version: ModelVersion, *_: object) -> Any:
        wait()
        return opened(int(version.version), 10 * int(version.version))

    promotion.verified = slow
    (Path(folder) / f"{alias} starts").touch()
    decided = promotion.promote(name, alias, SETTINGS, SigningSettings())
    sys.stdout.write(json.dumps(asdict(decided)) + "\n")
    return int(decided.failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
