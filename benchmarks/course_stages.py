"""Train the three stages of lesson 14 on 4,000 plain stories, three seeds: python
benchmarks/course_stages.py writes data/results/course_stages.json and .safetensors. No setting was
chosen on its test clips."""
import json
import platform
from pathlib import Path
from statistics import mean

import torch
from safetensors.torch import save_file
from torch import nn

from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.glance import glance
from picknet_nb.method.captioner import caption, teach
from picknet_nb.method.decoder import caption_loss
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.reinforce import others_baseline, policy_loss
from picknet_nb.method.rewards import limits_at, reward_for, within_limits
from picknet_nb.method.stages import Model
from picknet_nb.world.shapes import (
    PLAIN, draw_clip, events_seen, example_story, make_story, oracle_picks, plain_caption,
    plain_stories)

SETTINGS = dict(hidden=256, feature_embedding=128, word_embedding=64, policy_hidden=64,
                dropout=0.1, video_vector="mean", captions_together=1, shrink_epochs=2)
CONFIG = preset("smoke", **SETTINGS)
EPOCHS, SEEDS = (4, 2, 10), (0, 1, 2)
CLIPS = {"test": 200, "validation": 100, "train": 4000}
STORED = Path(__file__).parents[1]/"data"/"results"/"course_stages.json"
MODEL = Path(__file__).parents[1]/"picknet_nb"/"course"  # what the widgets load


def more_chases(seed, count):
    "Plain stories; every second one without a chase is left out, for a chase has most to say."
    stories, number = [], 0
    while len(stories) < count:
        story, number = make_story((seed, number)), number + 1
        actions = {event.action for event in story.events}
        if actions <= PLAIN and ("chase" in actions or number % 2 == 0):
            stories.append(story)
    return stories


def make_corpus(test, validation, train):
    "The shared clip and clips for the three splits, as tensors."
    stories = [example_story(), *plain_stories(20, test), *plain_stories(19, validation),
               *more_chases(18, train)]
    cnn, drawn = load_backbone("tiny"), (torch.from_numpy(draw_clip(each)) for each in stories)
    features, glances = zip(*((cnn(frames).half(), glance(frames)) for frames in drawn))
    return build_corpus(stories, torch.stack(features), torch.stack(glances), test, validation)


def build_corpus(stories, features, glances, test, validation):
    "Standardise features with the training clips, and name the splits."
    clips, others = torch.arange(len(stories)), 1 + test + validation
    mean, std = (each(features[others:].float(), (0, 1)) for each in (torch.mean, torch.std))
    splits = dict(zip(("test", "validation", "train"),
                      clips.split([1 + test, validation, len(stories) - others])))
    return Corpus.build("five actions", [f"clip{number}" for number in clips.tolist()],
                        ((features.float() - mean) / std).half(), glances,
                        [[plain_caption(story)] for story in stories], splits, CONFIG.clip,
                        {"key_frames": [story.key_frames for story in stories],
                         "mean": mean, "std": std})


def random_picks(count):
    "The first frame and four to ten others, (count, 30)."
    order = torch.rand(count, 30)
    order[:, 0] = -1  # the first frame comes first
    rank = order.argsort(1).argsort(1)
    return rank < torch.randint(5, 12, (count, 1))


def supervision_loss(model, corpus, clips, picks):
    "Equation 18 for a batch of clips, shown through their picked frames."
    words = corpus.words[clips]  # one caption for each clip
    memory = model.captioner.encode(pick_frames(corpus.features[clips], picks))
    return caption_loss(teach(model.captioner, memory, words), words)


@torch.no_grad()
def rewards_of(model, corpus, reward, clips, picks, max_picks):
    "Caption the picked frames and reward caption and frames (equation 17), (batch,)."
    earned = torch.full((len(clips),), CONFIG.policy.penalty)
    inside = within_limits(picks, CONFIG.policy.min_picks, max_picks)
    some, chosen = clips[inside], picks[inside]
    if len(some):
        words = caption(model.captioner, corpus.features[some], chosen, corpus.settings.max_words)
        earned[inside] = reward(words, some, corpus.features[some], chosen, max_picks).total
    return earned


def reinforcement_loss(model, corpus, reward, clips, max_picks, rollouts=4):
    "The surrogate loss of equation 24; also the first sampled picks and the mean reward."
    tried = model.policy.explore(corpus.glances[clips], rollouts)
    earned = rewards_of(model, corpus, reward, clips.repeat(rollouts),
                        tried.sampled.flatten(0, 1), max_picks).view(rollouts, -1)
    loss = policy_loss(tried.log_probability, earned, others_baseline(earned))
    return loss - 0.05 * tried.entropy.mean(), tried.sampled[0], earned.mean().item()


def adaptation_loss(model, corpus, reward, clips, max_picks):
    "Both losses on the same sampled picks; also the word loss alone, the picks, the mean reward."
    policy_part, sampled, earned = reinforcement_loss(model, corpus, reward, clips, max_picks, 2)
    words_part = supervision_loss(model, corpus, clips, sampled)
    return words_part + policy_part, words_part, sampled, earned


@torch.no_grad()
def held_out_score(model, corpus, clips, picks=None):
    "Captions of clips from the policy's (or given) picks: share fully right, picks, events seen."
    model.eval()
    picks = model.policy.rollout(corpus.glances[clips]) if picks is None else picks
    words = caption(model.captioner, corpus.features[clips], picks, corpus.settings.max_words)
    right = (words == corpus.words[clips][:, :words.shape[1]]).all(1).float().mean().item()
    model.train()
    key_frames = [corpus.details["key_frames"][clip] for clip in clips.tolist()]
    return {"right": right, "picks": picks.sum(1).float().mean().item(),
            "events seen": events_seen(key_frames, picks)}


@torch.no_grad()
def shared_clip(model, corpus):
    "Caption, picks and p(pick) of the shared clip, and its captions from other pickers' frames."
    model.eval()
    glances, features = corpus.glances[:1], corpus.features[:1]
    clip = Clips(features.float(), glances)
    chosen = {"uniform": make_picker("uniform", 5)(clip), "k-means": make_picker("kmeans", 5)(clip),
              "learned": model.policy.rollout(glances),
              "oracle": oracle_picks(corpus.details["key_frames"][:1])}
    captions = {name: corpus.vocabulary.decode(
        caption(model.captioner, features, picks, corpus.settings.max_words))[0]
        for name, picks in chosen.items()}
    chances = model.policy.probabilities(glances, chosen["learned"])[0]
    model.train()
    return {"caption": captions["learned"], "by picker": captions,
            "picks": chosen["learned"][0].nonzero()[:, 0].tolist(),
            "p": [round(chance, 3) for chance in chances.tolist()]}


def run_stage(name, model, corpus, loss_of, groups, epochs, batch=64):
    "Train one stage; a list of what was measured after each epoch."
    optimiser, history, train = torch.optim.Adam(groups), [], corpus.splits["train"]
    rates = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates,
                                                   epochs * -(-len(train) // batch))
    for epoch in range(epochs):
        measured = []
        for clips in train[torch.randperm(len(train))].split(batch):
            loss, measures = loss_of(clips, epoch)
            optimiser.zero_grad()
            loss.backward()
            for group in groups: nn.utils.clip_grad_norm_(group["params"], 5.0)
            optimiser.step()
            schedule.step()
            measured.append(measures)
        now = {column: mean(each[column] for each in measured) for column in measured[0]}
        now |= held_out_score(model, corpus, corpus.splits["validation"])
        history.append({"stage": name} | now | {"shared": shared_clip(model, corpus)})
    return history


def train_all(corpus, seed, epochs):
    "The three stages from scratch: the model, the history, and what is known after each stage."
    torch.manual_seed(seed)
    model = Model.for_corpus(CONFIG, corpus)
    reward, train = reward_for(CONFIG.policy, corpus), corpus.splits["train"]
    captioner, policy = [*model.captioner.parameters()], [*model.policy.parameters()]
    count = lambda picks: picks.sum(1).float().mean().item()
    history, after = [], {"untrained": shared_clip(model, corpus)}

    def stage_one(clips, epoch):
        picks = random_picks(len(clips))
        loss = supervision_loss(model, corpus, clips, picks)
        return loss, {"word loss": loss.item(), "sampled picks": count(picks)}
    history += run_stage("supervision", model, corpus, stage_one,
                         [{"params": captioner, "lr": 4e-3}], epochs[0])
    model.policy.calibrate(corpus.glances[train], wanted=6)
    after["stage one"] = shared_clip(model, corpus)  # frames of the calibrated, untrained policy

    def stage_two(clips, epoch):
        loss, picks, earned = reinforcement_loss(model, corpus, reward, clips,
                                                 limits_at(epoch, CONFIG.policy))
        return loss, {"reward": earned, "sampled picks": count(picks)}
    model.captioner.requires_grad_(False)  # the environment stays as it is
    history += run_stage("reinforcement", model, corpus, stage_two,
                         [{"params": policy, "lr": 4e-3}], epochs[1])
    after["stage two"] = shared_clip(model, corpus)

    def stage_three(clips, epoch):
        loss, words, picks, earned = adaptation_loss(model, corpus, reward, clips,
                                                     CONFIG.policy.final_max_picks)
        return loss, {"word loss": words.item(), "reward": earned, "sampled picks": count(picks)}
    model.captioner.requires_grad_(True)
    history += run_stage("adaptation", model, corpus, stage_three,
                         [{"params": policy, "lr": 1e-3}, {"params": captioner, "lr": 5e-3}],
                         epochs[2])
    after["stage three"] = shared_clip(model, corpus)
    return model, history, after


def main() -> None:
    "Train three seeds, store what was measured and the weights of the first."
    large = make_corpus(**CLIPS)
    held_out, runs = large.splits["test"][1:], []  # without the shared clip
    rows = {"random": lambda policy: random_picks(len(held_out)),
            "uniform": lambda policy: (torch.arange(30) % 6 == 0).expand(len(held_out), 30),
            "all thirty": lambda policy: torch.ones(len(held_out), 30, dtype=torch.bool),
            "learned": lambda policy: policy.rollout(large.glances[held_out]),
            "oracle": lambda policy: oracle_picks(
                [large.details["key_frames"][clip] for clip in held_out.tolist()])}
    for seed in SEEDS:
        model, history, after = train_all(large, seed, EPOCHS)
        scores = {name: held_out_score(model, large, held_out, choose(model.policy))
                  for name, choose in rows.items()}
        words = caption(model.captioner, large.features[held_out], rows["learned"](model.policy),
                        large.settings.max_words)
        runs.append({"seed": seed, "after": after, "scores": scores, "history": history,
                     "captions": large.vocabulary.decode(words)})
        if seed == 0:
            weights = model.state_dict() | {"feature_mean": large.details["mean"],
                                            "feature_std": large.details["std"]}
            halves = {name: weight.half().contiguous() for name, weight in weights.items()}
            for file in (STORED.with_suffix(".safetensors"), MODEL/"weights.safetensors"):
                save_file(halves, file)
    STORED.write_text(json.dumps({
        "kind": "course", "command": "python benchmarks/course_stages.py",
        "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine() + " CPU", "clips": CLIPS, "held out": len(held_out),
        "epochs": EPOCHS, "settings": SETTINGS, "vocabulary": large.vocabulary.words,
        "runs": runs}) + "\n")
    about = {"settings": SETTINGS, "vocabulary": large.vocabulary.words}
    (MODEL/"model.json").write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
