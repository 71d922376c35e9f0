"""Trade-off plot, table and recommendation of a WiSE-FT sweep."""

from pathlib import Path

import pandas as pd
from PIL import Image
from rich.console import Console

from compo_pipeline.presentation import wise_ft_page


def frame(*rows: tuple[float, str, str, str, float]) -> pd.DataFrame:
    """Results of (ratio, benchmark, metric, name, value)."""
    columns = ["ratio", "benchmark", "metric", "name", "value"]
    made = pd.DataFrame(rows, columns=columns)
    return made.assign(
        label=made.metric + " " + made["name"], low=made.value - 1, high=made.value + 1
    )


ROWS = [
    (ratio, *row, value + step)
    for ratio, step in ((0.0, 0.0), (0.5, 3.0), (1.0, 4.0))
    for *row, value in (
        ("sugar_crepe", "accuracy", "average", 70.0),
        ("sugar_crepe", "accuracy", "swap_obj", 10.0),
        ("sugar_crepe_pp", "itt", "average", 50.0),
        ("zero_shot", "top1", "cars", 60.0),
        ("zero_shot", "top1", "pets", 80.0),
        ("zero_shot", "top5", "pets", 99.0),
        ("retrieval", "i2t_r1", "raw", 40.0),
        ("retrieval", "t2i_r1", "raw", 30.0),
        ("retrieval", "t2i_r5", "raw", 90.0),
    )
]


def test_the_trade_off_is_the_averages_and_the_means() -> None:
    means = wise_ft_page.summary(frame(*ROWS))
    assert list(means.index) == [0.0, 0.5, 1.0]
    assert means.loc[0.5].to_dict() == {
        "sugar_crepe": 73.0,
        "sugar_crepe_pp_itt": 53.0,
        "zero_shot": 73.0,
        "retrieval_r1": 38.0,
    }


def test_the_trade_off_needs_two_kinds_of_benchmarks(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    choice = [row for row in ROWS if row[1].startswith("sugar")]
    assert not wise_ft_page.trade_off(frame(*choice), path) and not path.exists()
    assert wise_ft_page.trade_off(frame(*ROWS), path)
    two_by_two = Image.open(path).size
    assert wise_ft_page.trade_off(frame(*[row for row in ROWS if row[1] != "retrieval"]), path)
    assert Image.open(path).size[0] < two_by_two[0]


def test_the_table_has_a_line_a_ratio(tmp_path: Path) -> None:
    with (tmp_path / "shown.txt").open("w") as file:
        wise_ft_page.show(frame(*ROWS), Console(file=file, width=100))
    lines = [line.split() for line in (tmp_path / "shown.txt").read_text().splitlines()]
    assert ["0.5", "73.0", "53.0", "73.0", "38.0"] in lines
    assert ["1", "74.0", "54.0", "74.0", "39.0"] in lines
