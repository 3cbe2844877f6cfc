"A real Ray cluster of two nodes: lists of videos, features, experiments, and a node that dies."
import functools
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import clusters
import pytest
import torch
from clusters import cluster
from lists import SHAPES, captioner, read, rows, videos  # noqa: F401, fixtures
from reliability import processor_time, run_process, wait_for

import picknet_nb as pn
from picknet_nb.core.files import PickNetError
from picknet_nb.core.processes import connected
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.extraction import extract_folder, read_part
from picknet_nb.measure.experiments import Job, Workers, run_jobs
from picknet_nb.training.models import find_model
from picknet_nb.use.cluster import as_they_come, extract_on_ray, on_ray, rows_on_ray
from picknet_nb.use.many import Specification
from picknet_nb.use.tables import caption_list


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    "A cluster of two nodes with a core each, and the second node, which may be killed."
    pytest.importorskip("ray")
    # what lies in the current folder is nobody's business; an import of it is noted
    here = tmp_path_factory.mktemp("here")
    (here/"colorsys.py").write_text(f"open({str(here/'imported')!r}, 'a').write('once')\n")
    came_from = os.getcwd()
    os.chdir(here)
    try:
        with cluster(tmp_path_factory.mktemp("quick")) as (made, node):
            yield made, node()
            assert not (here/"imported").exists(), "a process of Ray ran a module of this folder"
    finally:
        os.chdir(came_from)


class SlowNode:
    "A node of Ray that computes, and has not started when Ray's time for it is over."

    def start(self) -> None:
        before = processor_time()
        self.process = subprocess.Popen((sys.executable, "-c", "while True: pass"))
        wait_for(lambda: processor_time() > before)
        raise Exception("The current node timed out during startup.")

    def kill_all_processes(self, **how) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("slow", [2, 3])
def test_a_node_that_starts_too_slowly_is_started_again_but_not_for_ever(
    tmp_path, monkeypatch, slow
):
    pytest.importorskip("ray")
    monkeypatch.setattr(clusters, "_TRIES", 3)
    nodes = [SlowNode() for _ in range(slow)]

    class Made:
        left = [*nodes]
        shutdown = staticmethod(lambda: None)

        def add_node(self, **how):
            if self.left: self.left.pop().start()
            return "a node"

    with patch("ray.cluster_utils.Cluster", Made):
        if slow == 3:
            with pytest.raises(Exception, match="timed out"), clusters.cluster(tmp_path): pass
        else:
            with clusters.cluster(tmp_path) as (_, node):
                assert node() == "a node"
    assert not Made.left and all(node.process.poll() is not None for node in nodes)


def by_source(found: list[dict]) -> list[dict]:
    """Rows in the order of their sources. FFmpeg's own words about a broken file are left out: they
    come from its log, which another thread or process may have emptied."""
    plain = [{**row, "error": row["error"] and row["error"].partition(" (")[0]} for row in found]
    return sorted(plain, key=lambda row: row["source"])


def test_two_nodes_give_the_rows_of_one_process(nodes, tmp_path, videos, rows, monkeypatch):
    out = tmp_path/"captions.parquet"
    monkeypatch.setenv("PICKNET_SOURCE_BYTES", "100")  # which workers learn from us
    shutil.copytree(find_model("shapes"), tmp_path/"mine")
    monkeypatch.chdir(tmp_path)
    address = f"local://{videos[0]}"
    asked = [Path(videos[-1]), address, *videos]
    caption_list(asked, out, Specification("./mine"), nodes[0].address, progress=False)
    found = read(out)
    assert [row["source"] for row in found] == [videos[-1], address, *videos[:-1]]
    large = found.pop(1)
    assert large["error"] == "has more than 100 bytes (PICKNET_SOURCE_BYTES)"
    assert by_source(found) == by_source(rows)


def search_path() -> list[str]:
    import colorsys  # noqa: F401, the one of Python
    return sys.path


def test_workers_import_nothing_from_the_current_folder(nodes):
    ray = connected(nodes[0].address)
    path = ray.get(ray.remote(search_path).remote())
    assert os.getcwd() not in path and "" not in path


def test_a_node_without_the_model_is_one_sentence(nodes, videos, tmp_path):
    wrong = lambda _: Specification(str(tmp_path/"nowhere"))
    with patch.object(Specification, "absolute", wrong):
        dataset = rows_on_ray(connected(nodes[0].address), videos[:1], SHAPES)
        with pytest.raises(PickNetError, match="the workers of the cluster failed: .*nowhere"):
            list(as_they_come(connected(nodes[0].address), dataset))


def test_a_cluster_that_starts_no_process_is_one_sentence():
    "A node that is too busy gives up while Ray Data looks at the list, before there are rows."
    exceptions = pytest.importorskip("ray.exceptions")
    busy = SimpleNamespace(nodes=lambda: [], exceptions=exceptions)
    late = exceptions.RaySystemError("Failed to startup worker after retrying 5 times.")
    sentence = "the workers of the cluster failed: .*Failed to startup worker"
    with patch("ray.data.from_arrow", side_effect=late):
        with pytest.raises(PickNetError, match=sentence):
            rows_on_ray(busy, ["a.mp4"], SHAPES)


def test_a_worker_that_dies_again_and_again_is_one_sentence(nodes):
    "Ray Data would start it anew for ever: a video that needs too much memory would hold up all."
    class Dies:  # not of this module, which every new worker would import
        def __call__(self, block): __import__("os")._exit(1)

    ray = connected(nodes[0].address)
    sentence = "workers of the cluster failed: one of them died 5 times"
    with pytest.raises(PickNetError, match=sentence):
        list(as_they_come(ray, on_ray(ray, Dies, lambda share: (), {"source": ["a.mp4"]}, 1)))


def test_two_nodes_extract_the_features_of_one_process(nodes, tmp_path, videos):
    cnn, extract = load_backbone("tiny"), functools.partial(extract_on_ray, ray=nodes[0].address)
    here = extract_folder(videos, tmp_path/"here", cnn, workers=1, progress=False)
    there = extract_folder(videos, tmp_path/"there", cnn, progress=False, extract=extract)
    assert there == here and len(there.failed) == 4
    for name in here.ids:
        one, other = read_part(tmp_path/"here", name), read_part(tmp_path/"there", name)
        assert all(torch.equal(one[key], other[key]) for key in one)


def note(corpus, bars, bar_line, path: Path, after: Path | None = None) -> int:
    "A job: write which process did it, when what it waits for is there."
    assert after is None or after.exists()
    path.write_text(str(os.getpid()))
    return len(corpus.ids)


def test_a_list_shorter_than_the_workers_has_no_idle_ones(nodes, videos):
    "A worker without a block would load its model in vain, and Ray Data warns of it."
    ray = connected(nodes[0].address)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(list(as_they_come(ray, rows_on_ray(ray, videos[:1], SHAPES)))) == 1


def test_jobs_of_an_experiment_are_tasks_of_the_cluster(nodes, tmp_path):
    crew = Workers.open("shapes", "smoke", bars=False, ray=nodes[0].address)
    first, second = tmp_path/"first", tmp_path/"second"
    jobs = [
        Job(second, functools.partial(note, path=second, after=first), (first,)),
        Job(first, functools.partial(note, path=first)),
    ]
    assert set(run_jobs(jobs, crew).values()) == {len(crew.corpus.ids)}
    assert str(os.getpid()) not in (first.read_text(), second.read_text())
    wrong = Job(tmp_path/"third", functools.partial(note, path=tmp_path/"no"/"folder"))
    with pytest.raises(FileNotFoundError):
        run_jobs([wrong], crew)


def start_in_vain() -> None:
    "Ray on this machine, whose node is given no time to start; prints what is left of it."
    import psutil
    from ray._private import services

    late = Exception("The current node timed out during startup.")
    with (
        patch.object(services, "get_node", side_effect=late),
        patch("picknet_nb.core.processes._START_SECONDS", 0),
        pytest.raises(PickNetError, match="Ray did not start on this machine: .* timed out"),
    ):
        connected("local")
    left = psutil.Process().children(recursive=True)
    print([each.name() for each in left if each.status() != psutil.STATUS_ZOMBIE])


def test_a_ray_that_was_imported_before_asks_for_the_token_too():
    "In a process of its own: Ray reads its switches when it is imported, before we set them."
    pytest.importorskip("ray")
    asked = """
import ray
from ray._private import ray_constants
ray.init = lambda *given, **more: None
from picknet_nb.core.processes import connected
connected("local")
print(ray_constants.ENABLE_RAY_CLUSTER)
try:
    from ray._raylet import AuthenticationTokenLoader, get_authentication_mode
    print(int(get_authentication_mode()), AuthenticationTokenLoader.instance().has_token())
except ImportError:  # a version without tokens
    print("1 True")
"""
    switches = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    there = {name: value for name, value in os.environ.items() if name not in switches}
    run = subprocess.run(
        (sys.executable, "-c", asked), env=there, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "1", "True"], run.stdout + run.stderr


@pytest.mark.long  # test_many.py has it without a real Ray
def test_a_ray_that_did_not_start_leaves_no_process_beside_the_next_attempt():
    pytest.importorskip("ray")
    tests = Path(__file__).parent
    paths = os.pathsep.join(map(str, (tests.parent, tests)))
    words = sys.executable, "-c", "from test_cluster import start_in_vain; start_in_vain()"
    done = run_process(words, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def start_and_wait() -> None:
    "Ray on this machine, as `--ray local` starts it, until a line arrives."
    with patch("picknet_nb.core.processes._START_SECONDS", 600):  # a busy machine
        ray = connected("local")
    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], flush=True)
    input()


STRANGER = """
import ray, sys
ray.init(sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(lambda: "in").options(num_cpus=0).remote()))
"""


@pytest.mark.long  # test_many.py sees that a token is asked for
def test_a_stranger_without_the_token_is_kept_out(tmp_path):
    pytest.importorskip("ray")
    tests = Path(__file__).parent
    paths = os.pathsep.join(map(str, (tests.parent, tests)))
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("RAY_")} | {"PYTHONPATH": paths}
    words = sys.executable, "-c", "from test_cluster import start_and_wait; start_and_wait()"
    ours = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)
    with ours:
        try:
            address, token = ours.stdout.readline().split()
            # without a home, where an earlier Ray may have left a token; and Ray's own switch, or
            # it asks at the address of this machine in its network, where nobody listens
            stranger = environment | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token",
                                      "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
            enter = lambda token: run_process(
                (sys.executable, "-c", STRANGER, address), cwd=tmp_path,
                env=stranger | {"RAY_AUTH_TOKEN": token})
            assert enter(token).stdout == "in\n"  # so the token is what makes the difference
            out = enter("0" * 64)
        finally:
            ours.communicate("\n")
    assert out.returncode and not out.stdout and "uthentication" in out.stderr, out.stderr


# after the others: it leaves one node
def test_a_node_that_dies_costs_no_row_and_doubles_none(nodes, videos, rows):
    made, second = nodes
    sources = [f"local://{video}" for video in videos] + videos
    found, killed = [], False
    dataset = pn.caption_many(sources, "shapes", ray=made.address)
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        found += block.to_pylist()
        if not killed:
            made.remove_node(second, allow_graceful=False)
            killed = True
    assert Counter(row["source"] for row in found) == Counter(sources)
    version = {row["source"]: row["version"] for row in rows}  # fsspec has others
    plain = [{**row, "source": name, "version": version[name]} for row in found
             for name in [row["source"].removeprefix("local://")]]
    assert by_source(plain) == by_source(rows + rows)
