"""Precision and recall of the checks of captioning models' answers.

    python benchmarks/captions.py

The answers are tests/datasets/recaption/answers.jsonl, each with its caption, or null for an answer
that is none. The rules were written with the development half alone; the held-out half was written
before them. Writes benchmarks/results/captions.json and captions.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compo_pipeline.chat.answers import Answer
from compo_pipeline.datasets.quality.caption_language import Vocabulary
from compo_pipeline.datasets.recaption.checks import check
from compo_pipeline.datasets.recaption.settings import RecaptionSettings
from compo_pipeline.language.parsing import load_once

ROOT = Path(__file__).parents[1]
ANSWERS = ROOT / "tests" / "datasets" / "recaption" / "answers.jsonl"
RESULTS = ROOT / "benchmarks" / "results"
HALVES = ("development", "held_out")


def measure(answers: list[dict[str, Any]], vocabulary: Vocabulary) -> dict[str, float]:
    """Precision and recall of the accepted captions; one counts if its text is as expected."""
    settings = RecaptionSettings(captioner="endpoint")
    found = [check(Answer(each["answer"], False), settings, vocabulary) for each in answers]
    accepted = [
        (each["caption"], one.text)
        for each, one in zip(answers, found, strict=True)
        if not one.rule
    ]
    right = sum(caption == text for caption, text in accepted)
    captions = sum(each["caption"] is not None for each in answers)
    wrapped = sum(each["caption"] not in (None, each["answer"]) for each in answers)
    return {
        "answers": len(answers),
        "captions": captions,
        "wrapped": wrapped,
        "accepted": len(accepted),
        "right": right,
        "precision": right / len(accepted),
        "recall": right / captions,
    }


def main() -> None:
    """Measure both halves, and write the results."""
    answers = [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]
    vocabulary = Vocabulary(load_once("compo_en"))
    found = {
        half: measure([each for each in answers if each["half"] == half], vocabulary)
        for half in HALVES
    }
    (RESULTS / "captions.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    lines = [
        "# Captioners' answers",
        "",
        "Answers written in the styles of BLIP, CogVLM, LLaVA, Qwen-VL, InternVL, GPT-4o, Gemini "
        "and of local servers, half of them with a caption. An accepted caption is right if the "
        "cleaned text is exactly the expected one. The rules were written with the development "
        "half; the held-out half was written before them, by the same author. "
        "`python benchmarks/captions.py`",
        "",
        "| half | answers | with a caption | wrapped | accepted | right | precision | recall |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {half.replace('_', '-')} | {one['answers']} | {one['captions']} | {one['wrapped']} "
            f"| {one['accepted']} | {one['right']} | {one['precision']:.1%} | {one['recall']:.1%} |"
            for half, one in found.items()
        ),
    ]
    (RESULTS / "captions.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[4:]))


if __name__ == "__main__":
    main()
