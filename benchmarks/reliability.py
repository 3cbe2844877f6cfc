"""The longer run by hand: many more wrong inputs than `make test` tries, every fault, and loads of
the size of the paper's data.

    python benchmarks/reliability.py                     # everything, into
        data/results/reliability.json
    python benchmarks/reliability.py --only suite        # or: clips captions stream corpus;
        nothing: only the list of what was found
    python benchmarks/reliability.py --fuzz 1            # as many inputs as `make test`

Counts come from the tests themselves (tests/reliability.py, which tries the commands: `--inputs`,
`--kills`), one line for each batch of inputs. Each load runs in a process of its own; its peak is
the largest resident memory of that process, and for extraction also of its decoders. Needs the
development environment.
"""
from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
OUT = ROOT/"data"/"results"/"reliability.json"
SUITE = ("test_fuzzing", "test_faults", "test_workers", "test_properties", "test_security")
# what these tests, and the work that they led to, have found so far: where, what happened, what
# happens now
FOUND = (
    (
        "video",
        "a transport stream whose streams come and go raised PyAV's IndexError",
        "refused with the file's name",
    ),
    (
        "config",
        "a JSON number of more than 4,300 digits raised ValueError",
        "refused with the file's name",
    ),
    (
        "config",
        "a name that stands twice in a JSON file lost what it said first, in silence",
        "refused with the name",
    ),
    (
        "config",
        "a full disk or a closed folder raised an OSError without the file's name",
        "WriteError with the file's name",
    ),
    ("config", "a setting of 2^70 was accepted and failed later", "refused by name"),
    (
        "config",
        "settings that cannot work, such as a negative rate or a dropout of 1, were accepted",
        "refused by name",
    ),
    (
        "config",
        "a folder on a file system without locks was said to be in use by another process",
        "said to have no locks",
    ),
    (
        "features",
        "a video id with slashes, out of a captions file, led the features out of their folder",
        "stored under its hash, inside",
    ),
    ("features", "a file name of 250 letters ended a whole extraction", "stored under its hash"),
    (
        "features",
        "two extractions into one folder did everything twice",
        "the second is told who is there",
    ),
    (
        "features",
        "a decoder stuck inside a library outlived a killed parent",
        "ends with its parent",
    ),
    (
        "features",
        "made_with.json that is no object raised AttributeError",
        "refused with the file's name",
    ),
    ("features", "the folded network kept the one that it was made from in memory", "lets it go"),
    (
        "corpus",
        "damaged .npz, .npy, HDF5 and zip files raised BadZipFile, zlib.error, "
        "NotImplementedError, RuntimeError and others",
        "refused with the file's name",
    ),
    (
        "corpus",
        "an .npz that is a plain array raised AttributeError; wrong arrays inside raised TypeError "
        "and IndexError",
        "refused with the file's name",
    ),
    ("corpus", "refused features left a partial file of any size behind", "removed"),
    (
        "corpus",
        "refused features destroyed the finished corpus in the same folder",
        "the old corpus stays",
    ),
    (
        "corpus",
        "two processes that wrote one file of features wrote into the same partial file",
        "each has its own",
    ),
    ("corpus", "what a kill had left half-written stayed", "goes with the next writer"),
    (
        "corpus",
        "a video in two splits was moved to the last one in silence",
        "refused with the video's name",
    ),
    (
        "corpus",
        "a clip that comes twice in youtube_mapping.txt kept the last number in silence",
        "refused with the line",
    ),
    (
        "corpus",
        "two clips with the same number in youtube_mapping.txt were merged",
        "refused with the line",
    ),
    (
        "corpus",
        "of two files of one MSVD clip, named by its id and by its number, one was dropped in "
        "silence",
        "refused with both names",
    ),
    (
        "corpus",
        "numbers that are digits but not decimal, such as \u00b2, raised ValueError",
        "refused with the line, or not counted as digits",
    ),
    (
        "corpus",
        "ids and splits that are not texts raised TypeError",
        "refused with the file's name",
    ),
    (
        "corpus",
        "settings in corpus.json that cannot be raised an error without the file's name",
        "refused with the file's name",
    ),
    ("corpus", "words.json that does not fit its captions was believed", "cut again"),
    (
        "corpus",
        "glances that are no grey levels were rounded down in silence, those between 0 and 1 to "
        "zero",
        "refused with the type",
    ),
    (
        "corpus",
        "features too large for half precision became infinite",
        "refused with the video's name",
    ),
    (
        "corpus",
        "a video with features but without a glance was left out and not reported",
        "reported as missing",
    ),
    (
        "corpus",
        "a caption with half a surrogate pair could be read and never written",
        "refused with the video's name",
    ),
    (
        "corpus",
        "a zip or tar that unpacks to any size was unpacked into memory",
        "refused above a size",
    ),
    (
        "corpus",
        "a download without a published checksum was believed at any time and over any line",
        "https only, and held to its first checksum",
    ),
    (
        "shapes",
        "two processes that prepared one world spoilt each other's files",
        "the second waits and finds it done",
    ),
    ("shapes", "a finished world in a closed folder could not be opened", "reading is enough"),
    (
        "shapes",
        "processes of torchrun that prepared one world waited for each other for ever",
        "one makes it, the others load it",
    ),
    (
        "cider",
        "a video with very many captions asked for tables larger than any memory",
        "refused with the number",
    ),
    (
        "training",
        "a run.json with sizes that cannot be, or with lists for objects, raised RuntimeError and "
        "AttributeError",
        "refused with the file's name",
    ),
    (
        "training",
        "an epoch that was killed between its last step and its end had no loss in the log",
        "the checkpoint keeps what the log needs",
    ),
    (
        "training",
        "a kill between the last checkpoint and the log left the log short",
        "the checkpoint is written last",
    ),
    ("training", "the time before a kill was missing from the log", "counted"),
    ("training", "what a kill had left half-written stayed", "goes when the run goes on"),
    (
        "training",
        "a gradient that is no number was noticed by the loss of the next step, and after the last "
        "step not at all",
        "ends the run and names its step",
    ),
    (
        "training",
        "the error of a run that went wrong could name a checkpoint that had not been written",
        "names the one that is there",
    ),
    (
        "training",
        "processes that measured different scores lost patience at different epochs, and one "
        "waited for the other for ever",
        "all go by the scores of the first",
    ),
    ("training", "a run went on with other features if they had the same name", "refused"),
    (
        "training",
        "clips with fewer captions than go together were left out of training in silence",
        "said, with their number",
    ),
    ("metrics", "Ctrl-C that reached Java first was called an error of the scorer", "it is Ctrl-C"),
    (
        "captioning",
        "a run on weights of one's own fetched others first, and then refused them",
        "asks for the file by name",
    ),
    (
        "reproduction",
        "a row made with another number of frames was taken for the one that the table needs",
        "refused with both numbers",
    ),
    ("reproduction", "a call for one row took the others out of the result file", "they stay"),
    (
        "reproduction",
        "a table from before a setting was there forgot the commands that had made it",
        "keeps them",
    ),
    (
        "reproduction",
        "a test split without clips was noticed after a row had been trained",
        "refused before",
    ),
    (
        "reproduction",
        "a machine without git could not finish a row that it had trained",
        "the commit is noted as unknown",
    ),
    ("cli", "Ctrl-C did not say what was kept", "says how to go on, where that is possible"),
    ("cli", "a switch that is neither on nor off, such as clock=maybe, was off", "refused"),
    ("cli", "--mp4 with the name of the video itself replaced the video", "refused"),
    (
        "cli",
        "of several videos, one drawing was written over the other",
        "each has a path of its own in a folder",
    ),
    (
        "cli",
        "names of drawings that cannot be written were noticed after the video had been captioned",
        "refused before anything is read",
    ),
)


# the suite
# --------------------------------------------------------------------------------------------------


def run_suite(fuzz: int) -> dict:
    "Every test of the suite, with counts by kind."
    with tempfile.TemporaryDirectory() as folder:
        counts, report = Path(folder)/"counts.jsonl", Path(folder)/"report.xml"
        environment = {
            **os.environ,
            "PICKNET_RELIABILITY": str(counts),
            "PICKNET_FUZZ": str(fuzz),
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                f"--junitxml={report}",
                *(f"tests/{name}.py" for name in SUITE),
            ],
            cwd=ROOT,
            env=environment,
        )
        tests = xml.parse(report).getroot().find("testsuite")
        tallied = defaultdict(lambda: defaultdict(Counter))
        for line in counts.read_text().splitlines():
            entry = json.loads(line)
            tallied[entry["what"]][entry["kind"]].update(entry["outcomes"])
    seconds = Counter()
    for case in tests.iter("testcase"):
        seconds[case.get("classname").rpartition(".")[2]] += float(case.get("time"))
    failed = int(tests.get("failures")) + int(tests.get("errors"))
    inputs = {kind: dict(outcomes) for kind, outcomes in sorted(tallied["inputs"].items())}
    return {
        "fuzz": fuzz,
        "tests": int(tests.get("tests")),
        "tests_failed": failed,
        "tests_skipped": int(tests.get("skipped")),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "inputs_tried": sum(sum(each.values()) for each in inputs.values()),
        "uncaught": sum(
            sum(each.values()) - each.get("read", 0) - each.get("refused", 0)
            for each in inputs.values()
        ),
        "inputs": inputs,
        "faults_injected": {
            kind: sum(each.values()) for kind, each in sorted(tallied["faults"].items())
        },
        "attacks": {kind: sum(each.values()) for kind, each in sorted(tallied["attacks"].items())},
    }


# loads
# --------------------------------------------------------------------------------------------------


class Clock(dict):
    "Seconds of named parts."

    def __call__(self, name: str, job, *arguments, **options):
        begin = time.perf_counter()
        result = job(*arguments, **options)
        self[f"{name} s"] = round(time.perf_counter() - begin, 1)
        return result


def tiny_clip(path: Path, frames: int, rate: int, side: int) -> Path:
    "A small grey video that changes now and then."
    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=rate, options={"preset": "ultrafast", "g": "50"}
        )
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            picture = np.full((side, side, 3), 40 + number // 20 * 53 % 160, np.uint8)
            start = number // 20 * 7 % (side - 16)
            picture[start : start + 16, side - 16 - start : side - start] = (
                80 + number // 20 * 13 % 170
            )
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())
    return path


def make_captions(videos: int, each: int, seed: int = 0) -> list[list[str]]:
    "Captions of natural length from a vocabulary with a long tail."
    import numpy as np

    draw = np.random.RandomState(seed)
    words = [f"w{number}" for number in range(4000)]
    chosen = np.minimum(draw.zipf(1.3, videos * each * 9) - 1, 3999).reshape(videos, each, 9)
    lengths = draw.randint(4, 10, (videos, each))
    return [
        [" ".join(words[word] for word in row[:length]) for row, length in zip(rows, ends)]
        for rows, ends in zip(chosen, lengths)
    ]


def load_clips(folder: Path, clips: int = 10_000) -> dict:
    """Extraction of very many clips, stopped after six tenths, taken up again, then called once
    more; then a corpus of them."""
    from picknet_nb.core.settings import ClipSettings
    from picknet_nb.data.backbones import load_backbone
    from picknet_nb.data.corpus import assemble
    from picknet_nb.data.extraction import extract_folder

    source, clock, cnn = tiny_clip(folder/"clip.mp4", 12, 6, 32), Clock(), load_backbone("tiny")
    files = {f"clip{number:05d}": source for number in range(clips)}
    first = dict(islice(files.items(), clips * 6 // 10))
    extract = lambda some: extract_folder(
        some, folder/"out", cnn, frames=4, glance_size=14, workers=1, progress=False
    )
    made = [
        clock(name, extract, some).made
        for name, some in (("first part", first), ("the rest", files), ("nothing left", files))
    ]
    assert made == [len(first), clips - len(first), 0], made
    names = list(files)
    splits = {
        "train": range(clips - 200),
        "validation": range(clips - 200, clips - 100),
        "test": range(clips - 100, clips),
    }
    corpus = clock(
        "assembly",
        assemble,
        folder/"out",
        "load",
        {name: ["a square moves"] for name in names},
        splits,
        ClipSettings(frames=4, min_word_count=1),
    )
    assert len(corpus.ids) == clips
    return {"clips": clips, **clock}


def load_captions(folder: Path, videos: int = 10_000, each: int = 20) -> dict:
    "Very many captions through vocabulary, CIDEr and all four metrics."
    import torch
    from picknet_nb.data.text import Vocabulary
    from picknet_nb.method.cider import Cider
    from picknet_nb.measure.metrics import score

    captions, clock = make_captions(videos, each), Clock()
    flat = [caption for video in captions for caption in video]
    vocabulary = clock("vocabulary", Vocabulary.build, flat, 3)
    words = clock("ids", vocabulary.encode, flat, 20)
    references = [[caption.split() for caption in video] for video in captions]
    cider = clock("CIDEr tables", Cider, references, vocabulary)
    owner = torch.arange(videos).repeat_interleave(each)
    scores = clock(
        "CIDEr of all",
        lambda: torch.cat([cider(*some) for some in zip(words.split(1000), owner.split(1000))]),
    )
    assert len(scores) == len(flat) and scores.isfinite().all()
    said = {str(video): made[0] for video, made in enumerate(make_captions(videos, 1, seed=1))}
    scored = clock(
        "all metrics",
        score,
        said,
        {str(video): known for video, known in enumerate(captions)},
        time_limit=3000,
    )
    assert 0 < scored["CIDEr"] < 10 and scored.signature
    return {"captions": len(flat), "videos": videos, "words": len(vocabulary), **clock}


def load_stream(folder: Path, hours: float = 3.0) -> dict:
    "A long video as a stream: remarks as they come, memory that does not grow."
    from picknet_nb.data.video import stream_frames
    from picknet_nb.training.models import example_run
    from picknet_nb.use.loading import load_captioner

    captioner = load_captioner(example_run(folder/"toy"), device="cpu")
    seconds = int(hours * 3600)
    clock = Clock()
    video = clock("writing the video", tiny_clip, folder/"long.mp4", seconds * 2, 2, 96)
    resident = []
    page = os.sysconf("SC_PAGE_SIZE")

    def weighed():
        for number, item in enumerate(stream_frames(video, 1.0, captioner.backbone.image_size)):
            if number % 60 == 0:
                resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6)
            yield item

    remarks = clock("watching", lambda: list(captioner.stream(weighed())))
    assert len(resident) >= seconds // 60 - 1 and len(remarks) > 10, (len(resident), len(remarks))
    early, late = resident[len(resident) // 10], resident[-1]
    return {
        "hours": hours,
        "remarks": len(remarks),
        "resident MB after a tenth": round(early),
        "resident MB at the end": round(late),
        **clock,
    }


def load_corpus(folder: Path, videos: int = 10_000) -> dict:
    """A corpus of the size of MSR-VTT: written piece by piece, opened, batched, trained on for
    an epoch."""
    import torch
    from picknet_nb.core.settings import preset
    from picknet_nb.data.corpus import Corpus, Rows, write_corpus
    from picknet_nb.method.recipes import Recipe
    from picknet_nb.training.train import train

    torch.manual_seed(0)
    config = preset(
        "smoke",
        frames=30,
        hidden=64,
        feature_embedding=64,
        word_embedding=64,
        min_word_count=3,
        max_words=12,
        supervision_epochs=1,
        batch_size=400,
        captions_together=20,
        cnn="resnet152",
    )
    captions, clock, most = make_captions(videos, 20), Clock(), [0.0]
    borders = int(videos * 0.6513), int(videos * 0.701)
    splits = {
        "train": range(borders[0]),
        "validation": range(*borders),
        "test": range(borders[1], videos),
    }
    ids = [f"video{number}" for number in range(videos)]
    pieces = lambda dims, kind: (
        torch.randint(0, 256, (50, 30, dims), dtype=torch.uint8).to(kind)
        for _ in range(videos // 50)
    )
    clock(
        "writing",
        write_corpus,
        folder/"corpus",
        "load",
        dict(zip(ids, captions)),
        {
            "features": Rows(
                torch.float16,
                (videos, 30, 2048),
                (piece / 256 for piece in pieces(2048, torch.float16)),
            ),
            "glances": Rows(torch.uint8, (videos, 30, 3136), pieces(3136, torch.uint8)),
        },
        splits,
        config.clip,
        {},
    )

    # memory of our own, without the pages of the mapped file that the system can take back at any
    # time
    def watch():
        while True:
            lines = Path("/proc/self/status").read_text().split("RssAnon:")
            most[0] = max(most[0], int(lines[1].split()[0]) / 1e3)
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
    corpus = clock("opening", Corpus.load, folder/"corpus", settings=config.clip)
    seen = clock("batching", lambda: len(corpus.pairs("train")))
    assert seen == 20 * borders[0]
    clock(
        "an epoch", train, folder/"run", corpus, config, Recipe("all", adapted=False), bars=False
    )
    size = (folder/"corpus"/"videos.safetensors").stat().st_size
    return {
        "videos": videos,
        "shape": list(corpus.features.shape),
        "captions": len(corpus.words),
        "words": len(corpus.vocabulary),
        "file MB": round(size / 1e6),
        "own memory MB": round(most[0]),
        **clock,
    }


LOADS = {
    "clips": load_clips,
    "captions": load_captions,
    "stream": load_stream,
    "corpus": load_corpus,
}


def run_load(name: str) -> dict:
    "One load in a process of its own, with its peak memory."
    done = subprocess.run(
        [sys.executable, __file__, "--load", name],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def load_here(name: str) -> None:
    "What that process does."
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        result = LOADS[name](Path(folder))
        result |= {
            "seconds": round(time.perf_counter() - begin, 1),
            "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        }
        if (
            children := resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        ) and name != "captions":
            result["largest decoder MB"] = round(children / 1e3)
        print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--only",
        nargs="*",
        choices=("suite", *LOADS),
        default=("suite", *LOADS),
        help="parts to run; the others stay as they are in the file",
    )
    parser.add_argument(
        "--fuzz", type=int, default=5, help="so many times the inputs of `make test`"
    )
    parser.add_argument("--load", choices=LOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        return load_here(options.load)
    from common import origin
    from picknet_nb.core.files import write_whole

    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    write = lambda: write_whole(
        options.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    )
    result["found_and_fixed"] = [{"room": room, "was": was, "is": now} for room, was, now in FOUND]
    write()
    for part in options.only:
        if part == "suite":
            result["suite"] = {**run_suite(options.fuzz), **origin()}
        else:
            result.setdefault("loads", {})[part] = {**run_load(part), **origin()}
        write()
        print(f"{part} done", flush=True)


if __name__ == "__main__":
    main()
