"""Would the tests notice? Put one fault after the other into a copy of the package, and say which
test catches it.

usage: python tools/mutants.py [words of a fault's name ...]
To add a fault, add a line to FAULTS: what it is, the module, the code as it stands, and the code
with the fault.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Fault(NamedTuple):
    "One deliberate mistake."
    what: str
    module: str
    code: str    # occurs once in the module
    wrong: str


FAULTS = [
    Fault(
        "entropy is punished instead of rewarded",
        "stages",
        "- settings.entropy_weight * tried.entropy",
        "+ settings.entropy_weight * tried.entropy",
    ),
    Fault(
        "the self-critical baseline is a sampled reward",
        "stages",
        "baseline = totals[-1] if settings",
        "baseline = totals[0] if settings",
    ),
    Fault(
        "scheduled sampling is always off",
        "stages",
        "return min(training.feedback_most, training.feedback_step * (epoch // "
        "training.feedback_every))",
        "return 0.0",
    ),
    Fault(
        "the pick limit restarts in stage three",
        "stages",
        "start_epoch(self.config.policy.shrink_epochs + epoch)",
        "start_epoch(epoch)",
    ),
    Fault(
        "stage three is trained on greedy picks",
        "stages",
        "self.beside, self.read = tried.sampled[0],",
        "self.beside, self.read = tried.greedy,",
    ),
    Fault(
        "supervision_picks is ignored",
        "training",
        'if settings.supervision_picks else all_frames',
        'if False else all_frames',
    ),
    Fault(
        "policy_start is ignored",
        "training",
        "wanted=wanted, start=config.policy.policy_start)",
        "wanted=wanted)",
    ),
    Fault(
        "word_weight is ignored",
        "extras",
        "(1 - training.word_weight) * loss + training.word_weight * spoken",
        "0.1 * loss + 0.9 * spoken",
    ),
    Fault(
        "stage three has the learning rate of stage one",
        "training",
        "parts, config.training.adaptation_rate,",
        "parts, config.training.supervision_rate,",
    ),
    Fault(
        "weights are averaged in stage two",
        "training",
        'average_weights and name != "reinforcement"',
        "average_weights",
    ),
    Fault(
        "the baseline of the others holds the sample itself",
        "reinforce",
        "(rewards.sum(0) - rewards) / (len(rewards) - 1)",
        "rewards.mean(0).expand_as(rewards)",
    ),
    Fault(
        "the policy gradient climbs away from reward",
        "reinforce",
        "return -((reward - baseline)",
        "return ((reward - baseline)",
    ),
    Fault(
        "feedback begins again in stage three",
        "stages",
        "self.given_picks, most, epochs)",
        "self.given_picks, most, 0)",
    ),
    Fault(
        "rewards are remembered after the captioner has learned",
        "stages",
        "if weights != self.weights or len",
        "if len",
    ),
    Fault(
        "consensus is ignored",
        "extras",
        "return None if self.weights is None else self.weights[captions]",
        "return None",
    ),
    Fault(
        "the diversity weight is ignored",
        "rewards",
        "+ settings.diversity_weight * diversity",
        "+ diversity",
    ),
    Fault(
        "the threshold is ignored in validation",
        "training",
        "threshold=trainer.config.policy.threshold)",
        "threshold=0.5)",
    ),
    Fault(
        "gradients are not exchanged between processes",
        "training",
        "    torch.distributed.all_reduce(flat)\n    flat /= world\n",
        "",
    ),
    Fault(
        "the first frame need not be picked",
        "pickers",
        "return picks | (torch.arange(picks.shape[1], device=picks.device) == 0)",
        "return picks",
    ),
    Fault(
        "a beam forgets whose state it continues",
        "captioner",
        "state = mapped(lambda each: each[(first + parent).flatten()], state)",
        "state = state",
    ),
    Fault(
        "padding is learned from",
        "fast",
        "return torch.where(words == PAD, 0, loss), total",
        "return loss, total",
    ),
]
TESTS = [
    "test_stages.py",
    "test_reinforce.py",
    "test_pickers.py",
    "test_captioner.py",
    "test_rewards.py",
    "test_training.py",
]


def copy_house(folder: Path) -> None:
    "Package and tests in a place of their own."
    for name in ("picknet_nb", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT/"data",
        folder/"data",
        ignore=shutil.ignore_patterns("corpora", "runs", "results", "ms*"),
    )


def put_in(fault: Fault, folder: Path) -> None:
    "Make the mistake; code that has changed since is named, so that the list stays true."
    path = folder/"picknet_nb"/f"{fault.module}.py"
    code = path.read_text()
    if code.count(fault.code) != 1:
        raise SystemExit(
            f"{fault.what}: its code occurs {code.count(fault.code)} times in {fault.module}.py; "
            f"see FAULTS in tools/mutants.py"
        )
    path.write_text(code.replace(fault.code, fault.wrong))


def first_failure(folder: Path) -> str:
    "The first test that fails, file by file; nothing if all pass."
    for name in TESTS:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "--no-header",
                "-p",
                "no:cacheprovider",
                f"tests/{name}",
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            env={
                "OMP_NUM_THREADS": "1",
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "PYTHONPATH": str(folder),
            },
        )
        if done.returncode:
            found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
            return found[1] if found else f"{name}: {done.stdout[-300:]}{done.stderr[-300:]}"
    return ""


def try_out(fault: Fault | None) -> str:
    "Which test catches a fault; with none, which fails anyway."
    with tempfile.TemporaryDirectory() as folder:
        copy_house(Path(folder))
        if fault: put_in(fault, Path(folder))
        return first_failure(Path(folder))


def main() -> None:
    chosen = [fault for fault in FAULTS if all(word in fault.what for word in sys.argv[1:])]
    if failing := try_out(None):
        raise SystemExit(f"the tests fail without any fault: {failing}")
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for fault, caught in zip(chosen, pool.map(try_out, chosen)):
            survived += not caught
            print(
                f"{'caught' if caught else 'NOT CAUGHT':10}  {fault.what:60}  {caught}", flush=True
            )
    print(f"\n{len(chosen) - survived} of {len(chosen)} faults caught")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
