"""Pictures as clips of one frame: broken and large files, four layouts of annotations, splits, and
a captioner that learns from pictures first."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from picknet_nb.core.files import FileError
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import CorpusError
from picknet_nb.data.datasets import prepare_dataset
from picknet_nb.data.picture_files import PictureError, open_picture, read_picture
from picknet_nb.data.pictures import draw_by_name, list_pictures, read_pictures
from picknet_nb.data.video import read_clip
from picknet_nb.data.video_files import VideoError
from picknet_nb.interface.main import app
from picknet_nb.use.loading import load_captioner


def draw(path: Path, size=(60, 40), **how) -> Path:
    "A red square on blue, upper left."
    image = Image.new("RGB", size, (20, 20, 200))
    image.paste((220, 20, 20), (0, 0, size[0] // 2, size[1] // 2))
    image.save(path, **how)
    return path


def written(path: Path, content) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "bmp"])
def test_a_picture_is_a_frame(tmp_path, ending):
    frame = read_picture(draw(tmp_path/f"a.{ending}"), 32)
    assert frame.shape == (3, 32, 32) and frame.dtype == torch.uint8
    assert frame[0, 4, 4] > 180 > 100 > frame[0, 28, 28] and frame[2, 28, 28] > 150


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_pictures_in_other_colours_become_red_green_and_blue(tmp_path, mode):
    path = tmp_path/("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (30, 30), (200, 200, 200)).convert(mode).save(path)
    assert (read_picture(path, 8).float() - 200).abs().max() < 60


def test_a_camera_that_was_held_upright(tmp_path):
    how = Image.Exif()
    how[0x0112] = 6  # turn a quarter by the clock
    frame = read_picture(draw(tmp_path/"a.jpg", exif=how), 32)
    assert frame[0, 4, 28] > 180 and frame[0, 4, 4] < 100


def test_a_large_jpeg_is_decoded_no_larger_than_needed(tmp_path):
    path = draw(tmp_path/"a.jpg", (1600, 1200))
    assert open_picture(path, 200).size == (400, 300) and open_picture(path).size == (1600, 1200)
    whole = open_picture(path).resize((32, 32), Image.Resampling.BILINEAR)
    gap = read_picture(path, 32).float() - torch.from_numpy(np.array(whole)).permute(2, 0, 1)
    assert gap.abs().mean() < 3


@pytest.mark.parametrize("name, content, said", [
    ("empty.jpg", b"", "is empty"),
    ("text.jpg", b"this is not a picture" * 9, "not a JPEG, PNG, WebP or BMP picture"),
    ("video.png", b"\x00\x00\x00\x18ftypmp42", "not a JPEG"),
    ("header.png", b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, "not a JPEG|damaged"),
])
def test_what_is_no_picture_gets_one_sentence(tmp_path, name, content, said):
    (tmp_path/name).write_bytes(content)
    with pytest.raises(VideoError, match=f"{name}: .*{said}") as one:
        read_picture(tmp_path/name)
    assert "\n" not in str(one.value)


def test_a_picture_that_was_cut_short(tmp_path):
    for name in ("a.jpg", "a.png"):
        content = draw(tmp_path/name, (200, 150)).read_bytes()
        (tmp_path/name).write_bytes(content[: len(content) // 2])
        with pytest.raises(PictureError, match=f"{name}: not a picture, or a damaged one"):
            read_picture(tmp_path/name)


def test_a_picture_with_too_many_pixels_is_not_decoded(tmp_path, monkeypatch):
    path = draw(tmp_path/"large.png", (3000, 2000))
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "1000000")
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(PictureError, match="3000 x 2000 pixels, more than 1,000,000"):
        read_picture(path)


def test_a_picture_is_a_clip_in_which_nothing_moves(tmp_path):
    clip = read_clip(draw(tmp_path/"a.jpg"), frames=4, size=16)
    assert torch.equal(clip.frames, read_picture(tmp_path/"a.jpg", 16).expand(4, -1, -1, -1))
    assert clip.times.tolist() == [0, 0, 0, 0]


# annotations
# --------------------------------------------------------------------------------------------------

COCO = {"images": [{"id": 9, "file_name": "COCO_val2014_000000000009.jpg"},
                   {"id": 7, "file_name": "000000000007.jpg"}, {"id": 8, "file_name": "none.jpg"}],
        "annotations": [{"image_id": 9, "caption": "a red square\n"},
                        {"image_id": 7, "caption": "a square"},
                        {"image_id": 9, "caption": "red on blue"}]}
KARPATHY = {"dataset": "coco", "images": [
    {"filename": f"{split}.jpg", "split": split, "sentences": [{"raw": f"{split} it is"}]}
    for split in ("train", "restval", "val", "test")]}


def test_cocos_annotations_find_files_by_the_names_of_both_years(tmp_path):
    found = read_pictures(written(tmp_path/"coco.json", COCO))
    assert found.captions == {"COCO_val2014_000000000009": ["a red square", "red on blue"],
                              "000000000007": ["a square"]}
    assert found.names["000000000009"] == "COCO_val2014_000000000009"
    assert found.names["COCO_train2014_000000000007"] == "000000000007"
    assert "000000000008" not in found.names  # it has no captions


def test_karpathys_annotations_bring_their_splits(tmp_path):
    found = read_pictures(written(tmp_path/"k.json", KARPATHY))
    assert found.splits == {"train": "train", "restval": "train", "val": "validation",
                            "test": "test"}
    assert found.captions["restval"] == ["restval it is"]


@pytest.mark.parametrize("text", [
    "1_a.jpg#0\tA dog runs .\n1_a.jpg#1\ta dog\n\n2_b.jpg#0\ta cat\n",
    'image,caption\n1_a.jpg,A dog runs .\n1_a.jpg,a dog\n2_b.jpg,a cat\n',
])
def test_flickr8ks_captions(tmp_path, text):
    found = read_pictures(written(tmp_path/"token.txt", text))
    assert found.captions == {"1_a": ["A dog runs .", "a dog"], "2_b": ["a cat"]}


def test_several_files_in_several_layouts(tmp_path):
    plain = written(tmp_path/"plain.json", {"000000000007": ["seven"], "mine": ["my own"]})
    found = read_pictures(written(tmp_path/"coco.json", COCO), plain,
                          written(tmp_path/"k.json", KARPATHY))
    assert found.captions["000000000007"] == ["a square", "seven"]
    assert found.splits["val"] == "validation" and set(found.splits) == set(found.captions)


@pytest.mark.parametrize("name, content, said", [
    ("a.json", {"images": [{"id": 1}], "annotations": []}, "layout of COCO.*file_name"),
    ("a.json", {"images": [], "annotations": [{"image_id": 5, "caption": "x"}]}, "layout"),
    ("a.json", {"images": [{"filename": "a.jpg", "split": "other", "sentences": []}]}, "layout"),
    ("a.json", {"images": 3}, "layout"),
    ("a.json", ["a"], "must be an object"),
    ("a.json", {"a": "no list"}, "must be a list of texts"),
    ("a.txt", "a line without a tab", "line 1 is not"),
    ("a.txt", "a.jpg#0\t \n", "line 1 is not"),
    ("a.txt", "image,text\na.jpg,x\n", "layout"),
])
def test_annotations_that_are_none(tmp_path, name, content, said):
    with pytest.raises(CorpusError, match=f"{name}: .*{said}"):
        read_pictures(written(tmp_path/name, content))


def test_lots_are_drawn_by_name():
    names = [f"picture {number}" for number in range(300)]
    lots = draw_by_name(names)
    assert lots == draw_by_name(names[::-1])
    assert [list(lots.values()).count(split) for split in ("train", "validation", "test")] == [
        288, 6, 6]
    assert sorted(draw_by_name("abc").values()) == ["test", "train", "validation"]


def test_a_file_of_splits_is_believed(tmp_path):
    plain = written(tmp_path/"plain.json", {name: ["words"] for name in "abc"})
    splits = written(tmp_path/"splits.json", {"train": ["b"], "validation": ["a"], "test": ["c"]})
    found = read_pictures(plain, splits=splits)
    assert found.splits == {"b": "train", "a": "validation", "c": "test"}


def test_two_pictures_of_one_name_and_folders_without_any(tmp_path):
    with pytest.raises(FileError, match="no picture in this folder"):
        list_pictures(tmp_path)
    draw(tmp_path/"a.jpg")
    (tmp_path/"more").mkdir()
    draw(tmp_path/"more"/"b.PNG")
    draw(tmp_path/".hidden.png")
    assert list(list_pictures(tmp_path)) == ["a", "b"]
    draw(tmp_path/"more"/"a.png")
    with pytest.raises(FileError, match="same id as"):
        list_pictures(tmp_path)


# a corpus
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    "Thirty pictures with four captions each, one of them broken."
    folder = tmp_path_factory.mktemp("pictures")
    (folder/"p").mkdir()
    colours = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}
    captions = {}
    for number in range(30):
        name = list(colours)[number % 3]
        image = Image.new("RGB", (40 + number, 30), colours[name])
        image.save(folder/"p"/f"{number}.jpg")
        captions[f"{number}"] = [f"a {name} picture", f"it is {name}", f"{name}", f"all {name}"]
    (folder/"p"/"4.jpg").write_bytes(b"not a picture")
    written(folder/"captions.json", captions)
    return folder


def test_a_corpus_of_pictures_has_one_frame_each(folder, tmp_path):
    made = prepare_dataset(tmp_path/"corpus", "pictures", folder/"captions.json", folder/"p",
                           load_backbone("tiny"), workers=1, progress=False)
    corpus = made.corpus
    assert corpus.features.shape == (29, 1, 256) and corpus.glances.shape == (29, 1, 3136)
    assert corpus.settings.frames == 1 and list(made.failed) == ["4"]
    frame = read_picture(folder/"p"/"0.jpg", 96)[None]
    first = corpus.features[corpus.ids.index("0"), 0].float()
    torch.testing.assert_close(first, load_backbone("tiny")(frame)[0], rtol=1e-2, atol=1e-2)


def test_the_command_trains_on_pictures_and_a_picture_is_captioned(folder, tmp_path):
    picknet = lambda *words: CliRunner().invoke(app, [str(each) for each in words])
    made = picknet("prepare", "pictures", "--annotations", folder/"captions.json", "--videos",
                   folder/"p", "--out", tmp_path/"corpus", "--backbone", "tiny", "--workers", 1)
    assert "29 videos" in made.output and made.exit_code == 3, made.output
    assert "4.jpg: not a JPEG" in made.output
    trained = picknet("train", tmp_path/"run", "--data", tmp_path/"corpus", "--scale", "smoke",
                      "--experiment", "Baseline", "--set", "min_picks=1",
                      "--set", "captions_together=4")
    assert trained.exit_code == 0, trained.output
    said = load_captioner(tmp_path/"run", device="cpu").caption(folder/"p"/"0.jpg")
    assert said.picked == [0]
    refused = picknet("caption", folder/"p"/"0.jpg", "--model", tmp_path/"run")
    assert "is a picture (JPEG), not a video" in str(refused.exception)
