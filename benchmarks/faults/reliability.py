"""Write docs/explanation/reliability.md: what was done to the program, and what came of it.

    python benchmarks/faults/reliability.py [--fuzz tests/core/test_untrusted.py ...]

`--fuzz` runs the long form of these files' fuzz tests first (10,000 cases each) and stores the
cases of those that pass in benchmarks/results/fuzz.json. Kills are those of
benchmarks/results/chaos.json, which benchmarks/faults/chaos.py and outage.py write.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "benchmarks" / "results"
FUZZ, CHAOS = RESULTS / "fuzz.json", RESULTS / "chaos.json"
OUTAGE = "outage"
ENOUGH = 10_000
# Fuzz tests by what they feed; the long form's number of cases ends their ids.
READERS, BENCHMARKS, SETTINGS, REQUESTS = (
    *("test_no_rows_and_no_bytes_end_a_reader", "test_no_content_ends_a_benchmark"),
    "test_any_value_of_any_key_gives_settings_or_an_error_with_the_key",
    "test_any_request_is_answered_or_refused_in_a_line",
)

PAGE = """\
# Reliability

This page lists faults and attacks, what the program does, and how we tried it. The script or test
in the last column repeats the trial. `python benchmarks/faults/reliability.py` writes this page.

| fault or attack | result | counts | by |
| --- | --- | --- | --- |
| SIGKILL at a random moment, then the same command | files, and runs, versions and aliases in \
MLflow, equal those of an undisturbed run; nothing is left over | {kills} | \
`benchmarks/faults/chaos.py` |
| MLflow's server is killed during a training | training continues; after the same command the run \
has every point | {outage} | `benchmarks/faults/outage.py`, `tests/pipelines/test_training.py` |
| a flipped bit in a table, a state or a store | refused or computed again; only the memory-mapped \
copy of a table above 64 MiB is not checked | 3,100 flips, none read as other data: \
[bit_flips.md](../../benchmarks/results/bit_flips.md) | `benchmarks/faults/bit_flips.py` |
| a full disk | one line with the file; the same command resumes | | `tests/core/test_storage.py` |
| weights, moments or scale that are not finite at a saving step | nothing is saved; the command \
resumes from the previous state | | `tests/training/test_loop.py` |
| a folder of a model, spaCy, tokenizer or diffusers that names code | refused by file and key; no \
code runs | | `tests/models/test_foreign.py` |
| an import of another program's model is killed, or gives other embeddings than its source | \
nothing that loads remains; the same command starts again | | `tests/models/test_importing.py` |
| a registered version with a changed, missing or swapped file | refused before an alias moves, \
`compo-pipeline try` or `serve` | | `tests/registry/test_verification.py` |
| edited or missing scores in the evidence; overlaps that count nothing or occur twice | refused \
by item or subtask, even if all digests fit | | `tests/registry/test_evidence.py` |
| weights that inflate to gigabytes; a configuration with thousands of levels or an unresolved \
`${{...}}` | one line with the file, before it is read | \
| `tests/models/test_checkpoints.py`, `tests/core/test_keys.py` |
| links, `..` and absolute names in data and benchmarks | nothing outside the root is opened | all \
readers and benchmarks | `tests/core/test_untrusted.py` |
| malformed, hostile and random data files | a rejected row, or one line with file and item | \
{readers} | `tests/core/test_untrusted.py` |
| truncated data files, flipped bits, blocks of zeros | every remaining record is used, rejected \
or left out by a setting, or the file is refused in one line | 150 files of each of 15 sources: \
[conservation.md](../../benchmarks/results/conservation.md) | `benchmarks/faults/conservation.py` |
| random values in every configuration key | settings, or one line with the key | {settings} | \
`tests/project/test_setting_values.py` |
| random requests to the server | 200, or 4xx in one line | {requests} | \
`tests/registry/test_serving.py` |
| a secret in every place that takes one | masked in logs, records, pages and commands | | \
`tests/project/test_secrets.py` |

See also how [files are written and checked](../../data/README.md#kills-full-disks-damage), and
what is promised [against attackers](../../SECURITY.md).

## Kills

We killed a process, with or without its workers, and ran the same command again. {kill_rows} We
have not yet killed pipelines that are not listed.
"""


def page(chaos: Mapping[str, Any], fuzz: Mapping[str, int]) -> str:
    """The page from the stored results."""
    killed = {name: found for name, found in chaos.items() if name != OUTAGE}
    kills = sum(sum(found["kills"].values()) for found in killed.values())
    equal = sum(not found["different"] for found in killed.values())
    cases = _by_test(fuzz)
    files = {name: cases.get(name, {}) for name in (READERS, BENCHMARKS)}
    return PAGE.format(
        kills=f"{kills} kills; {equal} of {len(killed)} pipelines equal ([below](#kills))",
        outage=_outage(chaos.get(OUTAGE)),
        readers="; ".join(
            f"{sum(each >= ENOUGH for each in found.values())} {what} with {ENOUGH:,} cases each"
            for what, found in zip(("readers", "benchmarks"), files.values(), strict=True)
        )
        + "; each content is read whole and damaged in eight ways",
        settings=_count(cases.get(SETTINGS, {})),
        requests=_count(cases.get(REQUESTS, {})),
        kill_rows=_kills(killed),
    )


def _outage(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "the server's absence is simulated in the client"
    different = ", ".join(found["different"]) or "nothing differs"
    return f"1 real server, killed after {found['points']} points; {different}"


def _kills(killed: Mapping[str, Any]) -> str:
    counts = {name: sum(found["kills"].values()) for name, found in killed.items()}
    lines = {True: "Nothing differed and nothing was left over", False: "Something differed"}
    found: dict[bool, list[str]] = {}
    for name, each in killed.items():
        equal = not each["different"] and not each["leftovers"]
        found.setdefault(equal, []).append(f"{name} ({counts[name]})")
    return " ".join(f"{lines[equal]} in {', '.join(names)}." for equal, names in found.items())


def _count(cases: Mapping[str, int]) -> str:
    return f"{sum(cases.values()):,} cases" if cases else ""


def _by_test(fuzz: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Cases by test, then by the reader or benchmark in the test's id."""
    found: dict[str, dict[str, int]] = {}
    for identity, count in fuzz.items():
        test, _, rest = identity.partition("[")
        found.setdefault(test, {})[re.sub(r"-?\d+\]$", "", rest)] = count
    return found


def run_long_forms(files: Sequence[str]) -> dict[str, int]:
    """Run the fuzz tests of files; cases by the ids of those that pass."""
    names = " or ".join((READERS, BENCHMARKS, SETTINGS, REQUESTS))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-m", "slow", "-k", names, f"--junitxml={report}", "-o", "junit_family=xunit1"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *files], cwd=PROJECT, check=False)
        return passed(report)


def passed(report: Path) -> dict[str, int]:
    """Cases of the tests that passed, by id, from pytest's XML report."""
    cases = {}
    for test in ElementTree.parse(report).iter("testcase"):
        counted = test.find("properties/property[@name='cases']")
        if counted is not None and test.find("failure") is None:
            cases[test.attrib["name"]] = int(counted.attrib["value"])
    return cases


def main() -> None:
    """Run the long forms that are asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuzz", nargs="*", default=[], metavar="FILE")
    options = parser.parse_args()
    fuzz = json.loads(FUZZ.read_text("utf-8")) if FUZZ.exists() else {}
    if options.fuzz:
        fuzz |= run_long_forms(options.fuzz)
        FUZZ.write_text(json.dumps(fuzz, indent=1) + "\n", encoding="utf-8")
    chaos = json.loads(CHAOS.read_text("utf-8"))
    (PROJECT / "docs" / "explanation" / "reliability.md").write_text(
        page(chaos, fuzz), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
