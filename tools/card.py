"""Measure a bundled model on test clips and write its card from what was measured.

python tools/card.py everyday --corpus data/corpora/msvd --corpus data/corpora/msrvtt

The corpora are made by `picknet prepare msvd --backbone lite0-clip …` and `picknet prepare msrvtt
--backbone lite0-clip …`. A model with a scorer whose eye is another backbone needs the same clips
prepared with that one: --eye for each --corpus, in the same order. --kinds names the kinds of
frames to measure, where features of all thirty would take too long. With --no-scores the captions
are made and kept, on a machine without Java; where such captions of the same weights are there,
they are scored. What is measured goes to data/results/model_NAME.json. The card goes to the model's
folder: card.md for people, and card.json for `picknet models`, with the ratings of
data/results/ratings.json and, of two raters by a written rule, ratings_strict.json (`tools/rate.py
count --out`), and the seconds of data/results/benchmark_NAME.json where they are there.
`--only-card` writes both again.
"""
from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import torch

from picknet_nb.core.files import file_digest, read_json, write_whole
from picknet_nb.data.backbones import BACKBONES
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.text import SPECIALS
from picknet_nb.training.cards import describe_model, find_model
from picknet_nb.training.models import scorer_facts, scorer_in_words
from picknet_nb.training.runs import newest_weights, stored_weights
from picknet_nb.training.scorers import SCORER, load_scorer
from picknet_nb.measure.experiments import circumstances
from picknet_nb.measure.variety import variety
from picknet_nb.interface.python import evaluate

ROOT = Path(__file__).resolve().parent.parent
PICKERS = {"scorer": "the frames it picks", "learned": "the frames its policy picks",
           "uniform": "as many, uniform", "one": "one frame", "all": "all frames"}
DECODINGS = {"as it speaks": {}, "greedy": {"beam": 1, "no_repeats": False}}


def own_picks(kinds) -> str:
    "Which of these kinds is what the model does by itself."
    return "scorer, as it speaks" if "scorer, as it speaks" in kinds else "learned, as it speaks"


def captions_of(
    folder: Path, corpus: Corpus, device: str, eye: str | None = None, kinds: list[str] = (),
) -> dict:
    """Captions of the test clips of a corpus with each kind of picks, or with these, as the model
    speaks and greedily, made by what `picknet evaluate` uses; `eye` is the folder of a corpus with
    what a scorer sees, where that is not in the corpus."""
    found, scorer = {}, load_scorer(folder)
    for kind in PICKERS:
        if kind not in (kinds or PICKERS) or kind == "scorer" and not scorer: continue
        # its own picks are shown first: the uniform frames are as many, rounded up
        few = math.ceil(found[own_picks(found)]["frames"] - 1e-6) if found else 0
        label = {"scorer": None, "uniform": f"uniform-{few}", "one": "uniform-1"}.get(kind, kind)
        sees = {"eye": eye} if kind == "scorer" else {}
        for decoding, options in DECODINGS.items():
            made = evaluate(folder, corpus, picker=label, scores=False, device=device, **sees,
                            **options)
            found[f"{kind}, {decoding}"] = {
                "frames": made.frames_used,
                "captions": made.captions,
            }
    return found


def manners(captions: dict[str, str]) -> dict:
    "What can be said of captions without knowing what the clips show."
    words = [text.split() for text in captions.values()]
    repeated = sum(max(Counter(zip(each, each[1:])).values(), default=0) > 1 for each in words)
    return {
        "clips": len(words),
        "distinct": len(set(captions.values())),
        "mean_length": sum(map(len, words)) / len(words),
        "empty": sum(not each for each in words),
        "repeated_bigram": repeated / len(words),
        "special_token": sum(bool(set(each) & set(SPECIALS)) for each in words),
    }


def scores_of(sets: dict[str, dict], references: dict[str, dict[str, list[str]]]) -> dict:
    """The scores of every set and of all of them together, with the interval of CIDEr over
    clips, and how far other picks are from the learned ones."""
    from picknet_nb.measure.metrics import paired_bootstrap, score_many

    found = {}
    groups = {name: [name] for name in sets} | ({"together": list(sets)} if len(sets) > 1 else {})
    for group, names in groups.items():
        kinds = {
            kind: {
                video: text
                for name in names
                for video, text in sets[name][kind]["captions"].items()
            }
            for kind in sets[names[0]]
        }
        known = {
            video: lines
            for name in names
            for video, lines in references[name].items()
            if video in kinds[own_picks(kinds)]
        }
        scored = dict(score_many(kinds, known, per_video=True, split="test"))
        own = scored[own_picks(kinds)]
        zero = dict.fromkeys(own.per_video["CIDEr"], 0.0)
        found[group] = {
            kind: {
                **scores.values,
                "CIDEr_interval": paired_bootstrap(scores.per_video["CIDEr"], zero)[1:3],
                "minus": paired_bootstrap(own, scores)._asdict()
                if scores is not own
                else None,
                "frames": sum(
                    sets[name][kind]["frames"] * len(sets[name][kind]["captions"]) for name in names
                )
                / len(known),
            }
            for kind, scores in scored.items()
        } | {
            "clips": len(known),
            "signature": own.signature,
            "per_clip": {video: round(value, 4) for video, value in own.per_video["CIDEr"].items()},
        }
    return found


def failures(
    sets: dict[str, dict], scores: dict, references: dict[str, dict[str, list[str]]], count: int = 5
) -> list[dict]:
    "Some of the captions with the lowest scores: what failure looks like."
    said = {
        video: text
        for found in sets.values()
        for video, text in found[own_picks(found)]["captions"].items()
    }
    people = {video: lines for known in references.values() for video, lines in known.items()}
    worst = sorted(scores["per_clip"], key=lambda video: (scores["per_clip"][video], video))[
        : count * 5 : 5
    ]
    return [
        {"clip": video, "said": said[video], "people": people[video][0].strip().rstrip(".")}
        for video in worst
    ]


def add_scores(result: dict, references: dict[str, dict[str, list[str]]]) -> None:
    "Score what was said, and keep the worst."
    result["scores"] = scores_of(result["sets"], references)
    # of all sets
    result["failures"] = failures(result["sets"], list(result["scores"].values())[-1], references)


def measure(
    name: str, corpora: list[Corpus], device: str, scores: bool, out: Path, command: str,
    eyes: list[str] = (),  # for each corpus, the folder of one with what the scorer sees
    kinds: list[str] = (),  # of frames; empty: all
) -> dict:
    "Everything that the card says in numbers."
    folder = find_model(name)
    weights = {file.stem: file_digest(file) for file in (newest_weights(folder), folder/SCORER)
               if file.exists()}
    before = read_json(out) if out.exists() else {}
    if (
        scores
        and all(before.get(part) == weights.get(part) for part in ("weights", "scorer"))
        and "scores" not in before
        and before["sets"].keys() == {corpus.name for corpus in corpora}
    ):
        add_scores(before, {corpus.name: corpus.references("test") for corpus in corpora})
        write_whole(out, json.dumps(before, indent=1, ensure_ascii=False) + "\n")
        return before
    sets = {corpus.name: captions_of(folder, corpus, device, eye, kinds)
            for corpus, eye in zip_longest(corpora, eyes)}
    result = {
        "kind": "model",
        "model": name,
        **weights,
        "command": command,
        **circumstances(),
        "sets": sets,
        "manners": {
            each: manners(found[own_picks(found)]["captions"])
            for each, found in sets.items()
        },
    }
    if scores:
        add_scores(result, {corpus.name: corpus.references("test") for corpus in corpora})
    write_whole(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return result


def table(result: dict) -> str:
    "The scores as Markdown."
    lines = [
        "| test clips | frames looked at | CIDEr (95 % over clips) | BLEU-4 | METEOR | ROUGE-L |",
        "|---|---|---|---|---|---|",
    ]
    title = lambda group: {
        "together": "all of them",
        "msvd": "MSVD",
        "msrvtt": "MSR-VTT",
        "shapes": "built-in world",
    }.get(group, group)
    for group, kinds in result["scores"].items():
        for kind, shown in PICKERS.items():
            if (each := kinds.get(f"{kind}, as it speaks")) is None:
                continue  # measured before this kind of picks was, or without a scorer
            if f"{kind}, as it speaks" == own_picks(kinds): shown = "the frames it picks"
            low, high = (100 * value for value in each["CIDEr_interval"])
            lines.append(
                f"| {title(group)}, {kinds['clips']} clips | {shown}, {each['frames']:.1f} | "
                f"{100 * each['CIDEr']:.1f} ({low:.1f} to {high:.1f}) | "
                + " | ".join(
                    f"{100 * each[metric]:.1f}" for metric in ("BLEU@4", "METEOR", "ROUGE-L")
                )
                + " |"
            )
    return "\n".join(lines)


def measured(name: str, result: dict, timing: dict) -> dict:
    "What `picknet models` shows: ratings, CIDEr with each picker, seconds for a clip, backbone."
    path = ROOT/"data"/"results"/"ratings.json"
    rated = (read_json(path) if path.exists() else {}).get("models", {}).get(name)
    row = lambda each: {"frames": round(each["frames"], 2), "CIDEr": round(100 * each["CIDEr"], 1),
                        "interval": [round(100 * value, 1) for value in each["CIDEr_interval"]]}
    cider = {
        group: {"clips": kinds["clips"]} | {
            shown: row(kinds[f"{kind}, as it speaks"])
            for kind, shown in (("scorer", "scorer"), ("learned", "PickNet"),
                                ("uniform", "uniform"), ("all", "all"))
            if f"{kind}, as it speaks" in kinds
        }
        for group, kinds in result.get("scores", {}).items() if group != "together"
    }
    cnn, scorer = describe_model(find_model(name)).cnn, load_scorer(find_model(name))
    cnn = cnn.partition(":")[0]  # of a variant, too
    comes = BACKBONES.facts(cnn).get("comes") if cnn in BACKBONES else None
    count = lambda each: {key: each[key] for key in ("right", "half", "wrong", "clips")}
    strictly = {who: count(each) for who, each in strict_ratings(name).items()}
    found = {"rated": rated, "rated_strictly": strictly, "cider": cider,
             "seconds": timing.get("seconds_per_clip"),
             "backbone": comes, "scorer": scorer and scorer_facts(scorer),
             "measured_on": result["machine"], "timed_on": timing.get("machine"),
             "date": result["date"], "command": result["command"]}
    return {key: value for key, value in found.items() if value}


def rated_in_words(rated: dict | None) -> str:
    "What people found when they compared captions with clips."
    if not rated:
        return "No person has rated its captions yet."
    low, high = (100 * value for value in rated["right_or_half_interval"])
    shown = rated.get("shown", "without the name of the model")
    return (
        f"Of {rated['clips']} random test clips, rated by one of the authors (shown "
        f"{shown}), its caption was right for {rated['right']}, half right for "
        f"{rated['half']} and wrong for "
        f"{rated['wrong']}; right or half right {100 * rated['right_or_half']:.0f} % (95 %: "
        f"{low:.0f} to {high:.0f})."
    )


def strict_ratings(name: str) -> dict[str, dict]:
    "What each rater who followed the written rule found of a model."
    path = ROOT/"data"/"results"/"ratings_strict.json"
    strict = read_json(path) if path.exists() else {"raters": {}}
    return {rater["who"]: rater["models"][name] for rater in strict["raters"].values()
            if name in rater["models"]}


def strictly_in_words(name: str) -> str:
    "What raters found who judged the same clips by a written rule, and how often they agreed."
    rated = strict_ratings(name)
    if not rated:
        return ""
    strict = read_json(ROOT/"data"/"results"/"ratings_strict.json")
    counts = "; ".join(
        f"{who} found {each['right']} right (95 %: {{:.0f}} to {{:.0f}}), {each['half']} half "
        f"right and {each['wrong']} wrong".format(
            *(100 * value for value in each["right_interval"]))
        for who, each in rated.items())
    agreed = "; ".join(f"they gave {100 * each['alike']:.0f} % of the captions the same rating "
                       f"(Cohen's kappa {each['kappa']:.2f})"
                       for each in strict["agreement"].values() if each["kappa"] is not None)
    clips = next(iter(rated.values()))["clips"]
    return (f" {clips} random test clips were rated strictly, by a written rule and blind: "
            + "; ".join(part for part in (counts, agreed) if part)
            + ". The rule and every rating are in data/results/ratings_strict.json; "
              "`python tools/rate.py sheet` makes the sheets for another rater.")


def write_card(name: str, result: dict) -> Path:
    "The card: the text about the model with the measured numbers in it, and card.json beside it."
    text = (ROOT/"tools"/"cards"/f"{name}.md").read_text(encoding="utf-8")
    folder = find_model(name)
    shares = [each["repeated_bigram"] * each["clips"] for each in result["manners"].values()]
    clips = sum(each["clips"] for each in result["manners"].values())
    timing = (
        read_json(path)
        if (path := ROOT/"data"/"results"/f"benchmark_{name}.json").exists()
        else {}
    )
    known, scorer = measured(name, result, timing), load_scorer(folder)
    varied = variety(text for found in result["sets"].values()
                     for text in found[own_picks(found)]["captions"].values())
    weights = sum(each.numel() for each in stored_weights(newest_weights(folder)).values())
    facts = {
        "RATED": rated_in_words(known.get("rated")) + strictly_in_words(name),
        "WORDS": f"{len(read_json(folder/'vocabulary.json')) - len(SPECIALS):,}",
        "WEIGHTS": f"{weights / 1e6:.1f} million",
        "PICKER": f"{scorer_in_words(scorer)} Of a stream, whose end is not known, the paper's "
                  "policy picks frames." if scorer else
                  "The paper's policy picks its frames; it compares grey glances.",
        "TABLE": table(result) if "scores" in result else "",
        "MACHINE": result["machine"],
        "DATE": result["date"],
        "COMMAND": result["command"],
        "SILENT": "none is empty or holds a special token"
        if not any(each["empty"] or each["special_token"] for each in result["manners"].values())
        else "some are empty or hold a special token",
        "REPEATED": f"{100 * sum(shares) / clips:.1f} %",
        "DISTINCT": f"{varied.distinct:,}",
        "SHARE": f"{100 * varied.share:.0f} %",
        "CLIPS": f"{clips:,}",
        "FAILURES": "\n".join(
            f"- *{each['said']}*; people: *{each['people']}*" for each in result.get("failures", [])
        ),
        "SECONDS": f"{timing['seconds_per_clip']:.2f}" if timing else "",
        "RATE": f"{timing['clips_per_second']:.1f}" if timing else "",
        "CORES": timing.get("machine", ""),
    }
    for fact, value in facts.items():
        text = text.replace(f"<{fact}>", value)
    write_whole(folder/"card.json", json.dumps(known, indent=1) + "\n")
    return write_whole(folder/"card.md", text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of a bundled model")
    parser.add_argument(
        "--corpus", action="append", default=[], help="a corpus folder; may be repeated"
    )
    parser.add_argument(
        "--eye", action="append", default=[],
        help="a corpus folder with what the scorer sees of the clips of --corpus; one for each")
    parser.add_argument("--kinds", nargs="+", choices=list(PICKERS), default=[],
                        help="what to measure, the model's own picks among them; default: all")
    parser.add_argument("--no-scores", dest="scores", action="store_false")
    parser.add_argument("--only-card", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.eye and len(given.eye) != len(given.corpus):
        parser.error("give one --eye for each --corpus")
    out = given.out or ROOT/"data"/"results"/f"model_{given.name}.json"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    command = f"python tools/card.py {given.name} " + " ".join(
        [f"--corpus {each}" for each in given.corpus] + [f"--eye {each}" for each in given.eye]
        + [f"--kinds {' '.join(given.kinds)}"] * bool(given.kinds)
    )
    result = (
        read_json(out)
        if given.only_card
        else measure(
            given.name,
            [Corpus.load(each, device) for each in given.corpus],
            device,
            given.scores,
            out,
            command,
            given.eye,
            given.kinds,
        )
    )
    if "scores" in result:
        print(write_card(given.name, result), table(result), sep="\n")


if __name__ == "__main__":
    main()
