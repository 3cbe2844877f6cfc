"""The second round through the commands: time stamps, colliding names and ids, products of limits,
swollen files, odd arguments. What was read is counted against what was written."""
import csv
import io
import itertools
import json
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Forked
from reliability import READ, REFUSED, SCALE, SEED, a_tenth, count_outputs, damage, leftovers
from test_fuzzing_commands import (
    DRAWN, FOUR, RAW, Toy, commands, damaged_films, each_command, folder_variants, obeyed, picknet,
    run_that_claims, toy_corpus, write_all)
from test_fuzzing_commands import data, films, quickly, toy  # noqa: F401 (fixtures)
from test_hostile_memory import nested, repeated
from test_hostile_times import stamped_film
from test_hostile_weights import BOMBS, CLAIMS, stored
from test_subtitles import read_back

from picknet_nb.core.files import PickNetError, same_name
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.extraction import extract_folder
from picknet_nb.interface import main as cli

av = pytest.importorskip("av")
VideoReformatter = pytest.importorskip("av.video.reformatter").VideoReformatter


def drawing(seed) -> random.Random:
    "Random numbers of one input; a run by hand has others than the suite."
    return random.Random(f"{SEED}{seed}")


# videos: subtitles, drawings, shapes
# ------------------------------------------------------------------------------------------------


def test_subtitles_of_damaged_videos(films, toy, tmp_path):  # noqa: F811
    endings, paths = ("srt", "vtt", "txt", "json"), write_all(
        tmp_path/"films", damaged_films(films, "subtitles", 2))
    (out := tmp_path/"out").mkdir()

    def job(path):
        place = out/f"{path.name}.{endings[paths.index(path) % 4]}"
        try:
            obeyed("caption", path, "--model", toy.run, "--out", place)
        except PickNetError:
            if place.exists():  # the sentences before the damage
                assert place.stat().st_size, "lost output"
                place.unlink()
            raise
        assert place.stat().st_size, "lost output"

    count_outputs("subtitles", out, commands("subtitles, damaged videos", job, paths))


def odd_stamps(seed: int) -> list[int]:
    "Time stamps of 40 frames, in quarters of a second, as no camera writes them."
    draw, count = drawing(seed), 40
    plain = list(range(count))
    far = draw.choice((400, 10**5, 10**8, 2**31 - 1))
    return draw.choice((
        [far, *plain[1:]],
        [*plain[:-1], far],
        [number + far * (number % 2) for number in plain],
        [far] * count,
        draw.sample(plain, count),
        [draw.randrange(far) for _ in plain],
        [far - number for number in plain],
        [-number for number in plain],
        [number if number < 20 else number - 20 for number in plain],
        plain,
    ))


def test_subtitles_whatever_the_stamps_say(toy, tmp_path):  # noqa: F811
    paths = []
    for seed in a_tenth(range(16 * SCALE)):
        path = tmp_path/f"{seed}.{('mkv', 'mp4')[seed % 2]}"
        try:
            paths.append(stamped_film(path, odd_stamps(seed)))
        except (av.error.FFmpegError, OverflowError, ValueError):
            continue  # stamps that this container cannot hold
    (out := tmp_path/"out").mkdir()

    def job(path):
        place = out/f"{path.name}.srt"
        obeyed("caption", path, "--model", toy.run, "--out", place)
        lines = read_back(place.read_text(), ",")
        assert lines and lines[0][0] == 0, f"lost output: {lines}"
        assert all(begin <= end for begin, end, *_ in lines)
        assert all(one[1] <= two[0] + 1e-3 for one, two in itertools.pairwise(lines))

    count_outputs("subtitles", out, commands("subtitles, odd time stamps", job, paths))


STEMS = ("a", "a.mp4", "A", "a.srt", "\u00e1", "a\u0301", "a.png", "b", "b.b", " b", "{}", "c{}")


def test_every_video_of_a_folder_has_an_output_of_its_own(toy, tmp_path):  # noqa: F811
    "Names that are one without their endings, in one folder and in several."
    content, folders = toy.film.read_bytes(), []
    for seed in a_tenth(range(6 * SCALE)):
        draw = drawing(("names", seed))
        folders.append(tmp_path/f"{seed}")
        for _ in range(4):
            name = draw.choice(STEMS) + draw.choice((".mp4", ".mkv", ".mov", ".MP4"))
            (where := folders[-1]/draw.choice(("", "x", "x/y", "z"))).mkdir(
                parents=True, exist_ok=True)
            (where/name).write_bytes(content)
    outputs = {folder: (folder.with_name(f"out{folder.name}"), ending) for folder, ending in zip(
        folders, itertools.cycle((".png", ".srt", ".gif", ".json", ".vtt")))}

    def job(folder):
        out, ending = outputs[folder]
        videos = [path for path in folder.rglob("*") if path.is_file()]
        status, _, complaints = picknet(
            "caption", folder, "--model", toy.run, "--out", out/f"{{}}{ending}")
        made = [path for path in out.rglob("*") if path.is_file()]
        assert status in (0, 1), complaints
        assert len(made) == (0 if status else len(videos)), f"lost output: {made} of {videos}"
        if status:
            raise PickNetError(f"{folder}: {complaints}")

    commands("drawing, names that collide", job, folders)


def odd_film(path: Path, codec="libx264", pixels="yuv420p", shape=(48, 48), turn=0,
             interlaced=False, hdr=False, cover=False) -> Path:
    "A film as some cameras write it: on its side, in half pictures, in many shades, with a cover."
    # of its own: that of PyAV 19 for all frames waits for ever in a fork of a process that used it
    converter = VideoReformatter()
    with av.open(str(path), "w") as output:
        stream = output.add_stream(
            codec, rate=25, options={"x264-params": "tff=1"} if interlaced else {})
        (stream.width, stream.height), stream.pix_fmt = shape, pixels
        if hdr:  # as a television takes it: BT.2020, perceptual quantiser
            context = stream.codec_context
            context.color_primaries, context.color_trc, context.colorspace = 9, 16, 9
        picture = output.add_stream("mjpeg", rate=1) if cover else None
        if cover:
            picture.width, picture.height, picture.pix_fmt = 400, 300, "yuvj420p"
            output.mux(picture.encode(av.VideoFrame(400, 300, "yuvj420p")))
            output.mux(picture.encode())
        for number in range(12):
            shade = np.full((shape[1], shape[0], 3), 20 * number, np.uint8)
            frame = converter.reformat(av.VideoFrame.from_ndarray(shade, "rgb24"), format=pixels)
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    if turn:  # the matrix in the track's header
        content = bytearray(path.read_bytes())
        place = content.index(b"tkhd") + 4 + 40
        one, matrix = 1 << 16, {
            90: (0, 1, 0, -1, 0, 0, 0, 0, 0), 180: (-1, 0, 0, 0, -1, 0, 0, 0, 0),
            270: (0, -1, 0, 1, 0, 0, 0, 0, 0), 45: (7, 7, 0, -7, 7, 0, 9, 9, 0)}[turn]
        for number, value in enumerate((*(each * one for each in matrix[:8]), 1 << 30)):
            content[place + 4 * number:place + 4 * number + 4] = value.to_bytes(
                4, "big", signed=True)
        path.write_bytes(content)
    return path


def odd_films(folder: Path) -> list[Path]:
    "Each kind that this FFmpeg can write, and one transport stream that changes its shape."
    folder.mkdir()
    kinds = {
        **{f"turned{turn}.mp4": dict(turn=turn) for turn in (90, 180, 270, 45)},
        "interlaced.mkv": dict(interlaced=True),
        "interlaced.mpg": dict(codec="mpeg2video", interlaced=True),
        "hdr.mkv": dict(codec="libx265", pixels="yuv420p10le", hdr=True),
        "hdr.mp4": dict(codec="libx265", pixels="yuv420p10le", hdr=True),
        "deep.mkv": dict(codec="ffv1", pixels="gbrp16le"),
        "cover.mp4": dict(cover=True), "cover.mkv": dict(cover=True),
        "alpha.mov": dict(codec="qtrle", pixels="argb"),
        "small.mkv": dict(codec="ffv1", pixels="gbrp", shape=(1, 1)),
        "flat.mkv": dict(codec="ffv1", pixels="gbrp", shape=(16000, 2)),
        "thin.mkv": dict(codec="ffv1", pixels="gbrp", shape=(2, 16000)),
        **{f"{wide}x{high}.mkv": dict(codec="ffv1", pixels="gbrp", shape=(wide, high))
           for wide, high in [(drawing(("shape", seed)).randint(1, 900),
                               drawing(("shape", -seed)).randint(1, 900))
                              for seed in a_tenth(range(1, 4 * SCALE))]},
    }
    paths = []
    for name, how in a_tenth(kinds, lambda name: re.match("[a-z]*", name)[0]).items():
        # in a process of its own: where this FFmpeg cannot write a kind, it may end the process
        if Forked(lambda: odd_film(folder/name, **how)).wait() == 0:
            paths.append(folder/name)
    parts = [odd_film(folder/f"part{width}.ts", shape=(width, height)).read_bytes()
             for width, height in ((64, 128), (256, 64))]
    (folder/"changes.ts").write_bytes(b"".join(parts))
    return [*paths, folder/"changes.ts"]


def test_odd_films_through_every_command(toy, tmp_path):  # noqa: F811
    "Turned, interlaced, deep, with a cover, of any shape: captioned, streamed, drawn, subtitled."
    paths = odd_films(tmp_path/"films")
    (out := tmp_path/"out").mkdir()
    kinds = ("caption", "stream", *DRAWN, "subtitles")
    jobs = {
        f"{kind} {path}": (kind, path)
        for number, path in enumerate(paths)
        for kind in (kinds if SCALE > 1 and number < 15 else kinds[number % 3::3])
    }
    drawn = [name for name, (kind, _) in jobs.items() if kind not in ("caption", "stream")]

    def job(name):
        kind, path = jobs[name]
        if kind in ("caption", "stream"):
            obeyed(kind, path, "--model", toy.run, "--json")
        else:
            ending = {"strip": "png", "gif": "gif", "mp4": "mp4", "subtitles": "srt"}[kind]
            place = out/f"{jobs[name][1].name}{drawn.index(name)}.{ending}"
            obeyed("caption", path, "--model", toy.run, "--out", place)
            assert place.stat().st_size, "lost output"

    each_command("odd films", job, jobs)


# data: ids, tables, features
# ------------------------------------------------------------------------------------------------

IDS = ("clip", "Clip", "CLIP", "caf\u00e9", "cafe\u0301", "stra\u00dfe", "STRASSE", "\ufb01lm",
       "film", "a b", "a-b", "1", "01", "\u0661", "x" * 90, "\u212bngstrom", "\u00e5ngstrom", "z")


def test_ids_that_are_one_and_ids_that_are_not(tmp_path):
    "In features, captions and splits: equal ones are named, of the others none is lost."
    paths, ids = [], {}
    for seed in a_tenth(range(30 * SCALE)):
        draw = drawing(("ids", seed))
        path = tmp_path/f"{seed}"
        path.mkdir()
        ids[path] = draw.sample(IDS, 3 if draw.random() < 0.3 else draw.randint(4, 7))
        write_features(path, ids[path])
        paths.append(path)

    def job(path):
        names = ids[path]
        try:
            obeyed(*from_features(path))
        except PickNetError as error:
            assert len(set(map(same_name, names))) < len(names), f"refused: {error}"
            raise
        assert len(set(map(same_name, names))) == len(names), f"not noticed: {names}"
        assert sorted(Corpus.load(path/"out").ids) == sorted(names), "lost output"

    commands("prepare, ids", job, paths)


def write_features(folder: Path, names, array=None) -> None:
    "Features, captions and splits of some clips; the first clip has the array that is given."
    shape = np.zeros((6, 8), np.float32)
    np.savez(folder/"features.npz", **{
        name: shape if number or array is None else array for number, name in enumerate(names)})
    (folder/"captions.json").write_text(json.dumps({name: ["a man runs"] for name in names}))
    (folder/"splits.json").write_text(json.dumps(
        {"train": names[:-2], "validation": names[-2:-1], "test": names[-1:]}))


def from_features(folder: Path) -> tuple:
    return ("prepare", "features", "--features", folder/"features.npz", "--captions",
            folder/"captions.json", "--splits", folder/"splits.json", "--set", "frames=6", "--set",
            "min_word_count=1", "--out", folder/"out")


def test_features_that_are_no_numbers_or_too_large_for_half_precision(tmp_path):
    paths = []
    for seed in a_tenth(range(20 * SCALE)):
        draw = drawing(("features", seed))
        path = tmp_path/f"{seed}"
        path.mkdir()
        kind = draw.choice(("f2", "f4", "f8", "i4", "i8", "u1", "c8", "?", "U3", "O"))
        array = np.zeros(draw.choice([(6, 8), (6, 8), (6, 8), (6,), (0, 8), (6, 0), (1, 6, 8)]))
        array = array.astype(kind)
        if array.size and kind != "U3":
            with np.errstate(all="ignore"):
                value = draw.choice((np.nan, np.inf, -np.inf, 65504, 65520, 7e4, 1e38, 1e300, -1))
                if kind in ("f2", "f4", "f8", "c8", "O"):
                    array.flat[draw.randrange(array.size)] = value
                elif abs(value) < 1e9:
                    array.flat[0] = np.array(value).astype(kind)
        write_features(path, ["a", "b", "c", "d"], array)
        paths.append(path)

    def job(path):
        obeyed(*from_features(path))
        corpus = Corpus.load(path/"out")
        assert corpus.features.isfinite().all() and len(corpus.ids) == 4, "lost output"

    commands("prepare, odd features", job, paths)


SAID = ("a man runs", "a \"quoted\" man, running", "one,two", "'", "\"", "a\tb", " blank ", "a;b",
        "caf\u00e9", "\ufeffa", "a\\b", "=1+1", "a''b", "\u201ca\u201d")


def test_tables_with_odd_quotation_marks(data, tmp_path):  # noqa: F811
    "What Python's own writer makes, in any dialect of commas, loses no caption; damage is named."
    paths, said = [], {}
    names = [f"video{number}_1_2" for number in range(4)]
    write_all(tmp_path/"videos", {
        f"{name}.mp4": (data/"videos"/"video0.mp4").read_bytes() for name in names})
    extract_folder(tmp_path/"videos", tmp_path/"made", load_backbone("tiny"), 4, workers=1)
    (tmp_path/"mapping.txt").write_text("".join(
        f"{name} vid{place}\n" for name, place in zip(names, (1, 1201, 1301, 2))))
    for seed in a_tenth(range(12 * SCALE), lambda seed: seed % 3 == 2):
        draw, text = drawing(("table", seed)), io.StringIO()
        table = csv.writer(text, quoting=draw.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL)),
                           lineterminator=draw.choice(("\n", "\r\n")))
        table.writerow(("VideoID", "Start", "End", "Source", "AnnotationTime", "Language",
                        "Description"))
        rows = [draw.choice(SAID) for _ in range(12)]
        for number, caption in enumerate(rows):
            table.writerow((f"video{number % 4}", 1, 2, "clean", 12, "English", caption))
        content = text.getvalue().encode(draw.choice(("utf-8", "utf-8-sig")))
        path = tmp_path/f"{seed}.csv"
        if seed % 3 == 2:
            content = damage(content, ("table", seed))
        else:
            said[path] = sum(any(letter.isalnum() for letter in row) for row in rows)
        path.write_bytes(content)
        paths.append(path)

    def job(path):
        shutil.copytree(tmp_path/"made", out := tmp_path/f"out{path.stem}")
        try:
            obeyed("prepare", "msvd", "--annotations", path, "--splits",
                   tmp_path/"mapping.txt", "--videos", tmp_path/"videos", *FOUR, "--out", out)
        except PickNetError as error:
            assert path not in said, f"refused: {error}"
            raise PickNetError(f"{path}: {error}") from error
        if path in said:
            found = sum(map(len, json.loads((out/"captions.json").read_text()).values()))
            assert found >= said[path], f"lost output: {found} of {said[path]} captions"

    commands("prepare, odd tables", job, paths)


# runs: products, swollen files, exports
# ------------------------------------------------------------------------------------------------


def test_models_whose_numbers_multiply(toy, tmp_path):  # noqa: F811
    "Each number is within its own limit: the clip is captioned, or refused by what they come to."
    runs = []
    for seed in a_tenth(range(8 * SCALE)):
        draw = drawing(("product", seed))
        run = run_that_claims(
            toy, tmp_path/f"{seed}", frames=draw.choice((6, 100, 500, 1000)),
            max_words=draw.choice((8, 100, 1000)))
        about = json.loads((run/"run.json").read_text())
        about["recipe"] |= {"picker": draw.choice(("all", "uniform")), "picks": None}
        if about["recipe"]["picker"] == "uniform":
            about["recipe"]["picks"] = draw.choice((1, 6, 60, 1000))
        about["speech"] = {"beam": draw.choice((1, 5, 20, 100)), "no_repeats": draw.random() < 0.5}
        (run/"run.json").write_text(json.dumps(about))
        runs.append(run)

    def job(run):
        try:
            obeyed("caption", toy.film, "--model", run, "--json", "--best", "1")
        except PickNetError as error:
            raise PickNetError(f"{run}: {error}") from error

    commands("models, products", job, runs, good_film=True)


def test_resumed_training_from_swollen_checkpoints(toy, tmp_path):  # noqa: F811
    "A tensor that repeats one number, a list that stands in many, in any place of a checkpoint."
    stored = torch.load(toy.folder/"early"/"checkpoint.pt", weights_only=True)

    def places(value, here=()):
        inside = value.items() if isinstance(value, dict) else (
            enumerate(value) if isinstance(value, list) else ())
        return [here, *(place for key, each in inside for place in places(each, (*here, key)))]

    paths, every = [], places(stored)[1:]
    for seed in a_tenth(range(10 * SCALE)):
        draw = drawing(("swollen", seed))
        whole = torch.load(toy.folder/"early"/"checkpoint.pt", weights_only=True)
        *way, last = draw.choice(every)
        inside = whole
        for step in way: inside = inside[step]
        inside[last] = draw.choice((
            lambda: repeated(draw.choice((10**8, 10**9))), lambda: repeated(30_000, 30_000),
            lambda: nested(9), lambda: ["x" * 100_000] * 10_000, lambda: {"a": nested(9)},
            lambda: torch.zeros(1, dtype=torch.uint8).expand(10**9)))()
        paths.append(tmp_path/f"{seed}_{'.'.join(map(str, (*way, last)))[:60]}")
        shutil.copytree(toy.folder/"early", paths[-1], ignore=shutil.ignore_patterns(".lock*"))
        torch.save(whole, paths[-1]/"checkpoint.pt")
    found = commands("train --resume, swollen checkpoints",
                     lambda path: obeyed("train", path, "--resume"), paths, good_film=True)
    assert found[REFUSED] == len(paths)


def test_swollen_weights_of_a_backbone(data, tmp_path):  # noqa: F811
    paths = []
    for number, (content, _) in enumerate(CLAIMS.values()):
        torch.save(content, path := tmp_path/f"{number}.pth",
                   _use_new_zipfile_serialization=bool(number % 2))
        paths.append(path)
    pytest.importorskip("timm")  # once: CLIP's network is timm's
    paths += [stored(tmp_path/f"{number}.pt", content, old=bool(number % 2))
              for number, content in enumerate(BOMBS.values())]
    whole = [path.read_bytes() for path in paths]
    for seed in a_tenth(range(8 * SCALE)):
        paths += write_all(tmp_path, {f"damaged{seed}.pt": damage(whole[seed % len(whole)], seed)})

    def job(path):
        obeyed("prepare", "videos", "--captions", data/"captions.json", "--videos", data/"videos",
               "--out", tmp_path/"out"/path.name, "--backbone",
               "clip-vit-b16" if path.suffix == ".pt" else "resnet18", "--weights", path)

    assert commands("weights, swollen", job, paths)[REFUSED] == len(paths)


MODEL = {"run.json", "config.json", "vocabulary.json", "weights.safetensors", "card.md"}


def test_exports_of_damaged_runs(toy, tmp_path):  # noqa: F811
    "A model is whole or absent."
    paths = folder_variants(
        toy.run, ("run.json", "config.json", "vocabulary.json", "weights.safetensors"),
        tmp_path/"runs", 4, every=90)

    def job(path):
        out = tmp_path/"out"/path.name/"model"
        try:
            obeyed("export", path, out)
        finally:
            left = {each.name for each in out.iterdir()} if out.exists() else set()
            assert left in (set(), MODEL), left
            assert not out.parent.exists() or not list(leftovers(out.parent)), "hidden folders"
        assert left == MODEL, "lost output"

    commands("export, damaged runs", job, paths, good_film=True)


# arguments
# ------------------------------------------------------------------------------------------------

VALUES = ("", " ", "-1", "0", "1", "1e400", "nan", "-inf", "9" * 30, "\x1b[2J", "\u00e9", "a\nb",
          "../nowhere", "a" * 5000, "%s", "{}", "{0.__class__}", "~", "con", os.fsdecode(b"\xff"),
          ".", "..", "x.png", "x.mp4", "1,2", "True", "null", "=", "frames=", "frames=nan", "=1",
          "frames=1e99", "seed=-1", "none:none", ":", "os:system", "uniform-0", "uniform-99999",
          "random--1", "kmeans-x", "timm:", "tiny:x", "file:x", "\0", "a=b=c", "\u202e", "--help")


def base_calls(toy: Toy, folder: Path) -> dict[str, tuple]:  # noqa: F811
    "A right and quick call of each command that neither serves nor trains."
    (folder/"said.json").write_text('{"a": "a man runs"}')
    (folder/"known.json").write_text('{"b": ["a man runs"]}')
    return {
        "caption": (toy.film, "--model", toy.run),
        "stream": (toy.film, "--model", toy.run, "--rate", "5"),
        "export": (toy.run, "model"),
        "score": (folder/"said.json", "--references", folder/"known.json"),
        "evaluate": ("--model", toy.run, "--no-scores"),
        "info": (),
        "models": (),
        "prepare features": (*from_features(folder)[2:-1], "corpus"),
        "prepare join": (toy.corpus, "--out", "joined"),
    }


def test_options_with_anything_in_them(toy, tmp_path):  # noqa: F811
    """Each option of each command with a value that nobody would type: an answer, or a sentence;
    nothing is written outside of the current folder."""
    write_features(tmp_path, ["a", "b", "c", "d"])
    calls, jobs = base_calls(toy, tmp_path), {}
    before = sorted(path for path in tmp_path.rglob("*"))
    top = cli.typer.main.get_command(cli.app) if not hasattr(cli.app, "commands") else cli.app
    for name, given in calls.items():
        command = top
        for word in name.split(): command = command.commands[word]
        for option in command.params:
            if not option.opts[0].startswith("--") or getattr(option, "is_flag", False):
                continue
            values = [(number, VALUES[number]) for number in range(len(VALUES))
                      if (number + len(option.opts[0])) % max(1, 10 // SCALE) == 0]
            for number, value in values:
                jobs[f"{name} {option.opts[0]} {number}"] = (
                    *name.split(), *given, option.opts[0], value)
    jobs = a_tenth(jobs, lambda name: name.rpartition(" ")[0])  # each option at least once
    (tmp_path/"here").mkdir()

    def job(name):
        (here := tmp_path/"here"/name.replace(" ", "_")).mkdir()
        os.chdir(here)
        status, said, complaints = picknet(*jobs[name])
        assert status in (0, 1, 2, 3), (status, complaints)
        assert "Traceback" not in complaints, complaints
        assert not RAW.search(said + complaints), (said, complaints)
        if status:
            raise PickNetError(f"{name}: {complaints}")

    each_command("options", job, jobs, good_film=True)
    outside = sorted(path for path in tmp_path.rglob("*") if tmp_path/"here" not in path.parents)
    assert outside == sorted([*before, tmp_path/"here"])
