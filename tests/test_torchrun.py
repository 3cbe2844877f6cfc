"Training on two nodes that torchrun joins."
import os
import subprocess
import sys
from pathlib import Path

from conftest import free_port
from reliability import wait_for

import picknet_nb as pn
from picknet_nb.training.runs import read_log


def test_two_nodes_of_torchrun_train_one_model_and_resume_it(tmp_path):
    "Two nodes of one process each, with a shared folder; what they resume ends the same."
    run, port = tmp_path/"run", free_port()

    def train(*more: str) -> list[subprocess.Popen]:
        nodes = [
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node",
             "1", "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", str(port),
             "-m", "picknet_nb.interface.main", "train", str(run), *more]
            for rank in "01"
        ]
        root = str(Path(pn.__file__).parents[1])
        where = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path[1:]])}
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return [subprocess.Popen(each, env=where, cwd=tmp_path, **pipe) for each in nodes]

    log = run/"log.jsonl"
    epochs_done = lambda: log.read_text().count("\n") if log.exists() else 0
    epochs = lambda count: ("--set", f"supervision_epochs={count}")
    first = train("--data", "shapes", "--preset", "smoke", "--experiment", "Baseline", *epochs(500))
    wait_for(lambda: epochs_done() >= 2)
    for process in first: process.terminate()
    for process in first: process.communicate()
    last = epochs_done() + 2
    second = train("--resume", *epochs(last))
    said = [process.communicate()[0] for process in second]
    assert [process.returncode for process in second] == [0, 0], "\n".join(said)
    # one process wrote, and the second call began where the first had ended
    found = [(each["stage"], each["epoch"]) for each in read_log(log)]
    assert found == [("supervision", epoch) for epoch in range(last)]
    assert (run/"weights.safetensors").exists()
