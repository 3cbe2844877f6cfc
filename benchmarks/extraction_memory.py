"""Peak memory of extraction: 50 clips against 300, and a video of 10 seconds against one of 10
minutes.

    python benchmarks/extraction_memory.py --clips data/msvd/clips300 --out
        data/results/extraction_memory.json

Each case runs in a fresh process at 224x224 with two decoders; the memory of the process and its
decoders is summed many times a second (proportional set size: pages that several processes share
count once). Needs psutil and PyAV.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from common import ROOT, origin, write_result

EXTRACT = """
import sys, torch
from pathlib import Path
from picknet_nb.data.backbones import Backbone
from picknet_nb.data.tiny import Tiny
from picknet_nb.data.extraction import extract_folder
torch.set_num_threads(1)
files = {str(number): path for number, path in enumerate(map(Path, sys.stdin.read().split("\\n")))}
cnn = Backbone("tiny", Tiny(), Tiny.dims, 224)
done = extract_folder(files, sys.argv[1], cnn, workers=2, progress=False)
assert len(done.ids) == len(files), done.failed
"""


def peak(files: list[Path]) -> dict:
    "The largest memory of an extraction and its decoders, in MB, and how long it took."
    with tempfile.TemporaryDirectory() as out:
        process = subprocess.Popen(
            [sys.executable, "-c", EXTRACT, out],
            stdin=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        process.stdin.write("\n".join(str(path.resolve()) for path in files))
        process.stdin.close()
        begin, most, looks, tree = time.time(), 0, 0, psutil.Process(process.pid)
        while process.poll() is None:
            try:
                most = max(
                    most,
                    sum(
                        each.memory_full_info().pss
                        for each in [tree, *tree.children(recursive=True)]
                    ),
                )
                looks += 1
            except psutil.Error:
                pass  # one of them ended while it was looked at
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit("the extraction failed")
    return {
        "videos": len(files),
        "peak MB": round(most / 1e6, 1),
        "seconds": round(time.time() - begin, 1),
        "looks": looks,
    }


def write_video(path: Path, seconds: int, rate: int = 25, side: int = 224) -> Path:
    "A moving grey pattern in H.264."
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width = stream.height = side
        stream.pix_fmt, stream.options = "yuv420p", {"preset": "ultrafast"}
        ramp = torch.arange(side, dtype=torch.int32)
        for number in range(seconds * rate):
            picture = (
                ((ramp[:, None] + ramp + number) % 256)
                .to(torch.uint8)[..., None]
                .expand(-1, -1, 3)
                .contiguous()
            )
            for packet in stream.encode(
                av.VideoFrame.from_ndarray(picture.numpy(), format="rgb24")
            ):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, default=ROOT/"data"/"msvd"/"clips300")
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"extraction_memory.json"
    )
    options = parser.parse_args()
    clips = sorted(options.clips.glob("*.mp4")) or [ROOT/"data"/"example.mp4"] * 300
    with tempfile.TemporaryDirectory() as folder:
        short = write_video(Path(folder)/"short.mp4", 10)
        long = write_video(Path(folder)/"long.mp4", 600)
        cases = {
            "50 clips": peak(clips[:50]),
            "300 clips": peak(clips[:300]),
            "10 s": peak([short]),
            "10 min": peak([long]),
        }
    ratio = lambda a, b: round(cases[b]["peak MB"] / cases[a]["peak MB"], 3)
    result = {
        "what": "peak memory of extraction at 224x224, two decoders",
        **origin("cpu"),
        "cores": os.cpu_count(),
        "cases": cases,
        "300 clips / 50 clips": ratio("50 clips", "300 clips"),
        "10 min / 10 s": ratio("10 s", "10 min"),
    }
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
