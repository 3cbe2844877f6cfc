"""What `make audit` does: the licence of every dependency into data/results/licences.json, and
known vulnerabilities where the network allows."""
import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
OFFLINE = re.compile(
    r"ConnectionError|ConnectTimeout|Max retries|Name or service not known|Temporary "
    r"failure|service error|ProxyError|SSLError|unreachable",
    re.I,
)


def requirements(name: str, extras: bool) -> list[str]:
    "The distributions that one asks for here; those behind an extra only for the package itself."
    found = []
    for line in metadata.requires(name) or []:
        wanted, _, condition = line.partition(";")
        if "extra" in condition and (not extras or "dev" in condition):
            continue
        found.append(re.match(r"[A-Za-z0-9._-]+", wanted)[0])
    return found


def dependencies() -> list[str]:
    """Everything that `pip install picknet_nb[video,metrics,cnn,notebook]` brings, as far as it
    is installed."""
    found, waiting = {}, requirements("picknet_nb", extras=True)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.metadata(name)
            waiting += requirements(name, extras=False)
        except metadata.PackageNotFoundError:
            continue  # for another platform
    return sorted(found)


def licence(name: str) -> str:
    """What a distribution says about its licence: an expression, else its classifiers, else the
    first line of the field."""
    about = metadata.metadata(name)
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    return (
        about.get("License-Expression")
        or ", ".join(each for each in classified if each != "OSI Approved")
        or (about.get("License") or "not stated").strip().splitlines()[0][:80]
    )


def vulnerabilities(names: list[str]) -> tuple[str, int]:
    """What pip-audit finds, and our exit status; without it or without its service we say so and
    do not fail."""
    pinned = "\n".join(f"{name}=={metadata.version(name).partition('+')[0]}" for name in names)
    with tempfile.TemporaryDirectory() as folder:
        (listed := Path(folder)/"pinned.txt").write_text(pinned)
        try:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pip_audit",
                    "--requirement",
                    str(listed),
                    "--no-deps",
                    "--disable-pip",
                    "--progress-spinner=off",
                    "--format=json",
                ],
                capture_output=True,
                text=True,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return "NOT CHECKED: the vulnerability service does not answer", 0
    if "No module named pip_audit" in done.stderr:
        return "NOT CHECKED: pip-audit is not installed here (pip install pip-audit)", 0
    try:
        judged = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        offline = OFFLINE.search(done.stderr)
        return (
            f"NOT CHECKED: "
            "the vulnerability service cannot be reached from here"
            if offline else done.stderr.strip()[-500:],
            0 if offline else 1,
        )
    known = [each for each in judged if "vulns" in each]
    if not known:  # a mirror that has no advisories must not read as a clean bill
        return "NOT CHECKED: the registry here tells nothing about any of them", 0
    found = [
        f"{each['name']} {each['version']}: {', '.join(one['id'] for one in each['vulns'])}"
        for each in known
        if each["vulns"]
    ]
    return "\n".join(
        [
            f"{len(found)} of {len(known)} checked distributions have some "
            f"({len(judged) - len(known)} could not be checked)",
            *found,
        ]
    ), bool(found)


def main() -> int:
    names = dependencies()
    table = {name: {"version": metadata.version(name), "licence": licence(name)} for name in names}
    out = ROOT/"data"/"results"/"licences.json"
    out.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    print(f"licences of {len(table)} dependencies: {out.relative_to(ROOT)}")
    said, status = vulnerabilities(names)
    print(f"known vulnerabilities: {said}")
    return status


if __name__ == "__main__":
    sys.exit(main())
