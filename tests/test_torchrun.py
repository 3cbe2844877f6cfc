"Training on two nodes that torchrun joins."
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Forked, free_port
from reliability import wait_for

import picknet_nb as pn
from picknet_nb.interface.main import main
from picknet_nb.training.runs import read_log


class Torchrun:
    "A command on a node of one process, in the hands of torchrun itself."

    def __init__(self, rank: int, port: int, folder: Path, *words: str):
        root = str(Path(pn.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node",
             "1", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port",
             str(port), "-m", "picknet_nb.interface.main", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path[1:]])}, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def poll(self) -> int | None: return self.process.poll()

    def standing(self) -> str:
        self.process.terminate()
        return self.process.communicate()[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        "Exit status and output, once it has ended."
        said = self.process.communicate()[0]
        return self.process.returncode, said


class Node(Forked):
    "The same command in a fork that is told what torchrun tells: no import takes seconds."

    def __init__(self, rank: int, port: int, folder: Path, *words: str):
        def command() -> None:
            os.chdir(folder)
            os.environ.update(WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK="0",
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            sys.argv = ["picknet", *words]
            main()

        super().__init__(command)

    def stop(self) -> None:
        self.kill()
        self.wait()

    def end(self) -> tuple[int, str]: return self.wait(), self.output()


def ends(nodes: list) -> list[tuple[int, str]]:
    "How all of them have ended; none outlives the first that fails."
    codes = lambda: [node.poll() for node in nodes]
    wait_for(lambda: any(codes()) or None not in codes(),
             explain=lambda: "\n".join(node.standing() for node in nodes))
    for node in nodes:
        if node.poll() is None: node.stop()
    return [node.end() for node in nodes]


@pytest.mark.parametrize("start", [Node, pytest.param(Torchrun, marks=pytest.mark.long)])
def test_two_nodes_train_one_model_and_resume_it(start, tmp_path):
    "Two nodes of one process each, with a shared folder; what they resume ends the same."
    run = tmp_path/"run"

    def train(*more: str) -> list:
        port = free_port()
        return [start(rank, port, tmp_path, "train", str(run), *more) for rank in range(2)]

    log = run/"log.jsonl"
    epochs_done = lambda: log.read_text().count("\n") if log.exists() else 0
    epochs = lambda count: ("--set", f"supervision_epochs={count}")
    first = train("--data", "shapes", "--preset", "smoke", "--experiment", "Baseline", *epochs(500))
    wait_for(lambda: epochs_done() >= 2)
    for node in first: node.stop()
    last = epochs_done() + 2
    ended = ends(train("--resume", *epochs(last)))
    assert [status for status, _ in ended] == [0, 0], "\n".join(said for _, said in ended)
    # one process wrote, and the second call began where the first had ended
    found = [(each["stage"], each["epoch"]) for each in read_log(log)]
    assert found == [("supervision", epoch) for epoch in range(last)]
    assert (run/"weights.safetensors").exists()
