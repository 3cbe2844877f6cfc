"""What picking saves when whole files are captioned, and what an hour of a stream costs.

python benchmarks/captioning.py [--out data/results/benchmark_captioning.json]     (needs PyAV and
    psutil; CPU)

Files: the same clips captioned with about six picked frames and with all thirty, reading and
decoding included; two cores. Folder: clips by the bundled model, as `picknet caption FOLDER`
works: in the first edition (the plain CNN, one file after the other, and a sentence after every
pick, though only the last is printed), without those sentences, with the folded CNN, and now.
Stream: one simulated hour at one frame a second, fed as fast as possible; one core. Weights are
random: a product of matrices takes as long whatever it computes.
"""
from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import torch
from common import ROOT, origin, write_result

from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.video_files import find_videos
from picknet_nb.data.text import SPECIALS, Vocabulary
from picknet_nb.world.world import write_examples
from picknet_nb.method.captioner import caption
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.stages import Model
from picknet_nb.training.models import find_model
from picknet_nb.use.captioning import VideoCaptioner
from picknet_nb.use.clips import ClipCaptioner, decide, look_closely, look_over
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.streams import Watcher, lasting_frames

WORDS = 5491  # as many as the paper's MSVD vocabulary


def paper_sized(cnn: str) -> VideoCaptioner:
    "Everything in the paper's sizes, with random weights."
    torch.manual_seed(0)
    config, network = preset("paper", cnn=cnn), load_backbone(cnn, "random")
    vocabulary = Vocabulary(
        SPECIALS + tuple(f"word{number}" for number in range(WORDS - len(SPECIALS)))
    )
    model = Model(config, network.dims, config.clip.glance_size**2, WORDS).eval()
    learned = make_picker("learned", policy=model.policy)
    return VideoCaptioner(network, learned, model.captioner, vocabulary, config,
                          glance_size=config.clip.glance_size)


def choose_clips(folder: Path, count: int) -> tuple[list[Path], str]:
    "MSVD's clips where they are there, else clips of the built-in world."
    msvd = ROOT/"data"/"msvd"/"clips300"
    if msvd.is_dir():
        found = find_videos([msvd])
        return found[:: max(1, len(found) // count)][:count], "msvd, 224x224"
    write_examples(folder, count)
    return find_videos([folder]), "shapes, 96x96"


def time_files(cnn: str, count: int, threads: int) -> dict:
    "The same clips with picked frames and with all of them, in turns."
    torch.set_num_threads(threads)
    captioner = paper_sized(cnn)
    with tempfile.TemporaryDirectory() as folder:
        paths, source = choose_clips(Path(folder), count)
        glances = torch.stack(
            [captioner.glances(captioner.read(path).frames) for path in paths]
        )
        captioner.picker.policy.calibrate(glances, wanted=6)
        everything = replace(captioner, picker=make_picker("all"))
        check_features(captioner, paths[0])
        captioner.caption(paths[0], running=False)  # warms up
        rows = {"picked": [], "all": []}
        for path in paths:
            for name, speaker in (("picked", captioner), ("all", everything)):
                started = time.perf_counter()
                caption = speaker.caption(path, running=False)
                rows[name].append(
                    {
                        "seconds": time.perf_counter() - started,
                        "frames": len(caption.picked),
                        **caption.timings,
                    }
                )
    summary = {
        name: {key: round(statistics.median(row[key] for row in found), 4) for key in found[0]}
        | {
            "mean_seconds": round(statistics.mean(row["seconds"] for row in found), 4),
            "mean_frames": round(statistics.mean(row["frames"] for row in found), 2),
        }
        for name, found in rows.items()
    }
    ratio = summary["picked"]["mean_seconds"] / summary["all"]["mean_seconds"]
    return {
        "cnn": cnn,
        "clips": len(paths),
        "source": source,
        "threads": threads,
        **summary,
        "ratio": round(ratio, 3),
    }


def time_folder(count: int) -> dict:
    """A folder captioned as in the first edition, with one sentence a clip, with the folded CNN,
    and with a clip in each core's hands; in turns."""
    torch.set_num_threads(os.cpu_count())
    captioner = load_captioner(find_model(), "cpu")
    plain = replace(
        captioner, backbone=load_backbone(captioner.backbone.name, fast=False)
    )
    with tempfile.TemporaryDirectory() as folder:
        paths, source = choose_clips(Path(folder), count)
        ways = {
            "plain": partial(plain.caption_many, running=True),
            "one sentence": partial(plain.caption_many, running=False),
            "folded": partial(captioner.caption_many, running=False),
            "fast": partial(captioner.caption_many, running=False),
        }
        said, seconds = {}, {name: [] for name in ways}
        for _ in range(3):
            for name, way in ways.items():
                started = time.perf_counter()
                said[name] = [caption.text for caption in way(paths)]
                seconds[name].append(time.perf_counter() - started)
    speeds = {name: round(len(paths) / min(each), 2) for name, each in seconds.items()}
    equal = sum(one == two for one, two in zip(said["plain"], said["fast"]))
    return {
        "model": find_model().name,
        "clips": len(paths),
        "source": source,
        "threads": torch.get_num_threads(),
        "clips_a_second": speeds,
        "ratio": round(speeds["fast"] / speeds["plain"], 2),
        "equal_captions": equal,
    }


def check_features(captioner: VideoCaptioner, path: Path) -> None:
    "Features of picked frames are those that captioning of all frames sees."
    clip = captioner.read(path)
    clips = look_over(captioner, clip.frames)
    picks, _ = decide(captioner, clips)
    seen = look_closely(captioner, clip.frames, clips, picks)
    wanted = captioner.features(clip.frames)[picks]
    torch.testing.assert_close(seen.float(), wanted.float(), rtol=1e-2, atol=1e-2)


def hour(size: int = 224, scenes: int = 97):
    "Smooth pictures that hold for some time, tremble a little and change."
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(scenes, 3, 7, 7, generator=draw)
    wide = (
        torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear").mul(230).byte()
    )
    tremble = torch.randint(0, 24, (16, 3, size, size), generator=draw, dtype=torch.uint8)
    for number in itertools.count():
        yield wide[number // 23 % scenes] + tremble[number % 16]


def time_stream(frames: int) -> dict:
    """Every frame timed by itself; memory weighed as the hour goes by; captions compared with
    the offline ones."""
    torch.set_num_threads(1)
    captioner, process = paper_sized("resnet18"), psutil.Process()
    some = torch.stack(list(itertools.islice(hour(), 0, 690, 23)))
    captioner.picker.policy.calibrate(captioner.glances(some)[None], wanted=15)
    watcher, remarks, wall, busy, weights = Watcher(captioner), [], [], [], []
    started = time.perf_counter()
    for number, (moment, frame) in enumerate(
        lasting_frames(itertools.islice(hour(), frames), size=224)
    ):
        before, before_busy = time.perf_counter(), time.thread_time()
        remark = watcher.see(moment, frame)
        if remark:
            remarks.append(remark)
        else:
            wall.append(time.perf_counter() - before), busy.append(time.thread_time() - before_busy)
        if number % max(1, frames // 24) == 0:
            gc.collect()
            weights.append(process.memory_info().rss / 2**20)
    seconds = time.perf_counter() - started
    settled = weights[2:]
    return {
        "cnn": "resnet18",
        "frames": frames,
        "picked": len(remarks),
        "dropped": len(wall),
        "threads": 1,
        "seconds": round(seconds, 1),
        "dropped_ms": {
            "median": round(1000 * statistics.median(wall), 3),
            "p95": round(1000 * statistics.quantiles(wall, n=20)[-1], 3),
            "processor_median": round(1000 * statistics.median(busy), 3),
        },
        "memory_mb": {
            "first": round(settled[0], 1),
            "largest": round(max(settled), 1),
            "last": round(settled[-1], 1),
            "growth": round(max(settled) / settled[0] - 1, 4),
        },
        "captions_equal_offline": compare_offline(captioner, remarks),
    }


def compare_offline(captioner: VideoCaptioner, remarks: list) -> bool:
    "Whether the same picks, encoded and decoded as one clip, give every caption of the stream."
    wanted, found = {remark.frame for remark in remarks}, []
    for number, frame in zip(range(remarks[-1].frame + 1), hour()):
        if number in wanted:
            found.append(captioner.features(frame[None]))
    features = torch.cat(found)[None]
    checked = sorted({1, 2, 3, len(remarks) // 2, len(remarks)})
    words = torch.cat(
        [
            caption(
                captioner.captioner,
                features[:, :k],
                torch.ones(1, k, dtype=torch.bool),
                captioner.max_words,
            )
            for k in checked
        ]
    )
    return captioner.vocabulary.decode(words) == [remarks[k - 1].text for k in checked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", default=str(ROOT/"data"/"results"/"benchmark_captioning.json")
    )
    parser.add_argument("--cnn", default="resnet152")
    parser.add_argument("--clips", type=int, default=20)
    parser.add_argument("--folder", type=int, default=60, help="clips in the folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--frames", type=int, default=3600, help="of the stream")
    parser.add_argument(
        "--only", choices=("folder", "stream", "files"), help="one of the three parts"
    )
    options = parser.parse_args()
    parts = {
        "folder": lambda: time_folder(options.folder),
        "stream": lambda: time_stream(options.frames),
        "files": lambda: time_files(options.cnn, options.clips, options.threads),
    }
    result = {
        "kind": "benchmark",
        **origin(),
        # also where there is a GPU, which has nothing to do
        "machine": f"{os.cpu_count()} x {platform.machine()}",
        **{name: measure() for name, measure in parts.items() if options.only in (None, name)},
    }
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    with torch.no_grad():
        main()
