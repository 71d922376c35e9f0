"""The usual zero-shot sets, in each form in which they are on disk."""

import json
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
from PIL import Image
from scipy.io import savemat
from tests.benchmarks.conftest import load
from timm.data import ImageNetInfo
from torchvision.datasets import SUN397, Food101

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.benchmarks.zero_shot_sets import NAME, ZS10, ZS21
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.images import decoding
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.metrics import reported_metrics
from compo_pipeline.evaluation.scoring import score

Files = Mapping[str, str]


def write(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def read(root: Path) -> list[Subtask]:
    return load(NAME, root)


def labels(subtask: Subtask) -> dict[str, str]:
    return {item.image: item.positives[0] for item in subtask.items}


def shard(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, endings in samples.items():
            for ending, content in endings.items():
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                tar.addfile(member, BytesIO(content))


def webp() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "webp")
    return buffer.getvalue()


@pytest.fixture
def wds(tmp_path: Path) -> Path:
    """Two shards; one sample has no class."""
    folder = tmp_path / "wds_shapes"
    texts = {"classnames.txt": "cup\nkey\n", "test/nshards.txt": "2\n"}
    texts["zeroshot_classification_templates.txt"] = "a {c}\none {c} here\n"
    write(folder, texts)
    image = webp()
    shard(folder / "test" / "0.tar", {"s0": {"cls": b"1", "webp": image}, "s1": {"webp": image}})
    shard(folder / "test" / "1.tar", {"s2": {"cls": b"0\n", "webp": image}})
    return folder


def test_clip_benchmarks_webdataset(wds: Path, caplog: pytest.LogCaptureFixture) -> None:
    (subtask,) = read(wds.parent)
    assert (subtask.name, subtask.classes) == ("shapes", ("cup", "key"))
    assert subtask.templates == ("a {}", "one {} here")
    assert labels(subtask) == {
        "wds_shapes/test/0.tar/s0.webp": "key",
        "wds_shapes/test/1.tar/s2.webp": "cup",
    }
    assert all(
        decoding.load(*subtask.image_locations(item)[0]).size == (8, 8) for item in subtask.items
    )
    assert "0.tar: 1 samples without an image or a class are left out" in caplog.text


def test_a_cut_shard_is_refused(wds: Path) -> None:
    path = wds / "test" / "1.tar"
    path.write_bytes(path.read_bytes()[: 3 * 512 + 20])
    with pytest.raises(SettingsError, match=r"1\.tar is damaged or cut off .*; fetch it again"):
        read(wds.parent)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"test/nshards.txt": "3"}, r"2\.tar"),
        ({"classnames.txt": "cup\n"}, "has the class 1 of 1"),
        ({"zeroshot_classification_templates.txt": "a photo"}, r"every template needs \{\}"),
        ({"dataset_type.txt": "retrieval"}, r"dataset_type\.txt: expected classification"),
    ],
)
def test_what_does_not_fit_is_named(wds: Path, files: Files, message: str) -> None:
    write(wds, files)
    with pytest.raises(SettingsError, match=message):
        read(wds.parent)


def test_a_class_that_is_no_number_is_named(wds: Path) -> None:
    shard(wds / "test" / "0.tar", {"s0": {"cls": b"cup", "webp": webp()}})
    with pytest.raises(SettingsError, match=r"0\.tar, s0\.cls: expected a number, got b'cup'"):
        read(wds.parent)


def test_names_that_are_given_twice_are_one_class(
    wds: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(wds, {"classnames.txt": "cup\nkey\ncup\n"})
    (subtask,) = read(wds.parent)
    assert subtask.classes == ("cup", "key") and "as one class each: ['cup']" in caplog.text


def test_folders_of_classes(tmp_path: Path) -> None:
    images = {"red_cup/1.jpg": "", "key/2.jpg": "", "key/3.png": "", "key/.DS_Store": ""}
    write(tmp_path / "own", {f"test/{name}": "" for name in images} | {"train/x/4.jpg": ""})
    write(
        tmp_path / "plain", {**images, "classnames.txt": "a key\na cup\n", "templates.txt": "{}!"}
    )
    own, plain = read(tmp_path)
    assert own.classes == ("key", "red cup") and own.templates == ("a photo of a {}.",)
    assert labels(own) == {
        "own/test/key/2.jpg": "key",
        "own/test/key/3.png": "key",
        "own/test/red_cup/1.jpg": "red cup",
    }
    assert plain.classes == ("a key", "a cup") and plain.templates == ("{}!",)
    assert labels(plain)["plain/red_cup/1.jpg"] == "a cup"


TORCHVISION: dict[str, tuple[Files, dict[str, str]]] = {
    "food101": (
        {"food-101/meta/test.json": json.dumps({"tofu": ["tofu/2"], "apple_pie": ["apple_pie/1"]})},
        {
            "food-101/images/apple_pie/1.jpg": "apple pie",
            "food-101/images/tofu/2.jpg": "tofu",
        },
    ),
    "dtd": (
        {"dtd/dtd/labels/test1.txt": "dotted/2.jpg\nbanded/1.jpg\n"},
        {"dtd/dtd/images/dotted/2.jpg": "dotted", "dtd/dtd/images/banded/1.jpg": "banded"},
    ),
    "oxford_pets": (
        {"oxford-iiit-pet/annotations/test.txt": "great_dane_9 2 2 1\nAbyssinian_1 1 1 1\n"},
        {
            "oxford-iiit-pet/images/great_dane_9.jpg": "Great Dane",
            "oxford-iiit-pet/images/Abyssinian_1.jpg": "Abyssinian",
        },
    ),
    "fgvc_aircraft": (
        {
            "fgvc-aircraft-2013b/data/variants.txt": "707-320\nSR-20\n",
            "fgvc-aircraft-2013b/data/images_variant_test.txt": "001 SR-20\n002 707-320\n",
        },
        {
            "fgvc-aircraft-2013b/data/images/001.jpg": "SR-20",
            "fgvc-aircraft-2013b/data/images/002.jpg": "707-320",
        },
    ),
    "caltech101": (
        {
            f"caltech101/101_ObjectCategories/{name}/image_0001.jpg": ""
            for name in ("BACKGROUND_Google", "ant", "water_lilly")
        },
        {
            "caltech101/101_ObjectCategories/ant/image_0001.jpg": "ant",
            "caltech101/101_ObjectCategories/water_lilly/image_0001.jpg": "water lilly",
        },
    ),
    "country211": (
        {"country211/test/AD/1.jpg": "", "country211/test/AE/2.jpg": ""},
        {"country211/test/AD/1.jpg": "AD", "country211/test/AE/2.jpg": "AE"},
    ),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_what_torchvision_unpacks(tmp_path: Path, name: str) -> None:
    files, expected = TORCHVISION[name]
    write(tmp_path / name, files)
    (subtask,) = read(tmp_path)
    assert labels(subtask) == {f"{name}/{image}": label for image, label in expected.items()}


def test_food101_is_in_the_order_of_its_file(tmp_path: Path) -> None:
    """As in torchvision, whose order CLIC's draw is of."""
    files, _ = TORCHVISION["food101"]
    write(tmp_path / "food101", files)
    (tmp_path / "food101" / "food-101" / "images").mkdir()
    (subtask,) = read(tmp_path)
    files = Food101(tmp_path / "food101", "test")._image_files
    theirs = [str(path.relative_to(tmp_path)) for path in files]
    assert [item.image for item in subtask.items] == theirs


def test_matlab_files_of_torchvisions_sets(tmp_path: Path) -> None:
    flowers = write(tmp_path / "flowers102", {"classnames.txt": "rose\niris\n"}) / "flowers-102"
    flowers.mkdir()
    savemat(flowers / "imagelabels.mat", {"labels": [[2, 1, 2]]})
    savemat(flowers / "setid.mat", {"tstid": [[3, 2]]})
    cars = tmp_path / "stanford_cars" / "stanford_cars"
    (cars / "devkit").mkdir(parents=True)
    rows = np.array([("1.jpg", 2), ("2.jpg", 1)], dtype=[("fname", object), ("class", object)])
    savemat(cars / "cars_test_annos_withlabels.mat", {"annotations": rows})
    names = np.array(["Audi TT", "BMW M3"], dtype=object)
    savemat(cars / "devkit" / "cars_meta.mat", {"class_names": names})
    first, second = read(tmp_path)
    assert list(labels(first).values()) == ["iris", "rose"]
    assert "flowers102/flowers-102/jpg/image_00003.jpg" in labels(first)
    assert list(labels(second).values()) == ["BMW M3", "Audi TT"]


def test_sun397_is_as_torchvision_reads_it(tmp_path: Path) -> None:
    paths = ("a/abbey", "a/apartment_building/outdoor", "z/zen_garden")
    files = {"ClassName.txt": "".join(f"/{path}\n" for path in paths)}
    files |= {f"{path}/sun_{number}.jpg": "" for number, path in enumerate(paths)}
    write(tmp_path / "sun397" / "SUN397", files)
    (subtask,) = read(tmp_path)
    theirs = SUN397(tmp_path / "sun397")
    names = [name.replace("_", " ").replace("/", " ") for name in theirs.classes]
    assert subtask.classes == tuple(names)
    assert labels(subtask) == {
        str(path.relative_to(tmp_path)): names[number]
        for path, number in zip(theirs._image_files, theirs._labels, strict=True)
    }


def test_imagenet_has_the_names_and_templates_of_open_clip(tmp_path: Path) -> None:
    """timm has a name of its own for each identifier; most share a word with open_clip's."""
    info = ImageNetInfo()
    folder = tmp_path / "imagenet1k" / "val"
    write(folder, {f"{identifier}/1.JPEG": "" for identifier in info.label_names()})
    (subtask,) = read(tmp_path)
    found = {item.image.split("/")[2]: item.positives[0] for item in subtask.items}

    def words(name: str) -> set[str]:
        return set(re.findall(r"[a-z]+", name.lower()))

    alike = sum(
        bool(words(name) & words(info.label_name_to_description(key)))
        for key, name in found.items()
    )
    assert len(found) == 1000 and alike > 900
    assert set(found.values()) == set(IMAGENET_CLASSNAMES)
    assert subtask.templates == tuple(make("{}") for make in OPENAI_IMAGENET_TEMPLATES)
    # Of some classes, as ImageNet-A has them, and under names of one's own.
    for identifier in info.label_names()[3:]:
        (folder / identifier / "1.JPEG").unlink()
        (folder / identifier).rmdir()
    (few,) = read(tmp_path)
    assert few.classes == tuple(IMAGENET_CLASSNAMES[:3])
    write(folder.parent, {"classnames.txt": "a\nb\nc\n", "templates.txt": "{}\n"})
    (own,) = read(tmp_path)
    assert (own.classes, own.templates) == (("a", "b", "c"), ("{}",))
    write(folder, {"n00000001/1.JPEG": ""})
    with pytest.raises(SettingsError, match="n00000001 is none of ImageNet's 1,000 classes"):
        read(tmp_path)


def limited(root: Path, items: object) -> Subtask:
    sets = {NAME: {"root": str(root), "items": items}}
    (subtask,) = from_files(parse(BenchmarksSettings, {"sets": sets}, "benchmarks"))
    return subtask


def test_a_number_of_items_is_a_random_draw_over_all_classes(tmp_path: Path) -> None:
    """CLIC's evaluation shuffles the places of all items and takes the first."""
    count, drawn = 400, 100
    write(tmp_path / "own", {f"{number // 100}/{number:03}.jpg": "" for number in range(count)})
    (whole,) = read(tmp_path)
    found = limited(tmp_path, drawn)
    by_class = Counter(item.positives for item in found.items)
    assert len(by_class) == 4 and min(by_class.values()) > drawn / 4 / 2
    places = list(range(count))
    np.random.seed(1)
    np.random.shuffle(places)
    assert set(found.items) == {whole.items[place] for place in places[:drawn]}
    # Equal in the next run, of the named subtask alone, and no draw where there are no more.
    np.random.seed(2)
    assert limited(tmp_path, {"own": drawn}) == found
    assert found.deviations and "drawn at random" in found.deviations[0]
    assert limited(tmp_path, count) == whole and not limited(tmp_path, count).deviations
    with pytest.raises(
        SettingsError, match=r"items: there is no subtask 'onw'; did you mean 'own'"
    ):
        limited(tmp_path, {"onw": drawn})


@pytest.mark.parametrize(("folder", "official"), [("wds_cifar10", True), ("cifar10", False)])
def test_clics_draw_is_official_of_exported_sets(
    tmp_path: Path, folder: str, official: bool
) -> None:
    samples = {f"s{number:04}": {"cls": b"0", "png": b""} for number in range(1001)}
    write(tmp_path / folder, {"classnames.txt": "cup\nkey\n", "test/nshards.txt": "1"})
    shard(tmp_path / folder / "test" / "0.tar", samples)
    found = limited(tmp_path, 1000)
    assert len(found.items) == 1000 and (found.deviations == ()) == official
    assert limited(tmp_path, 999).deviations


def test_pickled_sets_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "cifar10", {"cifar-10-batches-py/test_batch": ""})
    with pytest.raises(SettingsError, match="pickled files are not read"):
        read(tmp_path)


def test_averages_over_named_sets() -> None:
    assert (len(set(ZS10)), len(set(ZS21))) == (10, 21)
    keys = {(NAME, "top1", name): 1 for name in ZS10}
    found = {metric.name: metric for metric in reported_metrics(keys)}
    assert found["zs10"].weights == dict.fromkeys(ZS10, pytest.approx(0.1))
    assert "zs21" not in found and found["zs10"].label == "Zero-shot zs10 top-1"


def test_an_item_is_right_where_its_class_is_closest(
    wds: Path, embedded: Callable[..., Embedded]
) -> None:
    (subtask,) = read(wds.parent)
    first, second = (str(subtask.path(item)) for item in subtask.items)
    found = embedded(
        images={first: [1.0, 0.1], second: [1.0, 0.2]},
        texts={
            "a cup": [0.0, 1.0],
            "one cup here": [0.0, 1.0],
            "a key": [1.0, 0.0],
            "one key here": [1.0, 0.0],
        },
    )
    (top1,) = (each for each in score("m", subtask, found) if each.key[1] == "top1")
    assert [row.correct for row in top1.rows] == [True, False]
