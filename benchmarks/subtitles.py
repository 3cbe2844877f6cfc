"""Subtitles of a long film: memory, time, and how many frames are picked.

python benchmarks/subtitles.py --videos FOLDER [--model sharp] [--weights FILE] [--minutes 1 10]
    [--out data/results/benchmark_subtitles.json]     (needs PyAV and psutil; CPU)

The videos of a folder, one after the other in the order of their names, make a film of so many
minutes; `picknet caption film.mp4 --out film.srt` is run on it in a process of its own. The memory
of that process and of all below it is summed ten times a second (proportional set size: pages that
several processes share count once). The first minute is also captioned from all frames of each
scene, to say what picking saves.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import psutil
from common import ROOT, origin, write_result

from picknet_nb.data.video_files import find_videos

RATE, SIDE = 25, 224


def join_videos(videos: list[Path], path: Path, minutes: float) -> int:
    "Write a film of so many minutes; how many videos it took."
    wanted = round(minutes * 60 * RATE)
    with av.open(str(path), "w") as film:
        stream = film.add_stream("libx264", rate=RATE)
        stream.width = stream.height = SIDE
        stream.pix_fmt, stream.options = "yuv420p", {"preset": "ultrafast"}
        written = 0
        for used, video in enumerate(videos, 1):
            with av.open(str(video)) as clip:
                for frame in clip.decode(video=0):
                    frame = frame.reformat(SIDE, SIDE, "yuv420p")
                    frame.pts, frame.time_base = written, Fraction(1, RATE)
                    film.mux(stream.encode(frame))
                    written += 1
                    if written == wanted:
                        film.mux(stream.encode(None))
                        return used
    raise SystemExit(f"{len(videos)} videos last only {written / RATE / 60:.1f} minutes")


def memory(process: psutil.Process) -> int:
    "Bytes of a process and of all below it."
    found = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            found += each.memory_full_info().pss
        except psutil.Error:
            pass  # it ended while it was looked at
    return found


def subtitled(film: Path, minutes: float, words: list[str]) -> dict:
    "What subtitles of a film take, from the command to the last sentence."
    code = "from picknet_nb.interface.main import main; main()"
    out = film.with_suffix(".jsonl")
    begin, looks = time.perf_counter(), []
    with open(out, "w") as lines:
        process = psutil.Popen(
            [sys.executable, "-c", code, "caption", str(film), "--json",
             "--out", str(film.with_suffix(".srt")), *words],
            stdout=lines, cwd=film.parent, env=os.environ | {"PYTHONPATH": str(ROOT)})
        spent = 0.0
        while process.poll() is None:
            try:
                looks.append((time.perf_counter() - begin, memory(process)))
                spent = sum(process.cpu_times()[:2])
            except psutil.Error:
                break
            time.sleep(0.1)
    if process.wait():
        raise SystemExit(f"{film.name}: the command failed")
    seconds = time.perf_counter() - begin
    said = [json.loads(line) for line in out.read_text().splitlines()]
    quarter = lambda number: max(
        (size for when, size in looks if number <= 4 * when / seconds < number + 1), default=0)
    return {
        "minutes": minutes,
        "seconds": round(seconds, 1),
        "processor seconds": round(spent, 1),
        "seconds a minute of film": round(seconds / minutes, 2),
        "sentences": len(said),
        "frames picked": sum(len(each["times"]) for each in said),
        "peak MB": round(max(size for _, size in looks) / 1e6, 1),
        "peak MB of each quarter": [round(quarter(each) / 1e6, 1) for each in range(4)],
        "first sentences": [each["text"] for each in said[:5]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--model", default="sharp")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 10])
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_subtitles.json")
    options = parser.parse_args()
    words = ["--model", options.model]
    if options.weights:
        words += ["--weights", str(options.weights.resolve())]
    load, videos, cases = os.getloadavg()[0], find_videos([options.videos]), {}
    with tempfile.TemporaryDirectory() as folder:
        for minutes in options.minutes:
            film = Path(folder)/f"film_{minutes:g}.mp4"
            joined = join_videos(videos, film, minutes)
            cases[f"{minutes:g} min"] = {
                "videos": joined, **subtitled(film, minutes, words)}
            if minutes == options.minutes[0]:
                every = subtitled(film, minutes, [*words, "--picker", "all"])
                cases[f"{minutes:g} min, all frames"] = {"videos": joined, **every}
            print(json.dumps(cases, indent=1), flush=True)
    first, last = (cases[f"{minutes:g} min"] for minutes in
                   (options.minutes[0], options.minutes[-1]))
    write_result(options.out, {
        "what": f"subtitles of a film with {options.model}, from the command to the last sentence",
        **origin("cpu"),
        "cores": os.cpu_count(),
        "load before": round(load, 2),
        "cases": cases,
        "peak memory, longest film / shortest": round(last["peak MB"] / first["peak MB"], 3),
        "seconds, all frames / picked": round(every["seconds"] / first["seconds"], 2),
    })


if __name__ == "__main__":
    main()
