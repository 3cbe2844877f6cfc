"A real Ray cluster on this machine, whose nodes may die and come back."
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from reliability import processor_time

from picknet_nb.core.processes import _end_node

_TRIES = 20  # of a node, half a minute each


@contextmanager
def cluster(quick: Path) -> Iterator[tuple[object, Callable]]:  # quick: a folder that is empty
    "A cluster that has one node with one core, and what adds another one."
    # a dependency of Jupyter's builds a grammar when it is imported, which takes every process of
    # Ray seconds
    (quick/"rfc3987_syntax.py").write_text('raise ImportError("left out")\n')
    tests = Path(__file__).resolve().parent
    before = dict(os.environ)
    paths = str(quick), str(tests.parent), str(tests), before.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYTHONSAFEPATH"] = "1"  # as the command sets it
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # workers of Ray give way to every other process, and other tests would keep them from starting
    os.environ["RAY_worker_niceness"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster()
    how = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}

    def node():
        """Ray gives a node half a minute to start, which a busy machine may not have: it is tried
        again as long as there is progress, which is that the machine computes for us."""
        for tries in range(1, _TRIES + 1):
            before = processor_time()
            try:
                return made.add_node(**how)
            except Exception as reason:
                still = processor_time() == before  # the dead count no more
                # beside what is left of this node the next one would be slower still
                _end_node(reason)
                if "timed out" not in str(reason) or still or tries == _TRIES: raise

    try:
        node()
        yield made, node
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


def hold_two_nodes(line: Connection, quick: Path) -> None:
    """In a process of its own: send the address of a cluster of two nodes; at every message kill
    the second node and add another one; end with the other end of the line."""
    os.setsid()  # Ctrl-C is for the other end
    with cluster(quick) as (made, node):
        second = node()
        line.send(made.address)
        try:
            while True:
                line.recv()
                made.remove_node(second, allow_graceful=False)
                second = node()
                line.send(made.address)
        except EOFError:
            return
