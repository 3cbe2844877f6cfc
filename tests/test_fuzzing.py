"""Thousands of wrong inputs, a tenth of them daily. Each gives a right result or one of our own
errors with the file named; no hang, no crash, no half file."""
import csv
import io
import json
import shutil
import zipfile
from collections import Counter
from dataclasses import asdict
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import reliability
import safetensors.torch
import torch
from conftest import long_but, noise_corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reliability import (
    READ, REFUSED, SCALE, a_tenth, damage, in_children, leftovers, outcome_of, settle, tally)

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import ClipSettings, load_config, preset
from picknet_nb.data.backbones import load_backbone, read_weights
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.annotations import read_captions
from picknet_nb.data.own_features import prepare_features
from picknet_nb.data.splits import read_splits
from picknet_nb.data.extraction import extract_folder, read_part, write_part
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.data.msvd_files import read_mapping
from picknet_nb.data.text import Vocabulary
from picknet_nb.data.video import read_clip, stream_frames
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.stages import Model
from picknet_nb.training.runs import open_run, save_weights
from picknet_nb.measure import metrics

av = pytest.importorskip("av")
EXAMPLE = Path(__file__).parents[1]/"data"/"example.mp4"
FRAMES, SIDE = 8, 24
quietly = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


# videos
# --------------------------------------------------------------------------------------------------


def film(
    path: Path,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    shape=(48, 48),
    stamps=range(0, 64, 4),
    container=None,
) -> Path:
    "Frames that grow brighter, at the given hundredths of a second."
    with av.open(str(path), "w", options=container or {}) as output:
        stream = output.add_stream(codec, rate=25)
        (stream.width, stream.height), stream.pix_fmt, stream.codec_context.time_base = (
            shape,
            pixels,
            Fraction(1, 100),
        )
        for number, stamp in enumerate(stamps):
            picture = np.full((shape[1], shape[0], 3), 20 + 200 * number // len(stamps), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format=pixels)
            frame.pts, frame.time_base = stamp, Fraction(1, 100)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


KINDS = {
    "h264.mp4": {},
    "first.mp4": dict(container={"movflags": "faststart"}),
    "pieces.mp4": dict(container={"movflags": "frag_keyframe+empty_moov"}),
    "h264.mkv": {},
    "vp9.webm": dict(codec="libvpx-vp9"),
    "mpeg4.avi": dict(codec="mpeg4"),
    "mjpeg.avi": dict(codec="mjpeg", pixels="yuvj420p"),
    "h264.ts": {},
    "mpeg2.mpg": dict(codec="mpeg2video"),
    "flash.flv": dict(codec="flv1"),
    "palette.gif": dict(codec="gif", pixels="rgb8"),
}


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> dict[str, bytes]:
    "One file of each kind, and the example of the repository."
    folder = tmp_path_factory.mktemp("films")
    return {"example.mp4": EXAMPLE.read_bytes()} | {
        name: film(folder / name, **how).read_bytes() for name, how in KINDS.items()
    }


def watch(path) -> None:
    "Read a file in both ways; what comes out must have the form that was promised."
    av.logging.set_level(av.logging.PANIC)
    streamed, refused = None, None
    try:
        streamed = list(islice(stream_frames(str(path), rate=5, size=SIDE, time_limit=5), 100))
    except PickNetError as error:
        refused = error
        assert str(path) in str(error), f"unnamed: {error}"
    assert streamed is None or all(
        frame.shape == (3, SIDE, SIDE) and np.isfinite(time) for time, frame in streamed
    )
    clip = read_clip(path, FRAMES, SIDE, time_limit=5)
    assert clip.frames.shape == (FRAMES, 3, SIDE, SIDE) and clip.frames.dtype == torch.uint8
    assert clip.times.shape == (FRAMES,) and clip.times.isfinite().all()
    assert clip.times[0] >= 0  # later than 0 where the first frames are damaged


def film_of(name: str) -> str:
    "The film that an input was made from: the end of its name."
    return name.rpartition("_")[2]


def try_videos(kind: str, folder: Path, contents: dict[str, bytes], of=film_of) -> Counter:
    "Write each, watch each, forget each."
    paths = []
    for name, content in a_tenth(contents, of).items():
        paths.append(folder/name)
        paths[-1].write_bytes(content)
    return settle(kind, in_children(watch, paths))


def test_videos_cut_at_every_twentieth(films, tmp_path):
    counts = try_videos(
        "videos, truncated",
        tmp_path,
        {
            f"{percent:02d}_{name}": content[: len(content) * percent // 100]
            for name, content in films.items()
            for percent in range(0, 100, 5)
        },
    )
    assert counts[REFUSED] > counts[READ]


def test_videos_with_damage(films, tmp_path):
    try_videos(
        "videos, damaged",
        tmp_path,
        {
            f"{seed}_{name}": damage(content, (name, seed))
            for name, content in films.items()
            for seed in range(120 * SCALE)
        },
    )


def test_videos_with_the_header_of_another(films, tmp_path):
    try_videos(
        "videos, wrong header",
        tmp_path,
        {
            f"{length}_{one}_as_{other}": head[:length] + body[length:]
            for one, head in films.items()
            for other, body in films.items()
            if one != other
            for length in (16, 400)[: 1 + (SCALE > 1)]
        },
    )


def fields(content: bytes, box: bytes, offset: int, size: int):
    "Where a field stands in every box of an MP4 that has this name."
    at = content.find(box)
    while at >= 0:
        yield slice(at + 4 + offset, at + 4 + offset + size)
        at = content.find(box, at + 4)


def test_videos_without_duration_or_of_absurd_size(films, tmp_path):
    "Fields of the headers set to nothing and to the largest number: times, sizes, counts."
    spots = {
        "mvhd time scale": (b"mvhd", 12, 4),
        "mvhd duration": (b"mvhd", 16, 4),
        "tkhd duration": (b"tkhd", 20, 4),
        "mdhd time scale": (b"mdhd", 12, 4),
        "mdhd duration": (b"mdhd", 16, 4),
        "tkhd size": (b"tkhd", 76, 8),
        "avc1 size": (b"avc1", 24, 4),
        "stts count": (b"stts", 4, 4),
        "stts delta": (b"stts", 12, 4),
        "stsz size": (b"stsz", 4, 4),
        "stsz count": (b"stsz", 8, 4),
        "stco count": (b"stco", 4, 4),
        "stco place": (b"stco", 8, 4),
        "stsc count": (b"stsc", 4, 4),
        "ctts count": (b"ctts", 4, 4),
        "elst": (b"elst", 4, 16),
        "avcC": (b"avcC", 0, 8),
        "moov length": (b"moov", -8, 4),
        "mdat length": (b"mdat", -8, 4),
        "avih size": (b"avih", 36, 8),
        "avih frames": (b"avih", 20, 4),
        "strf size": (b"strf", 8, 8),
        "strh scale": (b"strh", 24, 8),
        "gif size": (b"GIF8", 2, 4),
        "mkv width": (b"\xb0", -3, 2),
    }
    contents = {}
    for name, content in films.items():
        for field, spot in spots.items():
            for value in (b"\0", b"\xff", b"\x7f"):
                changed = bytearray(content)
                for place in fields(content, *spot):
                    changed[place] = value * (place.stop - place.start)
                if changed != content:
                    contents[f"{field}_{value.hex()}_{name}".replace(" ", "-")] = bytes(changed)
    assert len(contents) >= 100
    try_videos("videos, zero durations and absurd sizes", tmp_path, contents,
               lambda name: name.partition("_")[0])  # each field once


def test_odd_pixels_and_shapes(tmp_path):
    "Every pixel format that lossless codecs know: each must be read, and read right."
    paths, wanted = [], []
    for codec, ending in (
        ("ffv1", "mkv"),
        ("rawvideo", "nut"),
        ("png", "mov"),
        ("huffyuv", "avi"),
        ("qtrle", "mov"),
    ):
        for pixels in av.codec.Codec(codec, "w").video_formats or [
            av.VideoFormat("nv12"),
            av.VideoFormat("yuv410p"),
            av.VideoFormat("gray16be"),
        ]:
            wanted.append(
                (tmp_path/f"{codec}_{pixels.name}.{ending}", codec, pixels.name, (32, 32))
            )
    wanted += [
        (tmp_path/f"{width}x{height}.mkv", "ffv1", "gbrp", (width, height))
        for width, height in ((1, 1), (1, 999), (2000, 2), (3, 5), (17, 31))
    ]
    for path, codec, pixels, shape in a_tenth(wanted, lambda each: each[1]):
        try:
            paths.append(film(path, codec, pixels, shape, range(0, 36, 4)))
        except (av.error.FFmpegError, ValueError, KeyError):
            continue  # this FFmpeg cannot write it

    def brighter(path):
        watch(path)
        light = read_clip(path, FRAMES, SIDE).frames.float().mean((1, 2, 3))
        first = light[0].item()
        assert (light.diff() >= -1).all() and (light[-1] - first > 100 or "mono" in path.name), (
            f"{light.tolist()}"
        )

    assert len(paths) > (40 if reliability.LONG else 4)
    counts = settle("videos, odd pixel formats and shapes", in_children(brighter, paths))
    assert counts[READ] == len(paths)


def test_variable_frame_rates(tmp_path):
    "Times and order of frames follow the stamps, however uneven they are."
    cases = {}
    for seed in a_tenth(range(30 * SCALE), lambda seed: seed % 4):
        draw = np.random.RandomState(seed)
        gaps = draw.choice([1, 2, 4, 50, 3000][: 2 + seed % 4], draw.randint(1, 30))
        cases[film(tmp_path/f"{seed}.mkv", stamps=[0, *np.cumsum(gaps).tolist()])] = np.cumsum(
            [0, *gaps]
        )

    def on_time(path):
        watch(path)
        stamps = cases[path]
        clip = read_clip(path, FRAMES, SIDE)
        order = [round(k * (len(stamps) - 1) / (FRAMES - 1)) for k in range(FRAMES)]
        np.testing.assert_allclose(clip.times, stamps[order] / 100, atol=0.011)
        assert (clip.frames.float().mean((1, 2, 3)).diff() >= -1).all()

    assert settle("videos, variable frame rate", in_children(on_time, list(cases)))[READ] == len(
        cases
    )


# captions, splits, settings: texts
# ----------------------------------------------------------------------------------

ODD = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "x",
    "²",
    "\ud83d\ude00",
    "../up",
    [],
    {},
    [[]],
    [None],
    {"": 0},
    ["a", 1],
]
SENTENCES = {
    "videos": [
        {"video_id": f"video{n}", "split": split}
        for n, split in enumerate(("train", "validate", "test"))
    ],
    "sentences": [{"video_id": f"video{n % 3}", "caption": "a man runs"} for n in range(6)],
}
CAPTIONS = {"a": ["a man runs", "someone is running"], "b": ["a dog"], "c": ["two words", ""]}


def _table(rows) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


CSV = _table(
    [
        ("VideoID", "Start", "End", "Source", "AnnotationTime", "Language", "Description"),
        *(
            (f"v{n}", n, n + 5, "clean", 12, "English" if n % 3 else "Dutch", 'a "quoted", caption')
            for n in range(9)
        ),
    ]
)
TEXTS = {  # name, a right content, who reads it
    "captions.json": (CAPTIONS, read_captions),
    "msrvtt.json": (SENTENCES, read_msrvtt),
    "splits.json": (
        {"train": ["a"], "validation": ["b"], "test": ["c"]},
        lambda path: read_splits(path, ["a", "b", "c"]),
    ),
    "named.json": (
        {"a": "train", "b": "val", "c": "test"},
        lambda path: read_splits(path, ["a", "b", "c"]),
    ),
    "candidates.json": ({"a": "a man", "b": "a dog"}, metrics.read_candidates),
    "records.json": (
        [{"image_id": 1, "caption": "a man"}, {"id": "b", "caption": "a dog"}],
        metrics.read_candidates,
    ),
    "references.json": (
        {"annotations": [{"image_id": 1, "caption": "a man"}]},
        metrics.read_references,
    ),
    "config.json": (json.loads(json.dumps(asdict(preset("smoke")))), load_config),
    "old_config.json": (preset("smoke").flat(), load_config),
    "vocabulary.json": (["<pad>", "<bos>", "<eos>", "<unk>", "a", "man"], Vocabulary.load),
}
PLAIN = {
    "corpus.csv": (CSV, read_captions),
    "mapping.txt": (b"a_1_2 vid1\nb_3_4 vid2\n", read_mapping),
    **{name: (json.dumps(content).encode(), read) for name, (content, read) in TEXTS.items()},
}


def spots(value, here=()) -> list[tuple]:
    "The way to every place in a JSON value."
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [here, *(spot for key, each in inside for spot in spots(each, (*here, key)))]


def changed(value, spot: tuple, new, remove: bool):
    "The value with something else, or nothing, at one place."
    if not spot:
        return new
    inside = dict(value) if isinstance(value, dict) else list(value)
    if remove and len(spot) == 1:
        del inside[spot[0]]
    else:
        inside[spot[0]] = changed(inside[spot[0]], spot[1:], new, remove)
    return inside


odd_values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("name", TEXTS)
def test_json_with_something_else_in_one_place(tmp_path, name):
    (content, read), paths = TEXTS[name], []
    # every place once with each of the usual suspects, and once with nothing there
    for spot in spots(content):
        for place, new in enumerate(
            ODD if len(spots(content)) < 12 or SCALE > 1 else ODD[len(spot) % 5 :: 5]
        ):
            for remove in (False, True)[: 1 + (place == 0 and bool(spot))]:
                paths.append(
                    tmp_path/f"{len(paths)}_{'.'.join(map(str, spot))[:80]}_{place}.json"
                )
                paths[-1].write_text(json.dumps(changed(content, spot, new, remove)))
    settle(f"texts, {name}", in_children(read, a_tenth(paths)))


@pytest.mark.parametrize("name", TEXTS)
def test_json_that_hypothesis_invents(tmp_path, name):
    content, read = TEXTS[name]
    path, places = tmp_path/name, spots(content)

    @settings(quietly, max_examples=len(a_tenth(range(40 * SCALE))))
    @given(st.sampled_from(places), odd_values)
    def attempt(spot, new):
        path.write_text(json.dumps(changed(content, spot, new, False)))
        settle(f"texts, {name}", {spot: outcome_of(read, path)})

    attempt()


@pytest.mark.parametrize("name", PLAIN)
def test_texts_with_damage(tmp_path, name):
    """Bits, cuts, holes, bytes that are no UTF-8; then what editors leave: a byte order mark,
    UTF-16, NUL, an empty file."""
    content, read = PLAIN[name]
    contents = [damage(content, (name, seed)) for seed in a_tenth(range(40 * SCALE))]
    contents += [
        b"",
        b"\0" * 50,
        b"\xef\xbb\xbf" + content,
        content.decode().encode("utf-16"),
        content.replace(b"a", b"\xe9"),
        b"[" * 100_000,
        b"1" * 5000,
        content * 2,
        content.replace(b"\n", b"\r"),
        b'{"a":' * 5000,
        b'"' + b"x" * 200_000,
    ]
    paths = []
    for number, each in enumerate(contents):
        paths.append(tmp_path/f"{number}_{name}")
        paths[-1].write_bytes(each)
    settle(f"texts, {name}", in_children(read, paths))


def test_repeated_names_are_refused_or_kept_whole(tmp_path):
    "The same video twice must never lose captions in silence."
    outcomes = {}
    (path := tmp_path/"captions.json").write_text('{"a": ["one"], "a": ["two"]}')
    outcomes["captions"] = outcome_of(read_captions, path)
    assert outcomes["captions"] == REFUSED
    (path := tmp_path/"splits.json").write_text(
        '{"train": ["a", "b"], "validation": [], "test": ["a"]}'
    )
    outcomes["splits"] = outcome_of(lambda path: read_splits(path, ["a", "b"]), path)
    assert outcomes["splits"] == REFUSED
    (path := tmp_path/"mapping.txt").write_text("a vid1\na vid1500\n")
    outcomes["mapping"] = outcome_of(read_mapping, path)
    assert outcomes["mapping"] == REFUSED
    (path := tmp_path/"references.json").write_text('{"a": ["one"], "a": ["two"]}')
    assert metrics.read_references(path) == {"a": ["one", "two"]}
    settle("texts, repeated names", outcomes)


def test_small_things_that_once_got_through(tmp_path):
    """Half a surrogate pair, a number too large to count to, a record of an extraction that is
    none, digits that are no number."""
    cases = {
        "captions.json": (rb'{"a": ["\ud83d"]}', read_captions),
        "ids.json": (rb'{"\ud83d": ["a"]}', read_captions),
        "config.json": (b'{"max_words": 1180591620717411303424}', load_config),
        "mapping.txt": ("a vid\u00b2".encode(), read_mapping),
        "parts/made_with.json": (
            b"[]",
            lambda path: extract_folder({}, path.parents[1], load_backbone("tiny"), progress=False),
        ),
    }
    outcomes = {}
    for name, (content, read) in cases.items():
        (path := tmp_path / name).parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        outcomes[name] = outcome_of(read, path)
    assert set(outcomes.values()) == {REFUSED}, outcomes
    settle("texts, small things", outcomes)


@pytest.mark.parametrize("count", long_but((50_000, 1_000_000), 50_000))
def test_a_million_captions_on_one_video(tmp_path, count):
    (path := tmp_path/"captions.json").write_text(
        json.dumps({"a": ["a man runs"] * count, "b": ["a dog"]})
    )
    captions = read_captions(path)
    assert len(captions["a"]) == count
    corpus = Corpus.build(
        "many",
        ["a", "b"],
        torch.zeros(2, 4, 3),
        None,
        list(captions.values()),
        {"train": [0, 1], "validation": [], "test": []},
        ClipSettings(frames=4, min_word_count=1, glance="feature"),
    )
    assert corpus.words.shape == (count + 1, 20) and len(corpus.vocabulary) == 4 + 4
    tally("inputs", "texts, a million captions on one video", READ)


# feature files
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path) -> tuple[Path, Path]:
    "Captions and splits of three videos."
    (tmp_path/"captions.json").write_text(json.dumps(CAPTIONS))
    (tmp_path/"splits.json").write_text(
        json.dumps({"train": ["a"], "validation": ["b"], "test": ["c"]})
    )
    return tmp_path/"captions.json", tmp_path/"splits.json"


def some_features() -> dict[str, np.ndarray]:
    draw = np.random.RandomState(0)
    return {name: draw.rand(FRAMES, 6).astype(np.float32) for name in "abc"}


def feature_file(path: Path) -> bytes:
    "The same features in the layout that the name asks for."
    arrays = some_features()
    if path.suffix == ".h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(
                    name, data=array, compression="gzip" if "packed" in path.name else None
                )
    elif path.name.startswith("q"):
        np.savez(
            path,
            ids=np.array(list(arrays)),
            q=np.stack([(array.T * 255).astype(np.uint8) for array in arrays.values()]),
            scale=16.0,
        )
    elif path.name.startswith("stacked"):
        np.savez(path, ids=np.array(list(arrays)), features=np.stack(list(arrays.values())))
    else:
        (np.savez_compressed if "packed" in path.name else np.savez)(path, **arrays)
    return path.read_bytes()


def prepare(path, texts, out: Path) -> None:
    "A corpus from this file; where that is refused, nothing may look finished."
    try:
        prepared = prepare_features(
            out, path, *texts, settings=ClipSettings(frames=FRAMES, glance="feature")
        )
        assert (
            prepared.corpus.features.isfinite().all()
            and prepared.corpus.features.shape[1] == FRAMES
        )
        again = Corpus.load(out)
        assert again.ids == prepared.corpus.ids
    except PickNetError:
        assert not (out/"corpus.json").exists()
        raise
    finally:
        assert not list(leftovers(out)), list(leftovers(out))
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize(
    "name", ["named.npz", "packed.npz", "stacked.npz", "q.npz", "named.h5", "packed.h5"]
)
def test_feature_files_with_damage(tmp_path, texts, name):
    content, paths = feature_file(tmp_path / name), []
    for seed in a_tenth(range(60 * SCALE)):
        paths.append(tmp_path/f"{seed}_{name}")
        paths[-1].write_bytes(damage(content, (name, seed)))
    for percent in a_tenth(range(0, 100, 5)):
        paths.append(tmp_path/f"cut{percent}_{name}")
        paths[-1].write_bytes(content[: len(content) * percent // 100])
    counts = settle(
        f"features, {name}",
        in_children(lambda path: prepare(path, texts, tmp_path/f"out_{path.stem}"), paths),
    )
    assert counts[REFUSED]


def test_feature_files_of_the_wrong_kind(tmp_path, texts):
    "Right files with wrong things inside, under every ending."
    good, paths = some_features(), []
    wrong = {
        "words": np.array([["x", "y"]] * FRAMES),
        "objects": np.zeros((FRAMES, 2), "M8[s]"),
        "complex": np.zeros((FRAMES, 2), complex),
        "scalar": np.float32(1),
        "flat": np.zeros(FRAMES),
        "empty": np.zeros((0, 6)),
        "wide": np.zeros((FRAMES, 0)),
        "few": np.zeros((3, 6)),
        "nan": np.full((FRAMES, 6), np.nan),
        "large": np.full((FRAMES, 6), 1e30),
        "fields": np.zeros((FRAMES, 2), [("x", "f4"), ("y", "i2")]),
        "bool": np.zeros((FRAMES, 2), bool),
        "long": np.zeros((FRAMES, 2), np.longdouble),
        "deep": np.zeros((FRAMES, 1, 2, 3)),
    }
    for kind, array in wrong.items():
        paths.append(tmp_path/f"{kind}.npz")
        np.savez(paths[-1], **{**good, "b": array})
        for place, layout in enumerate(
            (
                dict(ids=array),
                dict(ids=np.array(["a", "b"]), features=array),
                dict(ids=np.array(["a", "b", "c"]), q=array, scale=array),
            )
        ):
            paths.append(tmp_path/f"{kind}{place}.npz")
            np.savez(paths[-1], **layout)
    arrays = io.BytesIO()
    np.save(arrays, np.stack(list(good.values())))
    header = lambda text: b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text
    for kind, content in {
        "array": arrays.getvalue(),
        "text": b"not features",
        "nothing": b"",
        "torch": b"PK\x03\x04",
        "pickle": b"\x80\x04]\x94.",
    }.items():
        for ending in ("npz", "h5", "hdf5", "mat"):
            paths.append(tmp_path/f"{kind}.{ending}")
            paths[-1].write_bytes(content)
    for kind, text in {
        "huge": b"{'descr': '<f4', 'fortran_order': False, 'shape': (8, 10000000000000), }\n",
        "code": b"__import__('os').system('true')\n",
        "open": b"{'descr': '<f4', 'shape': (((((\n",
        "minus": b"{'descr': '<f4', 'fortran_order': False, 'shape': (8, -6), }\n",
        "object": b"{'descr': '|O', 'fortran_order': False, 'shape': (8, 6), }\n",
        "indent": b"  {\n\t'descr'\n  'x'\n",
    }.items():
        folder = tmp_path/f"{kind}_npy"
        folder.mkdir()
        for name in "abc":
            (folder/f"{name}.npy").write_bytes(header(text) + b"\0" * 200)
        paths.append(folder)
        with zipfile.ZipFile(tmp_path/f"{kind}_inside.npz", "w") as archive:
            for name in "abc":
                archive.writestr(f"{name}.npy", header(text) + b"\0" * 200)
        paths.append(tmp_path/f"{kind}_inside.npz")
    some = a_tenth(paths, lambda path: path.stem.rstrip("012"))
    settle(
        "features, wrong content",
        in_children(lambda path: prepare(path, texts, tmp_path/f"out_{path.name}"), some),
    )


def test_weights_and_parts_with_damage(tmp_path):
    "`.safetensors`, `.pth` in both formats of torch, and the parts of an extraction."
    state = {"layer.weight": torch.randn(8, 6), "layer.bias": torch.randn(8)}
    torch.save(state, tmp_path/"new.pth")
    torch.save(state, tmp_path/"old.pth", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(state, tmp_path/"plain.safetensors")
    paths = []
    for name in ("new.pth", "old.pth", "plain.safetensors"):
        content = (tmp_path / name).read_bytes()
        for seed in a_tenth(range(60 * SCALE)):
            paths.append(tmp_path/f"{seed}_{name}")
            paths[-1].write_bytes(damage(content, (name, seed)))
    tensor = lambda kind="F32", shape=(1,), end=4: {
        "dtype": kind,
        "shape": shape,
        "data_offsets": [0, end],
    }
    for kind, header in {
        "huge": {"x": tensor(shape=[10**12], end=4 * 10**12)},
        "type": {"x": tensor("F999")},
        "overlap": {"x": tensor(), "y": tensor()},
        "list": [],
        "minus": {"x": tensor(shape=[-1])},
    }.items():
        paths.append(tmp_path/f"{kind}.safetensors")
        head = json.dumps(header).encode()
        paths[-1].write_bytes(len(head).to_bytes(8, "little") + head + b"\0" * 4)
    settle("features, weights", in_children(read_weights, paths))

    write_part(tmp_path, "clip", torch.randn(FRAMES, 6), torch.zeros(FRAMES, 9, dtype=torch.uint8))
    content, parts = (tmp_path/"parts"/"clip.safetensors").read_bytes(), []
    for seed in a_tenth(range(60 * SCALE)):
        parts.append(tmp_path/"parts"/f"{seed}.safetensors")
        parts[-1].write_bytes(damage(content, seed))
    settle("features, parts", in_children(lambda path: read_part(tmp_path, path.stem), parts))


# folders
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory) -> Path:
    return noise_corpus(videos=10, captions=2, frames=4).save(
        tmp_path_factory.mktemp("corpus")/"noise"
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    "A run that was never trained, but has everything."
    folder = tmp_path_factory.mktemp("runs")/"run"
    config = preset(
        "smoke", hidden=8, word_embedding=8, feature_embedding=8, policy_hidden=8, cnn="tiny"
    )
    features = torch.randn(4, 30, load_backbone("tiny").dims).half()
    glances = torch.zeros(4, 30, 16, dtype=torch.uint8)
    corpus = Corpus.build(
        "toy",
        list("abcd"),
        features,
        glances,
        [["a man runs"]] * 4,
        {"train": [0, 1], "validation": [2], "test": [3]},
        config.clip,
    )
    open_run(folder, corpus, config, Recipe("learned"))
    save_weights(Model.for_corpus(config, corpus).state_dict(), folder/"weights.safetensors")
    return folder


def load_all(path: Path) -> None:
    corpus = Corpus.load(path)
    assert (
        len(corpus.words)
        == len(corpus.caption_video)
        == sum(map(len, corpus.captions))
        == sum(map(len, corpus.sentences))
    )
    assert corpus.features.isfinite().all() and len(corpus.ids) == len(corpus.features)


def test_corpora_with_damage(corpus_folder, tmp_path):
    """One file of the folder damaged, missing, empty, or with something else in one place of its
    JSON; runs are tried by `test_fuzzing_commands`."""
    names, paths = ("corpus.json", "captions.json", "words.json", "videos.safetensors"), []

    def variant(name: str, content: bytes | None) -> None:
        paths.append(tmp_path/f"{len(paths)}_{name}")
        paths[-1].mkdir()
        for each in names:
            if each != name:
                (paths[-1] / each).symlink_to(corpus_folder / each)
        if content is not None:
            (paths[-1] / name).write_bytes(content)

    for name in names:
        content = (corpus_folder / name).read_bytes()
        variant(name, None)
        variant(name, b"")
        for seed in a_tenth(range(25 * SCALE)):
            variant(name, damage(content, (name, seed)))
        if name.endswith(".json"):
            places = spots(json.loads(content))
            for place in a_tenth(places if len(places) < 40 else places[:: len(places) // 40]):
                for number, new in enumerate(ODD if SCALE > 1 else ODD[len(place) % 4 :: 4]):
                    variant(
                        name,
                        json.dumps(changed(json.loads(content), place, new, number == 0)).encode(),
                    )
    settle("folders, corpus", in_children(load_all, paths))


def test_archives_with_damage(tmp_path):
    "Zips of annotations; nothing is written."
    with zipfile.ZipFile(tmp_path/"annotations.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations.json", json.dumps(SENTENCES))
    content, paths = (tmp_path/"annotations.zip").read_bytes(), []
    for seed in a_tenth(range(60 * SCALE)):
        paths.append(tmp_path/f"{seed}_annotations.zip")
        paths[-1].write_bytes(damage(content, ("annotations.zip", seed)))
    settle("archives", in_children(read_msrvtt, paths))
    assert {path.name for path in tmp_path.iterdir()} == {
        "annotations.zip", *(path.name for path in paths)}
