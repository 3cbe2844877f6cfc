"""Train a small network to give CLIP's features: the weights of the backbone lite0-clip or glimpse.

python tools/distil.py lite0-clip.safetensors --pictures train2017 --pictures Flickr8k --clips clips
python tools/distil.py glimpse.safetensors --student glimpse --student-weights random --in-memory \\
    --pictures train2017 --steps 2800 --batch 1024 --rate 3e-3

`glimpse` learns 128 principal axes of the standardised features, from pictures of half the side.

Teacher and student see the same random crops and flips of pictures and of frames of clips. The
loss compares standardised features (`distillation_loss` of data/15_student); AdamW, a rate that
falls along a cosine; on a GPU bfloat16, and both networks compiled. If the command is stopped, the
same command resumes it and ends with the same weights; OUT.checkpoint holds what that needs until
the end. Frames of clips are written to OUT.frames as JPEGs once.

Sixteen cores decode and crop pictures more slowly than a large GPU learns from them. With
--in-memory every picture is decoded once, resized to a square as the backbone resizes frames, and
kept in the device's memory (25 GB for COCO and Flickr8k); crops and flips are made there.
"""
from __future__ import annotations

import argparse
import io
import math
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import RandomResizedCrop
from tqdm import tqdm

from picknet_nb.core.files import FileError, PickNetError, replacing, write_whole
from picknet_nb.core.printing import printable
from picknet_nb.core.processes import usable_cores
from picknet_nb.data.backbones import Backbone, Normalised, fit_weights, load_backbone, read_weights
from picknet_nb.data.efficientnet import EfficientNetLite0
from picknet_nb.data.eyes import Glimpse
from picknet_nb.data.extraction import ClipShape, decode_files, list_videos
from picknet_nb.data.picture_files import PictureError, open_picture, read_picture
from picknet_nb.data.pictures import list_pictures
from picknet_nb.data.student import Student, distillation_loss, save_student, in_single_precision

SIDE = EfficientNetLite0.image_size
SQUARE = 256  # pixels of a picture's side that is kept in memory
AXES = 128  # principal axes of the teacher's features that glimpse learns
SCALE, RATIO = (0.4, 1.0), (3 / 4, 4 / 3)  # of random crops: share of the area, width to height


class Order:
    "All pictures in a random order, then all of them in another, and so on."

    def __init__(self, pictures: int, seed: int):
        self.pictures, self.seed, self.rounds = pictures, seed, None

    def __call__(self, place: int) -> int:
        rounds, place = divmod(place, self.pictures)
        if self.rounds != rounds:
            self.rounds = rounds
            self.order = np.random.default_rng((self.seed, rounds)).permutation(self.pictures)
        return int(self.order[place])


class Crops(Dataset):
    """Random crops and flips of pictures, one for each place in the order of training. A place
    always gives the same crop, in whatever process, so that a resumed run sees what it would have
    seen."""

    def __init__(self, paths: list[Path], count: int, seed: int):
        self.paths, self.count, self.seed = paths, count, seed
        self.order = Order(len(paths), seed)

    def __len__(self) -> int: return self.count

    def picture_at(self, place: int) -> Path: return self.paths[self.order(place)]

    def batches(self, first: int, size: int, workers: int):
        "Batches of crops and what could not be read, beginning with number `first`."
        places = range(first * size, len(self))
        return DataLoader(self, size, sampler=places, num_workers=workers, collate_fn=together,
                          pin_memory=torch.cuda.is_available(), drop_last=True)

    def __getitem__(self, place: int) -> Tensor | PictureError:  # uint8 (3, side, side)
        path = self.picture_at(place)
        try:
            image = open_picture(path, 2 * SIDE)
        except FileError as reason:
            return reason
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(np.random.default_rng((self.seed, place, 1)).integers(2**62)))
            top, left, tall, wide = RandomResizedCrop.get_params(image, SCALE, RATIO)
            mirrored = torch.rand(()) < 0.5
        small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR,
                             box=(left, top, left + wide, top + tall))
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        return (pixels.flip(2) if mirrored else pixels).contiguous()


def together(found: list) -> tuple[Tensor, list[str]]:
    "A batch of those that could be read, and what is wrong with the others."
    good = [each for each in found if isinstance(each, Tensor)]
    bad = [str(each) for each in found if not isinstance(each, Tensor)]
    return torch.stack(good) if good else torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8), bad


class Squares(Dataset):
    "Whole pictures, resized to a square; one that cannot be read is its error."

    def __init__(self, paths: list[Path]): self.paths = paths

    def __len__(self) -> int: return len(self.paths)

    def __getitem__(self, place: int) -> Tensor | PictureError:  # uint8 (3, square, square)
        try:
            return read_picture(self.paths[place], SQUARE)
        except FileError as reason:
            return reason


def random_boxes(count: int, generator: torch.Generator) -> Tensor:  # (count, 4)
    "Centre and half of the width and height of random crops; a whole picture is 0, 0, 1, 1."
    area = torch.empty(count).uniform_(*SCALE, generator=generator)
    ratio = torch.empty(count).uniform_(*map(math.log, RATIO), generator=generator).exp()
    wide, tall = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    across, down = (2 * torch.rand(2, count, generator=generator) - 1) * torch.stack(
        [1 - wide, 1 - tall])
    return torch.stack([across, down, wide, tall], 1)


class CropsInMemory:
    "Random crops and flips of pictures that lie in the device's memory; a batch's crops are fixed."

    def __init__(self, paths: list[Path], count: int, seed: int, workers: int, device: str):
        self.count, self.seed, self.paths = count, seed, []
        loader = DataLoader(Squares(paths), 256, num_workers=workers, collate_fn=together)
        self.pixels = torch.empty(len(paths), 3, SQUARE, SQUARE, dtype=torch.uint8, device=device)
        read = 0
        for pixels, bad in tqdm(loader, "pictures", unit="batch"):
            for line in bad: tqdm.write(printable(f"skipped {line}"), file=sys.stderr)
            if len(pixels):
                self.pixels[read:read + len(pixels)] = pixels
                read += len(pixels)
        if read < 2:
            raise PickNetError("there are fewer than two pictures that can be read")
        self.pixels, self.paths = self.pixels[:read], paths
        self.order = Order(read, seed)

    def __len__(self) -> int: return self.count

    def batch(self, number: int, size: int) -> Tensor:  # uint8 (size, 3, side, side)
        "The crops of one batch."
        generator = torch.Generator().manual_seed(
            int(np.random.default_rng((self.seed, number, 2)).integers(2**62)))
        device = self.pixels.device
        places = [self.order(number * size + each) for each in range(size)]
        boxes = random_boxes(size, generator).to(device)
        flips = torch.where(torch.rand(size, generator=generator) < 0.5, -1.0, 1.0).to(device)
        across, down, wide, tall = boxes.unbind(1)
        zero = torch.zeros_like(wide)
        frame = torch.stack([wide * flips, zero, across, zero, tall, down], 1).view(-1, 2, 3)
        grid = F.affine_grid(frame, [size, 3, SIDE, SIDE], align_corners=False)
        images = self.pixels[torch.tensor(places, device=device)].float()
        crops = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return crops.round().to(torch.uint8)

    def batches(self, first: int, size: int, workers: int):
        "Batches of crops, beginning with number `first`; what could not be read is gone already."
        return ((self.batch(number, size), []) for number in range(first, self.count // size))


def frames_of(clips: list[Path], folder: Path, frames: int, workers: int) -> list[Path]:
    "Write frames of every clip as JPEGs, those that are not there yet; all of them, in order."
    files = {f"{place}-{name}": path for place, each in enumerate(clips)
             for name, path in list_videos(each).items()}
    todo = [(name, path) for name, path in files.items()
            if not (folder/f"{name}-{frames - 1}.jpg").exists()]
    shape = ClipShape(frames, 256)
    for clip in tqdm(decode_files(todo, shape, workers), "frames", len(todo), disable=not todo):
        if clip.reason:
            tqdm.write(printable(f"skipped {clip.path}: {clip.reason}"), file=sys.stderr)
            continue
        for number, frame in enumerate(clip.frames):
            image = io.BytesIO()
            Image.fromarray(frame.permute(1, 2, 0).numpy()).save(image, "JPEG", quality=95)
            write_whole(folder/f"{clip.name}-{number}.jpg", image.getvalue())
    return [path for name in files for number in range(frames)
            if (path := folder/f"{name}-{number}.jpg").exists()]


def new_student(kind: str, dims: int, weights, seed: int) -> tuple[Normalised, bool]:
    """A student behind its colours, and whether it was one before. `lite0-clip` begins with the
    weights of EfficientNet-Lite0 (None: ImageNet's) and a random last layer, `glimpse` with random
    weights; either may begin with those of a student."""
    torch.manual_seed(seed)
    net, former = Glimpse(dims) if kind == "glimpse" else Student(dims), False
    if weights is None and kind != "glimpse":
        known = load_backbone("efficientnet-lite0", fast=False).body.net
        net.load_state_dict(known.state_dict(), strict=False)
    elif weights not in (None, "random"):
        state = in_single_precision(read_weights(weights)[0])
        former = kind == "glimpse" or "project.weight" in state
        fit_weights(known := net if former else EfficientNetLite0(), state, weights)
        net.load_state_dict(known.state_dict(), strict=False)
    return Normalised(net, [0.498] * 3, [0.502] * 3), former


@torch.no_grad()
def statistics(
    teacher: Backbone, crops: Crops | CropsInMemory, size: int, workers: int, count: int,
    most: int,  # principal axes; 0: all features as they are
) -> tuple:
    """Mean and standard deviation of the teacher's features over the first crops, and principal
    axes of the standardised ones, in units in which they vary by 1 on average."""
    some = islice(crops.batches(0, size, workers), max(1, count // size))
    seen = torch.cat([teacher(pixels).double().cpu() for pixels, _ in some])
    mean, std = seen.mean(0), seen.std(0).clamp(min=1e-3)
    if not most: return mean.float(), std.float(), torch.empty(0)
    standard = (seen - mean) / std
    sizes, axes = torch.linalg.eigh(standard.T @ standard / len(standard))
    chosen = axes[:, -most:].flip(1) / sizes[-most:].mean().clamp(min=1e-6).sqrt()
    return mean.float(), std.float(), chosen.float()


def rate_at(step: int, steps: int, top: float, warm: int) -> float:
    "The learning rate: a short climb, then half a cosine down to nothing."
    if step < warm:
        return top * (step + 1) / warm
    return top * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class Distillation:
    "A student, its optimizer and how far it has come; all of it goes to a checkpoint and back."

    def __init__(self, given: argparse.Namespace, teacher: Backbone,
                 crops: Crops | CropsInMemory, device: str):
        self.given, self.teacher, self.crops, self.device = given, teacher, crops, device
        self.axes_learned = AXES if given.student == "glimpse" else 0
        self.student, former = new_student(given.student, self.axes_learned or teacher.dims,
                                           given.student_weights, given.seed)
        self.side = min(SIDE, self.student.net.image_size)
        self.student.to(device, memory_format=torch.channels_last).train()
        if device == "cuda":  # a third less time for a step, after most of a minute once
            teacher.batch = given.batch
            for network in (teacher.body, self.student): network.compile(dynamic=False)
        self.optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=given.rate, weight_decay=given.weight_decay,
            fused=device == "cuda")
        self.step, self.losses, self.bad = 0, [], set()
        self.recent: list[Tensor] = []  # losses that may not be there yet
        self.path = Path(f"{given.out}.checkpoint")
        # what a run must have in common with the one that it goes on with
        self.made_with = {name: vars(given)[name] for name in (
            "steps", "batch", "rate", "weight_decay", "seed", "teacher", "in_memory",
            "student")} | {
            "pictures": len(crops.paths), "teacher's weights": teacher.weights}
        if self.path.exists():
            self.resume()
        else:
            self.mean, self.std, self.axes = (each.to(device) for each in statistics(
                teacher, crops, given.batch, given.workers, given.statistics, self.axes_learned))
            if former and not self.axes_learned: self.standardise()

    def wanted(self, pixels: Tensor) -> Tensor:
        "What the student should give: the teacher's features, standardised, or their axes."
        features = (self.teacher(pixels) - self.mean) / self.std
        return features @ self.axes if self.axes_learned else features

    def images(self, pixels: Tensor) -> Tensor:
        "Pixels as the student takes them."
        images = pixels.float() / 255
        if self.side != SIDE:
            images = F.interpolate(images, self.side, mode="bilinear", antialias=True)
        return images.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def standardise(self) -> None:
        "Undo what `save_student` does to the last layer: its output is standardised again."
        last = self.student.net.project
        last.weight.div_(self.std[:, None])
        last.bias.sub_(self.mean).div_(self.std)

    def resume(self) -> None:
        "Go on with what the checkpoint holds."
        try:
            found = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as reason:  # a damaged archive fails in many ways
            raise FileError(self.path, f"cannot be read ({reason}): remove it to begin again"
                            ) from reason
        if other := [name for name, value in self.made_with.items()
                     if found["made_with"].get(name) != value]:
            raise FileError(
                self.path, f"was begun with another {other[0]}: {found['made_with'].get(other[0])},"
                f" not {self.made_with[other[0]]}; go on with that, or remove it")
        self.student.load_state_dict(found["student"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.step, self.losses = found["step"], found["losses"]
        self.mean, self.std, self.axes = (
            found[name].to(self.device) for name in ("mean", "std", "axes"))

    def save(self) -> None:
        "Write the checkpoint, whole or not at all."
        self.wait_for_losses()
        with replacing(self.path) as file:
            torch.save({"made_with": self.made_with, "student": self.student.state_dict(),
                        "optimizer": self.optimizer.state_dict(), "step": self.step,
                        "losses": self.losses, "mean": self.mean, "std": self.std,
                        "axes": self.axes}, file)

    def wait_for_losses(self) -> None:
        "Take down the losses of the last steps; asked for after each one, they would slow it down."
        self.losses += [loss.item() for loss in self.recent]
        self.recent.clear()

    def learn_from(self, pixels: Tensor) -> Tensor:
        "One step; the loss before it."
        pixels = pixels.to(self.device, non_blocking=True)
        with torch.no_grad():
            wanted, images = self.wanted(pixels), self.images(pixels)
        half = (torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext())
        with half:
            found = self.student(images)
        loss = distillation_loss(found.float(), wanted)
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, self.given.steps, self.given.rate, self.given.warm)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    @torch.compiler.set_stance("force_eager")  # not once more for batches of another size
    def agreement(self, paths: list[Path]) -> float:
        "Mean cosine of the student's and the teacher's standardised features of whole pictures."
        self.student.eval()
        found = []
        for pixels, _ in DataLoader(Squares(paths), 64, num_workers=self.given.workers,
                                    collate_fn=together):
            if not len(pixels): continue  # none of them could be read
            images = F.interpolate(pixels.to(self.device).float(), SIDE, mode="bilinear",
                                   antialias=True)
            pixels = images.round().to(torch.uint8)
            found.append(F.cosine_similarity(
                self.student(self.images(pixels)).float(), self.wanted(pixels)))
        return torch.cat(found).mean().item() if found else math.nan

    def run(self, until: int | None = None) -> None:
        "Train to the end, or until a step; a checkpoint comes every few minutes and at the end."
        given, saved = self.given, monotonic()
        stop = min(until or given.steps, given.steps)
        todo = islice(self.crops.batches(self.step, given.batch, given.workers), stop - self.step)
        with tqdm(todo, "distil", given.steps, initial=self.step) as bar:
            for pixels, bad in bar:
                for line in set(bad) - self.bad:
                    bar.write(printable(f"skipped {line}"), file=sys.stderr)
                self.bad |= set(bad)
                if len(pixels) < 2:
                    raise PickNetError("a batch without two pictures that can be read: "
                                       + next(iter(bad), "there are too few"))
                self.recent.append(self.learn_from(pixels))
                self.step += 1
                if self.step % 50 == 0:
                    self.wait_for_losses()
                    bar.set_postfix(loss=f"{np.mean(self.losses[-100:]):.3f}", refresh=False)
                if monotonic() - saved > given.save_every:
                    self.save()
                    saved = monotonic()
        self.save()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("out", type=Path, help="the student's weights, a .safetensors file")
    add("--pictures", type=Path, action="append", default=[], help="a folder; may be repeated")
    add("--clips", type=Path, action="append", default=[], help="a folder; may be repeated")
    add("--frames", type=int, default=30, help="of each clip")
    add("--student", default="lite0-clip", choices=("lite0-clip", "glimpse"))
    add("--teacher", default="clip-vit-b16")
    add("--teacher-weights", help="a file; default: those the teacher is known by")
    add("--student-weights", help="a file of EfficientNet-Lite0 or of a student to go on with, "
        "or random; default: ImageNet's")
    add("--steps", type=int, default=20_000)
    add("--batch", type=int, default=256)
    add("--rate", type=float, default=1e-3)
    add("--warm", type=int, default=500, help="steps in which the rate climbs")
    add("--weight-decay", type=float, default=0.02)
    add("--statistics", type=int, default=8192, help="crops that features are standardised by")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=max(1, usable_cores() - 1))
    add("--in-memory", action="store_true", help="keep all pictures in the device's memory")
    add("--held-out", type=int, default=0, help="pictures that are only measured on, at the end")
    add("--small", action="store_true", help="write matrices in eight bits: 5 MB instead of 11")
    add("--save-every", type=float, default=120.0, help="seconds between checkpoints")
    given = parser.parse_args(arguments)
    try:
        distil(given)
    except PickNetError as reason:
        sys.exit(f"distil: {printable(reason)}")


def distil(given: argparse.Namespace) -> Path:
    "Everything from folders to the student's file."
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = load_backbone(given.teacher, given.teacher_weights, device)
    paths = [path for folder in given.pictures for path in list_pictures(folder).values()]
    if given.clips:
        paths += frames_of(given.clips, Path(f"{given.out}.frames"), given.frames, given.workers)
    if len(paths) < 2:
        raise PickNetError("nothing to learn from: name folders with --pictures or --clips")
    np.random.default_rng(given.seed).shuffle(paths)
    apart, paths = paths[:given.held_out], paths[given.held_out:]
    count = given.steps * given.batch
    crops = (CropsInMemory(paths, count, given.seed, given.workers, device) if given.in_memory
             else Crops(paths, count, given.seed))
    course = Distillation(given, teacher, crops, device)
    course.run()
    last = course.losses[-100:]
    held_out = {"cosine on held-out pictures": f"{course.agreement(apart):.4f}"} if apart else {}
    # the axes of glimpse have no units to go back to
    units = (course.mean.new_zeros(AXES), course.mean.new_ones(AXES)) if course.axes_learned else (
        course.mean, course.std)
    out = save_student(course.student.net, given.out, *units, {
        "teacher": f"{given.teacher}, {teacher.weights}", "pictures": f"{len(paths)}",
        "crops": f"{len(crops)}", "loss": f"{sum(last) / len(last):.4f}", **held_out},
        small=given.small)
    course.path.unlink()
    print(f"{printable(out)}: {len(paths):,} pictures, {course.step:,} steps of {given.batch}, "
          f"loss {sum(last) / len(last):.4f} at the end, {out.stat().st_size / 1e6:.1f} MB"
          + "".join(f", {name} {value}" for name, value in held_out.items()))
    return out


if __name__ == "__main__":
    main()
