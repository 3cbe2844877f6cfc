"A real Ray cluster of two nodes: lists of videos, features, experiments, and a node that dies."
import functools
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from lists import SHAPES, read, rows, videos  # noqa: F401, fixtures

import picknet_nb as pn
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.extraction import extract_folder, read_part
from picknet_nb.measure.experiments import Job, Workers, run_jobs
from picknet_nb.use.cluster import extract_on_ray
from picknet_nb.use.tables import caption_list, estimate


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    "A cluster of two nodes with a core each, and the second node, which may be killed."
    pytest.importorskip("ray")
    # a dependency of Jupyter's builds a grammar when it is imported, which takes every process of
    # Ray seconds
    quick = tmp_path_factory.mktemp("quick")
    (quick/"rfc3987_syntax.py").write_text('raise ImportError("left out")\n')
    tests = Path(__file__).parent
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(quick), str(tests.parent), str(tests), before.get("PYTHONPATH", "")])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # workers of Ray give way to every other process, and other tests would keep them from starting
    os.environ["RAY_worker_niceness"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster()
    how = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}

    def node(attempts: int = 8):
        "Ray gives the helpers of a node 15 seconds to start, which a busy machine may not have."
        try:
            return made.add_node(**how)
        except Exception as reason:
            if attempts == 1 or "timed out" not in str(reason): raise
            return node(attempts - 1)

    try:
        node()
        yield made, node()
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


def by_source(found: list[dict]) -> list[dict]:
    """Rows in the order of their sources. FFmpeg's own words about a broken file are left out: they
    come from its log, which another thread or process may have emptied."""
    plain = [{**row, "error": row["error"] and row["error"].partition(" (")[0]} for row in found]
    return sorted(plain, key=lambda row: row["source"])


def test_two_nodes_give_the_rows_of_one_process(nodes, tmp_path, videos, rows):
    address = nodes[0].address
    out = tmp_path/"captions.parquet"
    caption_list(videos, out, SHAPES, address, progress=False)
    assert by_source(read(out)) == by_source(rows)
    found = estimate(videos, None, SHAPES, address)
    assert (found["missing"], found["workers"]) == (len(videos), 2)


def test_two_nodes_extract_the_features_of_one_process(nodes, tmp_path, videos):
    cnn, extract = load_backbone("tiny"), functools.partial(extract_on_ray, ray=nodes[0].address)
    here = extract_folder(videos, tmp_path/"here", cnn, workers=1, progress=False)
    there = extract_folder(videos, tmp_path/"there", cnn, progress=False, extract=extract)
    assert there == here and len(there.failed) == 4
    for name in here.ids:
        one, other = read_part(tmp_path/"here", name), read_part(tmp_path/"there", name)
        assert all(torch.equal(one[key], other[key]) for key in one)


def note(corpus, bars, place, path: Path, after: Path | None = None) -> int:
    "A job: write which process did it, when what it waits for is there."
    assert after is None or after.exists()
    path.write_text(str(os.getpid()))
    return len(corpus.ids)


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


# after the others: it leaves one node
def test_a_node_that_dies_costs_no_row_and_doubles_none(nodes, videos, rows):
    made, second = nodes
    sources = [f"file://{video}" for video in videos] + videos
    found, killed = [], False
    dataset = pn.caption_many(sources, "shapes", ray=made.address)
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        found += block.to_pylist()
        if not killed:
            made.remove_node(second, allow_graceful=False)
            killed = True
    assert Counter(row["source"] for row in found) == Counter(sources)
    plain = [{**row, "source": row["source"].removeprefix("file://")} for row in found]
    assert by_source(plain) == by_source(rows + rows)
