"""Reading equally spaced frames by walking, jumping and plain decoding; glances in batches and one
at a time.

python benchmarks/video.py [--out data/results/benchmark_video.json]     (needs PyAV; the part about
    glances also runs without it, and on a GPU)
"""
from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from common import origin, write_result

from picknet_nb.data.glance import glance
from picknet_nb.data.video import read_clip, spaced


def median_ms(job, repeats: int, device: str = "cpu") -> float:
    """Median milliseconds of a job after one call that warms up; processor time on the CPU, wall
    clock around a GPU."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    job()
    taken = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = clock()
        job()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(1000 * (clock() - start))
    return statistics.median(taken)


def draw(path: Path, total: int, side: int, group: int) -> Path:
    "Drifting smooth noise as H.264 with a key frame every `group` frames."
    import av

    noise = torch.rand(1, 3, side // 8, side // 8 + 64, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.interpolate(noise, size=(side, side + 512), mode="bilinear")[0]
    wide = wide.mul(255).byte().permute(1, 2, 0).numpy()
    with av.open(str(path), "w") as output:
        stream = output.add_stream(
            "libx264", rate=25, options={"preset": "veryfast", "g": str(group), "sc_threshold": "0"}
        )
        stream.width = stream.height = side
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 25)
        for i in range(total):
            frame = av.VideoFrame.from_ndarray(
                np.ascontiguousarray(wide[:, 2 * i % 512 :][:, :side]), "rgb24"
            )
            frame.pts = i
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def decode_everything(path: Path, frames: int, size: int) -> torch.Tensor:
    "The plain way: decode all, keep all, choose, resize."
    import av

    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        everything = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    chosen = torch.stack(
        [torch.from_numpy(everything[i]).permute(2, 0, 1) for i in spaced(len(everything), frames)]
    )
    return torch.nn.functional.interpolate(
        chosen.float(), size=(size, size), mode="bilinear", antialias=True
    )


def time_reading(frames: int, size: int, seconds: list[int], repeats: int) -> list[dict]:
    "One row for each length of video."
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for length in seconds:
            path = draw(Path(folder)/f"{length}.mp4", 25 * length, 160, 250)
            walked = read_clip(path, frames, size, jump=False)
            jumped = read_clip(path, frames, size)
            assert torch.equal(walked.frames, jumped.frames) and torch.equal(
                walked.times, jumped.times
            )
            # it would fill the memory
            plain = (
                median_ms(lambda: decode_everything(path, frames, size), 1)
                if length <= 300
                else None
            )
            walk = median_ms(lambda: read_clip(path, frames, size, jump=False), repeats)
            jump = median_ms(lambda: read_clip(path, frames, size), repeats)
            rows.append(
                {
                    "seconds": length,
                    "plain_ms": plain,
                    "walk_ms": walk,
                    "jump_ms": jump,
                    "plain_over_walk": plain and plain / walk,
                    "walk_over_jump": walk / jump,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def time_glances(count: int, device: str, repeats: int) -> dict:
    "Glances of a batch against one call for each frame."
    frames = torch.randint(
        0, 256, (count, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    here = frames.to(device)
    assert torch.equal(glance(here).cpu(), torch.stack([glance(frame) for frame in frames]))
    batch = median_ms(lambda: glance(here), repeats, device)
    single = median_ms(lambda: [glance(frame) for frame in here], repeats, device)
    row = {
        "frames": count,
        "device": device,
        "batch_ms": batch,
        "single_ms": single,
        "single_over_batch": single / batch,
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument(
        "--seconds",
        type=int,
        nargs="+",
        default=[10, 60, 240, 1200],
        help="lengths of the drawn videos",
    )
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        import av

        version = av.__version__
        reading = time_reading(
            arguments.frames, arguments.size, arguments.seconds, arguments.repeats
        )
    except ImportError:
        version, reading = None, []
    result = {
        "kind": "benchmark",
        "what": "video",
        "frames": arguments.frames,
        "size": arguments.size,
        "codec": "H.264 160x160, key frame every 250",
        "reading": reading,
        "glances": [
            time_glances(count, device, 9)
            for count in ((30, 3840) if device == "cuda" else (30, 120))
        ],
        **origin(),
        "av": version,
    }
    if arguments.out:
        write_result(arguments.out, result)


if __name__ == "__main__":
    main()
