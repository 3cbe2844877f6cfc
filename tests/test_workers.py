"""The pool: every job gets one answer, whatever becomes of the workers, and nobody outlives the
one who asked."""
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path

import pytest
from conftest import Forked
from reliability import tally, wait_for

from picknet_nb.core import processes as workers
from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.processes import Done, Pool, apart, can_fork, rank_and_world, usable_cores

STARTS = ["fork"] * (sys.platform == "linux") + ["spawn"]
START = STARTS[0]
each_start = pytest.mark.parametrize("start", STARTS)
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes as Linux shows them")


# what the workers do: spawned ones find it by name
# ------------------------------------------------------------------


def square(job):
    return job * job


def twice(job):
    return 2 * job


def with_everything(job, made, room, *arguments):
    room[0] = job
    return made, os.getpid(), arguments


def make_room():
    import torch  # here, because every worker that is spawned imports this file, and few need it
    return torch.zeros(1, dtype=torch.int64).share_memory_()


def collect(answer, room):
    return int(room[0]), answer


def set_up(place):
    return f"place {place}"


def refuse_to_set_up(place):
    raise FileError("weights.pth", "not there")


def note(folder, job) -> int:
    "How often this job was begun, this time included."
    with open(Path(folder)/f"{job}.begun", "a") as file:
        file.write(f"{os.getpid()}\n")
    return len((Path(folder)/f"{job}.begun").read_text().split())


def begun(folder, job) -> list[str]:
    return (Path(folder)/f"{job}.begun").read_text().split()


def die_on(job, folder, fatal, times):
    "Ends its process, so many times, on one of the jobs."
    if note(folder, job) <= times and job == fatal:
        os._exit(7)
    return job


def struck(job):
    if job == "struck":
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def hang_on(job, folder, seconds):
    note(folder, job)
    time.sleep(600 if job == "hangs" else seconds)
    return job


def complain(job):
    if job == 2:
        raise FileError("clip.mp4", "is broken")
    return job


class Picky(Exception):
    "An error that cannot be made again from what it is shown as."
    def __init__(self, path, reason): super().__init__(f"{path} {reason}")


class Private(Exception):
    "An error that cannot travel at all."
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def raise_odd(job):
    raise {"picky": Picky, "private": lambda *words: Private(" ".join(words))}[job](
        "clip.mp4", "is broken"
    )


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


unnamed = lambda: None  # noqa: E731 (it is the lambda that cannot be pickled)
UNSENDABLE = {
    "a function inside a function": lambda: lambda: None,
    "an unnamed function": lambda: unnamed,
    "a lock": threading.Lock,
    "a list ten thousand deep": lambda: nested(10_000),
}


def answer_with(job):
    return UNSENDABLE[job]()


def die_while_answering(job, folder):
    "Begins to send an answer larger than any pipe, and the first time does not live to end it."
    if job == "large" and note(folder, job) == 1:
        threading.Timer(0.5, os._exit, (3,)).start()
    return job * 10_000_000


def process_of(job):
    return os.getpid()


def alive(process) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# answers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "crew"), [("fork", 1), ("fork", 3), ("spawn", 2)][2 * (START == "spawn") :]
)
def test_every_job_gets_exactly_one_answer(start, crew):
    done = list(Pool(square, crew, start=start).run(range(12)))
    assert Counter(each.job for each in done) == Counter(range(12))
    assert all(each == Done(each.job, each.job**2, "") for each in done)


def test_no_jobs_and_no_workers_to_speak_of():
    assert list(Pool(square, 3).run([])) == []
    # as many workers as jobs, and no more
    assert [each.answer for each in Pool(square, 50).run([3])] == [9]
    # the same job twice, one that counts as false
    assert sorted(each.answer for each in Pool(square, 2).run(iter((3, 3, 0)))) == [0, 9, 9]


@each_start
def test_what_a_worker_is_given(start):
    "What its setup made, a room of its own that is read before the next job, and the arguments."
    done = list(
        Pool(with_everything, 2, ("x", "y"), make_room, collect, set_up, start=start).run(
            range(1, 9)
        )
    )
    processes = {}
    for job, (seen, (made, process, arguments)), reason in done:
        assert seen == job and arguments == ("x", "y") and not reason
        assert processes.setdefault(made, process) == process and process != os.getpid()
    assert len(done) == 8 and set(processes) <= {"place 1", "place 2"}


@each_start
def test_jobs_that_come_while_it_runs(start):
    "Each finished job brings two more, the very last one, too."
    jobs, found = deque([1]), []
    for done in Pool(square, 2, start=start).run(jobs):
        found.append(done.job)
        if done.job < 8:
            jobs.extend((2 * done.job, 2 * done.job + 1))
    assert sorted(found) == list(range(1, 16))


def test_jobs_and_answers_larger_than_a_pipe():
    done = list(
        Pool(twice, 2, start=START).run([bytes([number]) * 5_000_000 for number in range(4)])
    )
    assert len(done) == 4 and all(each.answer == 2 * each.job for each in done)


# workers that die or hang
# -------------------------------------------------------------------------------------------


@each_start
def test_a_worker_that_dies_is_replaced_and_its_job_tried_once_more(start, tmp_path):
    done = {each.job: each for each in Pool(die_on, 2, (tmp_path, 3, 1), start=start).run(range(6))}
    assert {job: each.answer for job, each in done.items()} == {job: job for job in range(6)}
    first, second = begun(tmp_path, 3)
    assert first != second and all(len(begun(tmp_path, job)) == 1 for job in range(6) if job != 3)
    tally("faults", "worker that dies", "injected")


@each_start
def test_a_job_that_kills_twice_is_reported_and_the_others_are_done(start, tmp_path):
    done = list(Pool(die_on, 2, (tmp_path, 3, 99), start=start).run(range(6)))
    assert Counter(each.job for each in done) == Counter(range(6)) and len(begun(tmp_path, 3)) == 2
    lost, = (each for each in done if each.reason)
    assert lost == Done(3, None, "its process died (exit status 7)")
    tally("faults", "worker that dies", "injected")


@linux
def test_a_worker_that_is_struck_by_a_signal():
    done = {each.job: each for each in Pool(struck, 1).run(["one", "struck", "two"])}
    assert done["struck"] == Done("struck", None, "its process died (exit status -9)")
    assert done["one"].answer == "one" and done["two"].answer == "two"


@linux
def test_a_worker_that_dies_while_it_has_nothing_to_do():
    jobs, processes = deque([1, 2]), []
    for done in Pool(process_of, 2).run(jobs):
        processes.append(done.answer)
        if len(processes) == 2:  # both wait for work now
            for process in set(processes): os.kill(process, signal.SIGKILL)
            wait_for(lambda: not any(map(alive, processes)))
            jobs.extend((3, 4))
        assert not done.reason
    assert len(processes) == 4 and not set(processes[:2]) & set(processes[2:])


def test_a_worker_that_dies_in_the_middle_of_its_answer(tmp_path):
    done = {}
    for each in Pool(die_while_answering, 2, (tmp_path,), start=START).run(["", "large"]):
        done[each.job] = each
        if not each.job:
            time.sleep(1.0)  # nobody reads meanwhile
    assert len(begun(tmp_path, "large")) == 2 and {
        job: each.answer for job, each in done.items()
    } == {"": "", "large": "large" * 10_000_000}


@each_start
def test_a_worker_that_hangs_is_ended_at_its_time_limit(start, tmp_path):
    # a spawned worker has an interpreter to start first
    begin, limit = time.monotonic(), 1.0 if start == "fork" else 12.0
    done = {
        each.job: each
        for each in Pool(hang_on, 2, (tmp_path, 0), start=start, time_limit=limit).run(
            ["hangs", *range(4)]
        )
    }
    # not tried again
    assert (
        done["hangs"] == Done("hangs", None, "took longer than its time limit")
        and len(begun(tmp_path, "hangs")) == 1
    )
    assert (
        all(done[job].answer == job for job in range(4))
        and limit <= time.monotonic() - begin
    )
    assert not any(map(alive, begun(tmp_path, "hangs")))
    tally("faults", "hanging worker", "injected")


@linux
def test_a_worker_that_hangs_is_ended_however_busy_the_others_are(tmp_path):
    "Otherwise one strange file of ten thousand would cost a worker for the rest of the night."
    done = [
        each.job
        for each in Pool(hang_on, 2, (tmp_path, 0.2), time_limit=1.0).run(["hangs", *range(40)])
    ]
    assert done.index("hangs") < 25 and sorted(done, key=str) == sorted(
        ["hangs", *range(40)], key=str
    )


# errors
# --------------------------------------------------------------------------------------------------


@each_start
def test_an_error_comes_back_with_the_traceback_of_the_worker(start):
    before, answered = workers_of_this_process(), []
    with pytest.raises(FileError, match="clip.mp4: is broken") as caught:
        for done in Pool(complain, 1, start=start).run(range(5)):
            answered.append(done.job)
    assert caught.value.path == "clip.mp4" and answered == [0, 1]
    told = str(caught.value.__cause__)
    assert (
        "in a worker process" in told
        and "in complain" in told
        and 'raise FileError("clip.mp4", "is broken")' in told
    )
    assert workers_of_this_process() == before


@each_start
def test_a_setup_that_fails_is_the_error(start):
    with pytest.raises(FileError, match="weights.pth: not there") as caught:
        list(Pool(with_everything, 2, setup=refuse_to_set_up, start=start).run(range(3)))
    assert "in refuse_to_set_up" in str(caught.value.__cause__)


@pytest.mark.parametrize("kind", UNSENDABLE)
def test_an_answer_that_cannot_be_sent_is_an_error(kind):
    with pytest.raises(RuntimeError, match="cannot be sent"):
        list(Pool(answer_with, 2, start=START).run([kind]))


@pytest.mark.parametrize("kind", ["picky", "private"])
def test_an_error_that_cannot_travel_still_says_what_happened(kind):
    with pytest.raises(Exception) as caught:
        list(Pool(raise_odd, 2, start=START).run([kind]))
    told = f"{caught.value}\n{caught.value.__cause__}"
    assert "clip.mp4 is broken" in told and "in raise_odd" in told


def test_a_job_that_cannot_be_sent_is_an_error():
    before = workers_of_this_process()
    with pytest.raises((TypeError, AttributeError, ValueError)):
        list(Pool(square, 2, start=START).run([threading.Lock()]))
    assert workers_of_this_process() == before


# the end
# --------------------------------------------------------------------------------------------------


def workers_of_this_process() -> set[int]:
    """Its children that are still there, but for the servant of multiprocessing that counts
    shared memory."""
    if sys.platform != "linux":
        return set()
    children = (
        Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
    )
    what = lambda process: Path(f"/proc/{process}/cmdline").read_bytes() if alive(process) else b""
    return {int(each) for each in children if alive(each) and b"resource_tracker" not in what(each)}


@each_start
def test_whoever_stops_listening_ends_the_workers(start):
    before = workers_of_this_process()
    running = Pool(process_of, 1, start=start).run(range(100))
    worker = next(running).answer
    assert sys.platform != "linux" or worker in workers_of_this_process()
    running.close()
    assert workers_of_this_process() == before
    with pytest.raises(ZeroDivisionError):
        for _ in Pool(square, 1, start=start).run(range(100)):
            1 / 0
    assert workers_of_this_process() == before


SCRIPT = """
import os, pathlib, sys, time
from picknet_nb.core.processes import Pool


def nap(job, folder):
    (pathlib.Path(folder)/str(os.getpid())).touch()
    if job: time.sleep(600)


if __name__ == "__main__":
    start, folder, wanted = sys.argv[1:]
    jobs = [0, 1, 2, 3] if wanted == "one" else [1, 2, 3]
    running = Pool(nap, 2, (folder,), start=start).run(jobs)
    for done in running:
        while wanted == "one" and len(os.listdir(folder)) < 2: time.sleep(0.01)
        # both workers are busy, and `running` is still held when the interpreter ends
        if wanted == "one": break
"""


def members(group: int) -> set[int]:
    "The living processes of a group."
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, number = (path/"stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == group and state != "Z":
            found.add(int(path.name))
    return found


def launch(folder: Path, start: str, wanted: str = "all") -> subprocess.Popen:
    "A process group of its own: a parent and two workers that are at work."
    (folder/"script.py").write_text(SCRIPT)
    (folder/"workers").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(folder/"script.py"), start, str(folder/"workers"), wanted],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # a shell's background jobs ignore it
    wait_for(lambda: len(list((folder/"workers").iterdir())) == 2)
    return process


@linux
@each_start
def test_a_killed_parent_leaves_nobody(tmp_path, start):
    process = launch(tmp_path, start)
    assert len(members(process.pid)) >= 3
    process.kill()
    process.wait()
    wait_for(lambda: not members(process.pid))
    tally("faults", "SIGKILL", "injected")


@linux
@each_start
def test_ctrl_c_ends_it_at_once_and_leaves_nobody(tmp_path, start):
    process = launch(tmp_path, start)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGINT
    # the parent's, none of the workers'
    assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt"), errors
    wait_for(lambda: not members(process.pid))
    tally("faults", "SIGINT", "injected")


def interrupted_in_its_first_fork() -> None:
    "Ctrl-C comes while a worker is forked, when Python calls what it calls before a fork."
    signals = iter([signal.SIGINT])
    os.register_at_fork(before=lambda: [signal.raise_signal(kind) for kind in signals])
    usual, done = signal.getsignal(signal.SIGINT), []
    try:
        done += Pool(square, 2).run([1, 2])
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGINT) is usual and next(signals, None) is None
        print([each.answer for each in Pool(square, 1).run([3])])
        sys.exit("interrupted")
    raise AssertionError(f"Ctrl-C was lost: {done}")


@linux
def test_ctrl_c_in_the_middle_of_a_fork_is_not_lost():
    call = Forked(interrupted_in_its_first_fork)
    assert call.wait() == 1, call.output()
    assert call.output().split("\n")[:2] == ["[9]", "interrupted"], call.output()
    tally("faults", "SIGINT in a fork", "injected")


@linux
@each_start
def test_an_interpreter_that_ends_while_workers_are_busy_waits_for_nobody(tmp_path, start):
    process = launch(tmp_path, start, "one")
    try:
        process.communicate()
    finally:
        if process.poll() is None: os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    wait_for(lambda: not members(process.pid))


# answers in order
# --------------------------------------------------------------------------------------------------


def take_turns(numbered, folder):
    "The first waits for the fourth; one dies, one hangs."
    number, job = numbered
    (folder/str(number)).touch()
    if number == 0: wait_for((folder/"3").exists)
    if job == "dies": os._exit(7)
    if job == "hangs": time.sleep(100)
    return job * 2


def test_answers_come_in_the_order_of_the_jobs(tmp_path):
    jobs = ["a", "b", "dies", "c", "hangs", "d", *("e" * 9)]
    found = list(Pool(take_turns, 2, (tmp_path,), time_limit=5).in_order(iter(jobs)))
    assert [done.job for done in found] == jobs
    assert [done.answer or done.reason.split()[-1] for done in found] == [
        "aa",
        "bb",
        "7)",
        "cc",
        "limit",
        "dd",
        *(["ee"] * 9),
    ]


def wait_for_leave(numbered, folder):
    (folder/str(numbered[0])).touch()
    if numbered[0] == 0: wait_for((folder/"go on").exists)


def test_no_job_begins_far_ahead_of_one_that_takes_long(tmp_path):
    def leave():
        wait_for(lambda: len(list(tmp_path.iterdir())) == 8)
        time.sleep(0.5)  # for a ninth that should not begin
        begun.extend(tmp_path.iterdir())
        (tmp_path/"go on").touch()

    begun, watcher = [], threading.Thread(target=leave)
    watcher.start()
    assert [done.job for done in Pool(wait_for_leave, 2, (tmp_path,)).in_order(range(40))] == list(
        range(40)
    )
    watcher.join()
    assert len(begun) == 8


# limits of memory, and generators apart
# -----------------------------------------------------------------------------


def swell(size):
    return len(bytearray(size))


def count_up(most, trouble=""):
    yield from range(most)
    if trouble == "dies": os._exit(7)
    if trouble == "hangs": time.sleep(100)
    if trouble == "swells": yield swell(1 << 30)
    if trouble == "raises": raise FileError("a.mp4", "broken")


@linux
@each_start
def test_a_worker_takes_no_more_memory_than_it_may(start):
    with pytest.raises(MemoryError):
        list(Pool(swell, 1, memory_limit=300 << 20, start=start).run([1 << 30]))
    assert [
        done.answer for done in Pool(swell, 1, memory_limit=300 << 20, start=start).run([100 << 20])
    ] == [100 << 20]


@linux
@pytest.mark.parametrize(
    "trouble, error, words",
    [
        ("dies", PickNetError, "its process died .exit status 7."),
        ("hangs", PickNetError, "took longer"),
        ("swells", MemoryError, None),
        ("raises", FileError, "a.mp4: broken"),
    ],
)
def test_a_generator_apart_tells_all_it_can_and_then_what_went_wrong(trouble, error, words):
    items, heard = apart(count_up, 3, trouble, memory_limit=200 << 20, time_limit=1.0), []
    with pytest.raises(error, match=words):
        for item in items:
            heard.append(item)
    assert heard == [0, 1, 2] and not items.process.is_alive() and list(items) == []


@linux
def test_a_generator_apart_is_in_another_process_and_ends_with_the_one_who_wants_it():
    where = (lambda: (yield os.getpid(), can_fork()))
    (process, inside), = apart(where)
    assert process != os.getpid() and can_fork() and not inside
    endless = apart(count_up, 10**9)
    assert [next(endless), next(endless)] == [0, 1]
    child = endless.process
    endless.close()
    assert not child.is_alive() and list(endless) == []
    forgotten = apart(count_up, 10**9)
    child = forgotten.process
    del forgotten
    wait_for(lambda: not child.is_alive())


@linux
def test_inside_a_worker_a_generator_runs_where_it_is():
    assert [done.answer for done in Pool(lambda job: list(apart(count_up, job)), 1).run([3])] == [
        [0, 1, 2]
    ]


def swell_twice(job):
    "Whether there was memory inside of the limit, and after it."
    with pytest.raises(MemoryError): list(apart(count_up, 1, "swells", memory_limit=200 << 20))
    return swell(1 << 30)


@linux
def test_inside_a_worker_too_a_generator_takes_no_more_memory_than_it_may():
    assert [done.answer for done in Pool(swell_twice, 1).run([0])] == [1 << 30]


class Owned:
    """What belongs to the process that made it: to free it elsewhere may mean to wait for
    threads that are not there."""
    def __init__(self): self.me, self.owner = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.owner: os._exit(9)


def collect_garbage(job):
    gc.collect()
    return job


@linux
def test_garbage_of_the_parent_is_not_collected_in_a_worker():
    gc.disable()
    try:
        Owned()  # only the collector frees it
        assert [done.answer for done in Pool(collect_garbage, 1).run([5])] == [5]
        assert not gc.isenabled()
    finally:
        gc.enable()


# who am I
# --------------------------------------------------------------------------------------------------


def test_cores_and_ranks(monkeypatch):
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    for name in ("RANK", "WORLD_SIZE"): monkeypatch.delenv(name, raising=False)
    assert rank_and_world() == (0, 1)
    monkeypatch.setenv("RANK", "2"), monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_world() == (2, 4)


def test_threads_and_environment_are_as_before(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    import torch

    threads = torch.get_num_threads()
    list(Pool(square, 2, start=START).run(range(3)))
    assert "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    list(Pool(square, 2, start=START).run(range(3)))
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_everything_public_is_tested_here():
    assert set(workers.__all__) - {"connected"} == {  # to Ray: test_cluster.py
        "usable_cores",
        "rank_and_world",
        "Done",
        "Pool",
        "apart",
        "can_fork",
        "joined",
        "average_gradients",
        "share_weights",
        "agreed",
    }
