"""Extraction that is killed, decoders that die, files that are no videos, weights that want to run code."""
import configparser
import copy
import gc
import os
import random
import re
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from picknet_nb import features
from picknet_nb.config import FileError, PickNetError
from picknet_nb.features import ClipShape, WeightsError, decode_files, extract_folder, load_cnn, rank_and_world, read_part, read_weights, usable_cores
from picknet_nb.video import glance, read_clip

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT/"data"/"example.mp4"
EXTRACT = """
import sys
from picknet_nb.features import extract_folder, load_cnn
done = extract_folder(sys.argv[1], sys.argv[2], load_cnn("tiny"), workers=1, progress=False)
print(len(done.ids), done.made, len(done.failed))
"""


@pytest.fixture
def videos(tmp_path) -> Path:
    folder = tmp_path/"videos"
    folder.mkdir()
    for number in range(8):
        (folder/f"clip{number}.mp4").symlink_to(EXAMPLE)
    return folder


def start(videos, out, **environment) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", EXTRACT, str(videos), str(out)], env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                            stdout=subprocess.PIPE, text=True, cwd=ROOT)


def parts(out: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted((out/"parts").glob("*.safetensors"))}


def test_killed_and_resumed(videos, tmp_path):
    "SIGKILL at random moments: nothing finished is lost, nothing is done twice, the result is that of an undisturbed run."
    whole, torn, chance = tmp_path/"whole", tmp_path/"torn", random.Random(0)
    extract_folder(videos, whole, load_cnn("tiny"), workers=1, progress=False)
    for _ in range(3):
        process = start(videos, torn)
        before = parts(torn) if (torn/"parts").exists() else {}
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if (torn/"parts").exists() and len(list((torn/"parts").glob("*.safetensors"))) > len(before):
                time.sleep(chance.random() * 0.3)
                break
            time.sleep(0.01)
        process.kill()
        process.wait()
        after = parts(torn)
        assert all(after[name] == content for name, content in before.items())
    before = parts(torn)
    last = start(videos, torn)
    said, _ = last.communicate(timeout=180)
    after = parts(torn)
    assert said.split() == ["8", str(8 - len(before)), "0"]
    assert all(after[name] == content for name, content in before.items())
    assert {name: content for name, (content, _) in after.items()} == {name: content for name, (content, _) in parts(whole).items()}


def test_decoders_end_with_their_parent(videos, tmp_path):
    "No process stays behind when the parent is killed."
    process = start(videos, tmp_path/"out")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    deadline = time.monotonic() + 120
    while not (found := children.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    while any(Path(f"/proc/{child}").exists() for child in found) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found and not any(Path(f"/proc/{child}").exists() for child in found)


def test_shards_of_torchrun(videos, tmp_path):
    "Two processes share the files, and each knows at the end what failed anywhere."
    (videos/"empty.mp4").touch()
    script = tmp_path/"extract.py"
    script.write_text(EXTRACT + "import os\nopen(f'{sys.argv[2]}.{os.environ[\"RANK\"]}', 'w').write(f'{len(done.ids)} {done.made} {len(done.failed)}')\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script), str(videos), str(tmp_path/"out")]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [Path(f"{tmp_path}/out.{rank}").read_text().split() for rank in range(2)]  # files: gloo writes into the shared pipe too
    assert [ids for ids, _, _ in said] == ["8", "8"] and [failed for _, _, failed in said] == ["1", "1"]
    assert sum(int(made) for _, made, _ in said) == 8 and all(int(made) for _, made, _ in said)
    alone = extract_folder(videos, tmp_path/"alone", load_cnn("tiny"), workers=1, progress=False)
    for name in alone.ids:
        assert_close(read_part(tmp_path/"out", name), read_part(tmp_path/"alone", name))


def test_one_of_torchrun_alone(videos, tmp_path, monkeypatch):
    "Whoever is told to does all files and waits for nobody."
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world() == (1, 2)
    done = extract_folder(videos, tmp_path/"out", load_cnn("tiny"), workers=1, progress=False, alone=True)
    assert (len(done.ids), done.made, done.failed) == (8, 8, {})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot be kept to some cores")
def test_cores_that_may_be_used():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(before)])
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cores() == len(before)


def audio_only(path: Path) -> None:
    import av
    import numpy as np

    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
        frame.rate = 44100
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


def test_bad_files_among_good_ones(videos, tmp_path, capfd):
    content = EXAMPLE.read_bytes()
    (videos/"empty.mp4").touch()
    (videos/"torn.mp4").write_bytes(content[:len(content) // 3])
    (videos/"garbled.mp4").write_bytes(random.Random(1).randbytes(20_000))
    audio_only(videos/"sound.mp4")
    (videos/"notes.txt").write_text("not looked at")
    done = extract_folder(videos, tmp_path/"out", load_cnn("tiny"), workers=2)
    assert len(done.ids) == 8 and set(done.failed) == {"empty", "torn", "garbled", "sound"}
    lines = [line for line in capfd.readouterr().err.replace("\r", "\n").splitlines() if line.startswith("skipped")]
    assert len(lines) == 4 and any("empty" in line for line in lines) and any("no video" in line for line in lines)


@pytest.mark.skipif(sys.platform != "linux", reason="patches what forked decoders do")
def test_decoder_that_dies(videos, tmp_path, monkeypatch):
    "Killed once, the file is tried again; killed every time, it is reported; the others come through."
    once = tmp_path/"once"

    def deadly(path, *rest):
        if "clip3" in path or ("clip5" in path and not once.exists()):
            once.touch() if "clip5" in path else None
            os.kill(os.getpid(), signal.SIGKILL)
        return read_clip(path, *rest)

    monkeypatch.setattr(features, "read_clip", deadly)
    done = extract_folder(videos, tmp_path/"out", load_cnn("tiny"), workers=2, progress=False)
    assert set(done.failed) == {"clip3"} and "died (exit status -9)" in done.failed["clip3"]
    assert len(done.ids) == 7 and once.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="patches what forked decoders do")
def test_decoder_that_hangs(videos, monkeypatch):
    "A decoder that does not come back is ended after its time."
    monkeypatch.setattr(features, "read_clip", lambda path, *rest: time.sleep(1000) if "clip0" in path else read_clip(path, *rest))
    monkeypatch.setattr(features, "_GRACE", 0.5)
    jobs = [("clip0", videos/"clip0.mp4"), ("clip1", videos/"clip1.mp4")]
    results = {each.name: each for each in decode_files(jobs, ClipShape(4, 32, time_limit=0.5), workers=2)}
    assert "time limit" in results["clip0"].reason


def test_other_settings_are_refused(videos, tmp_path):
    extract_folder({"clip0": videos/"clip0.mp4"}, tmp_path/"out", load_cnn("tiny"), workers=1, progress=False)
    with pytest.raises(FileError, match="begun with frames 30, not 10"):
        extract_folder(videos, tmp_path/"out", load_cnn("tiny"), frames=10, workers=1, progress=False)


def test_features_are_those_of_the_frames(videos, tmp_path):
    extract_folder(videos, tmp_path/"out", load_cnn("tiny"), frames=7, glance_size=20, workers=1, progress=False)
    part, frames = read_part(tmp_path/"out", "clip0"), read_clip(EXAMPLE, 7, 96).frames
    assert torch.equal(part["glances"], glance(frames, 20))
    assert_close(part["features"], load_cnn("tiny")(frames).half())


def test_tiny_is_the_same_network_everywhere():
    frames = (torch.arange(2 * 3 * 96 * 96) * 7919 % 251).to(torch.uint8).view(2, 3, 96, 96)
    found = load_cnn("tiny")(frames)
    assert found.shape == (2, 256)
    assert_close(found[:, ::64], torch.tensor(TINY), rtol=1e-3, atol=1e-3)


TINY = [[1.8572, 0.2103, -0.0265, 0.2210], [1.8689, 0.1316, 0.5700, 0.3791]]


class Attack:
    def __init__(self, command): self.command = command
    def __reduce__(self): return os.system, (self.command,)


def test_weights_that_want_to_run_code(tmp_path):
    torch.save({"conv1.weight": Attack(f"touch {tmp_path}/ran")}, tmp_path/"evil.pth")
    for load in (read_weights, lambda path: load_cnn("resnet18", path)):
        with pytest.raises(WeightsError, match="refused.*run code"):
            load(tmp_path/"evil.pth")
    assert not (tmp_path/"ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"x" * 100])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_damaged_weights(tmp_path, content, ending):
    (tmp_path/f"weights.{ending}").write_bytes(content)
    with pytest.raises(WeightsError):
        load_cnn("resnet18", tmp_path/f"weights.{ending}")


def test_weights_of_another_network(tmp_path):
    import torchvision

    torch.save(torchvision.models.resnet18().state_dict(), tmp_path/"resnet18.pth")
    with pytest.raises(WeightsError, match=r"(has no layer1.0.conv3.weight|layer1.0.conv1.weight is).*is it another network\? See --cnn"):
        load_cnn("resnet50", tmp_path/"resnet18.pth")
    assert load_cnn("resnet18", tmp_path/"resnet18.pth").dims == 512


def test_files_of_both_kinds_and_the_first_resnet(tmp_path):
    "The same weights from both kinds of file are the same network; a note in the file chooses where the stride sits."
    import torchvision

    torch.manual_seed(0)
    state = torchvision.models.resnet50().state_dict()
    torch.save(state, tmp_path/"plain.pth")
    safetensors.torch.save_file(state, tmp_path/"plain.safetensors")
    safetensors.torch.save_file(state, tmp_path/"first.safetensors", metadata={"stride": "first 1x1"})
    frames = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    plain, same, noted = (load_cnn("resnet50", tmp_path/name) for name in ("plain.pth", "plain.safetensors", "first.safetensors"))
    named = load_cnn("resnet50-v1", tmp_path/"plain.pth")
    assert (plain.name, noted.name, named.name) == ("resnet50", "resnet50-v1", "resnet50-v1")
    assert torch.equal(plain(frames), same(frames)) and torch.equal(noted(frames), named(frames))
    assert not torch.allclose(plain(frames), noted(frames), rtol=1e-2)
    assert_close(load_cnn("resnet50-v1", tmp_path/"plain.pth", fast=True)(frames), named(frames), rtol=1e-3, atol=1e-4)


def test_a_folded_network_is_only_numbers():
    "No gradients, no trace of the network it was made from: it can be copied, and the other one goes."
    import torchvision

    plain = features.ResNet(torchvision.models.resnet18()).eval()
    weight = weakref.ref(plain.net.layer1[0].conv1.weight)
    fast = features.FastResNet(plain)
    assert not any(tensor.requires_grad for tensor in [*fast.buffers(), *fast.parameters()])
    again, images = copy.deepcopy(fast), torch.rand(1, 3, 64, 64)
    assert torch.equal(again(images), fast(images))
    del plain
    gc.collect()
    assert weight() is None


def test_no_network(monkeypatch, tmp_path):
    "Without the file and without a network, the error says which file is wanted and where it may stand."
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("network is unreachable")))
    monkeypatch.setattr("torch.hub.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("network is unreachable")))
    with pytest.raises(WeightsError, match="resnet18.*cannot be fetched.*checkpoints"):
        load_cnn("resnet18")


def test_the_oldest_torch_that_is_promised_has_what_is_called():
    "`torch.mm(out_dtype=...)` came with 2.8; every torchvision is made for one torch: 0.23 for 2.8, 0.24 for 2.9."
    settings = configparser.ConfigParser(delimiters=["="])
    settings.read(ROOT/"settings.ini")
    oldest = {name: int(minor) for name, minor in re.findall(r"(torch|torchvision)>=\d+\.(\d+)", settings["DEFAULT"]["requirements"])}
    called = any("out_dtype=" in path.read_text() for path in (ROOT/"picknet_nb").glob("*.py"))
    assert oldest["torch"] >= (8 if called else 4) and oldest["torchvision"] == oldest["torch"] + 15


def test_wrong_frames_and_names():
    with pytest.raises(PickNetError, match="no CNN"):
        load_cnn("resnet34000")
    with pytest.raises(PickNetError, match="uint8"):
        load_cnn("tiny")(torch.rand(1, 3, 96, 96))
    assert load_cnn("tiny")(torch.zeros(0, 3, 96, 96, dtype=torch.uint8)).shape == (0, 256)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["resnet18", "resnet50-v1", "resnet152"])
def test_fast_on_cuda_equals_plain(name):
    "bfloat16, channels last and fused kernels against plain float32 on the CPU."
    frames = torch.randint(0, 256, (4, 3, 224, 224), dtype=torch.uint8)
    plain, fast = load_cnn(name, "random")(frames), load_cnn(name, "random", "cuda")(frames).cpu()
    assert ((plain - fast).norm() / plain.norm()) < 0.03
    assert torch.nn.functional.cosine_similarity(plain, fast).min() > 0.999
