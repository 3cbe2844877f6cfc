"""PickNet in one file: python examples/picknet_min.py trains a captioner and a picking policy on
drawn clips, in about a minute on two CPU cores, and scores random, learned and oracle picks."""
import torch
from torch import nn
from torch.nn import functional as F
from picknet_nb.world.shapes import ACTIONS, draw_clip, example_story, oracle_picks, plain_stories

TRAIN, HELD_OUT, FRAMES, HIDDEN, BATCH = 700, 60, 30, 96, 40
EPOCHS = {"supervision": 6, "reinforcement": 4, "adaptation": 24}
BASELINE = "leave-one-out"  # or "greedy": self-critical, as in the paper
MIN_PICKS, MAX_PICKS, PENALTY, TRIES = 3, 7, -1.0, 3

def make_stories(count):
    "The shared clip first, then stories with five of the eleven actions."
    return [example_story(), *plain_stories(18, count - 1)]

def sentence(story):
    "One plain sentence: who it is, and what it does."
    verbs = [ACTIONS[event.action].verbs[0].split("/")[0].split()[0] for event in story.events]
    return f"a {story.hero.colour} {story.hero.shape} " + " and ".join(verbs)

def count_ngrams(words, n, size):
    "How often each word (n = 1) or pair of words (n = 2) occurs: (batch, size ** n - 2)."
    ids = words if n == 1 else words[:, :-1] * size + words[:, 1:]
    return F.one_hot(ids, size**n).sum(1)[:, 2:]  # without <pad> and <bos>, or pairs of them

class Data:
    "Clips as tensors: features for the captioner, glances for the policy, token ids."

    def __init__(self, stories):
        sentences = [sentence(story) for story in stories]
        frames = (torch.from_numpy(draw_clip(story)) / 255 for story in stories)
        small = torch.stack([F.avg_pool2d(clip, 8) for clip in frames])  # (clips, 30, 3, 12, 12)
        grey = (small * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(2)
        colour = small.flatten(2)                                        # (clips, 30, 432)
        self.features = (colour - colour.mean((0, 1))) / colour.std((0, 1))
        self.glances = (grey / grey.std()).flatten(2)                    # (clips, 30, 144)
        self.vocabulary = ["<pad>", "<bos>", "<eos>", *sorted(set(" ".join(sentences).split()))]
        self.length = 2 + max(len(text.split()) for text in sentences)
        self.words = torch.zeros(len(stories), self.length, dtype=torch.long)
        for row, text in zip(self.words, sentences):
            ids = [1, *map(self.vocabulary.index, text.split()), 2]
            row[:len(ids)] = torch.tensor(ids)
        self.oracle = oracle_picks([story.key_frames for story in stories])
        clips = torch.arange(len(stories))  # the first is the shared clip
        self.held_out, self.train = clips[1:1 + HELD_OUT], clips[1 + HELD_OUT:]
        self.counts = [count_ngrams(self.words, n, len(self.vocabulary)) for n in (1, 2)]
        self.rarity = [(len(self.train) / (count[self.train] > 0).sum(0).clamp(min=1)).log()
                       for count in self.counts]

    def score(self, words, clips):
        "A small CIDEr: the cosine of rarity-weighted counts, 1 for the true sentence."
        total = torch.zeros(len(clips))
        for n, (true, rarity) in enumerate(zip(self.counts, self.rarity), 1):
            generated = count_ngrams(words, n, len(self.vocabulary))
            total += F.cosine_similarity(generated * rarity, true[clips] * rarity) / 2
        return total

class Captioner(nn.Module):
    "An LSTM reads the picked frames, a GRU writes the caption."

    def __init__(self, size):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(432, HIDDEN), nn.ReLU(), nn.Dropout(0.2))
        self.lstm, self.word = nn.LSTM(HIDDEN, HIDDEN, batch_first=True), nn.Embedding(size, 32)
        self.gru, self.output = nn.GRUCell(32 + HIDDEN, HIDDEN), nn.Linear(HIDDEN, size)

    def encode(self, features, picks):
        "Picked frames of (batch, 30, 432) as one vector each, (batch, HIDDEN)."
        count = picks.sum(1)
        order = picks.int().sort(dim=1, descending=True, stable=True).indices  # picked ones first
        frames = features.gather(1, order[:, :count.max(), None].expand(-1, -1, 432))
        frames = self.embed(frames)                             # (batch, most picks, HIDDEN)
        states = self.lstm(frames)[0]
        empty = torch.arange(states.shape[1]) >= count[:, None]
        most = (states + frames).masked_fill(empty[..., None], float("-inf")).amax(1)
        return most + states[torch.arange(len(count)), count - 1]  # what occurred, and in order

    def step(self, word, state, video):
        "Logits of the next word, and the new state."
        state = self.gru(torch.cat([self.word(word), video], -1), state)
        return self.output(state), state

    def loss(self, features, picks, words):
        "Cross-entropy of the true words, each predicted from the true words before it."
        state = video = self.encode(features, picks)
        logits = []
        for word in words[:, :-1].T:
            guess, state = self.step(word, state, video)
            logits.append(guess)
        return F.cross_entropy(torch.stack(logits, 2), words[:, 1:], ignore_index=0)

    @torch.no_grad()
    def generate(self, features, picks, length):
        "Greedy captions: feed back the likeliest word until <eos>."
        self.eval()
        state = video = self.encode(features, picks)
        words = [torch.ones(len(features)).long()]
        for _ in range(length - 1):
            logits, state = self.step(words[-1], state, video)
            ended = (words[-1] == 2) | (words[-1] == 0)  # <pad> after <eos>
            words.append(logits.argmax(-1).masked_fill(ended, 0))
        self.train()
        return torch.stack(words, 1)

class PickNet(nn.Module):
    "Two layers that compare a glance with the last picked one."

    def __init__(self, hidden=64):
        super().__init__()
        self.compare, self.decide = nn.Linear(144, hidden), nn.Linear(hidden, 2)
        self.decide.bias.data = torch.tensor([0.8, -0.8])  # at first, pick one frame in six

    def forward(self, difference):  # log p(drop) and log p(pick)
        return self.decide(self.compare(difference).relu()).log_softmax(-1)

    @torch.no_grad()
    def rollout(self, glances, sample):
        "Picks (batch, 30), and the differences (batch, 30, 144) that led to them."
        last, picks, differences = glances[:, 0], [], []
        for t in range(FRAMES):
            differences.append(glances[:, t] - last)
            p = self(differences[t])[:, 1].exp()
            threshold = torch.rand_like(p) if sample else torch.full_like(p, 0.5)
            picks.append(p > threshold if t > 0 else p >= 0)  # the first frame is always picked
            last = torch.where(picks[t][:, None], glances[:, t], last)
        return torch.stack(picks, 1), torch.stack(differences, 1)

RATES = {Captioner: 8e-3, PickNet: 5e-3}

def reward(data, captioner, clips, picks):
    "The score of the caption from these picks; the penalty for too few or too many."
    words, count = captioner.generate(data.features[clips], picks, data.length), picks.sum(1)
    return data.score(words, clips).where((count >= MIN_PICKS) & (count <= MAX_PICKS), PENALTY)

def policy_loss(data, captioner, policy, clips):
    "REINFORCE; also the first sampled picks and the mean reward."
    tried = clips.repeat(TRIES)
    picks, differences = policy.rollout(data.glances[tried], sample=True)
    earned = reward(data, captioner, tried, picks).view(TRIES, -1)
    if BASELINE == "greedy":
        greedy = policy.rollout(data.glances[clips], sample=False)[0]
        baseline = reward(data, captioner, clips, greedy)
    else:
        baseline = (earned.sum(0) - earned) / (TRIES - 1)  # the mean of the other tries
    chosen = policy(differences).gather(-1, picks.long()[..., None])[..., 0]  # log p of actions
    log_p = chosen[:, 1:].sum(1)  # the first pick is forced
    return -((earned - baseline).flatten() * log_p).mean(), picks[:len(clips)], earned.mean()

def random_picks(count, low=4, high=10):
    "The first frame and random others, `low` to `high` in all."
    order = torch.rand(count, FRAMES).index_fill(1, torch.tensor([0]), -1)  # frame 0 comes first
    rank = order.argsort(1).argsort(1)
    return rank < torch.randint(low, high + 1, (count, 1))

def train_stage(stage, data, captioner, policy):
    "One of the three stages: mean loss, reward and picks of each epoch."
    parts = {"supervision": [captioner], "reinforcement": [policy]}.get(stage, [captioner, policy])
    groups = [{"params": list(each.parameters()), "lr": RATES[type(each)]} for each in parts]
    optimiser, history, batches = torch.optim.Adam(groups), [], -(-len(data.train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, [group["lr"] for group in groups], EPOCHS[stage] * batches)
    for epoch in range(EPOCHS[stage]):
        for clips in data.train[torch.randperm(len(data.train))].split(BATCH):
            (loss, push, earned), picks = torch.zeros(3), random_picks(len(clips))
            if policy in parts:
                push, picks, earned = policy_loss(data, captioner, policy, clips)
            if captioner in parts:
                loss = captioner.loss(data.features[clips], picks, data.words[clips])
            optimiser.zero_grad()
            (loss + push).backward()
            for group in groups: nn.utils.clip_grad_norm_(group["params"], 5.0)
            optimiser.step(), schedule.step()
        history.append((loss.item(), earned.item(), picks.sum(1).float().mean().item()))
    print(f"{stage:13}  loss {loss:5.3f}  reward {earned:5.2f}  picks {history[-1][2]:4.1f}")
    return history

def compare(data, captioner, policy):
    "Score, share of captions fully right and frames on held-out clips, for each way of picking."
    clips, rows = data.held_out, {}
    pickers = {"random": random_picks(len(clips), MIN_PICKS, MAX_PICKS),
               "learned": policy.rollout(data.glances[clips], sample=False)[0],
               "oracle": data.oracle[clips], "all 30": torch.ones(len(clips), FRAMES).bool()}
    for name, picks in pickers.items():
        words = captioner.generate(data.features[clips], picks, data.length)
        columns = data.score(words, clips), (words == data.words[clips]).all(1), picks.sum(1)
        rows[name] = [column.float().mean().item() for column in columns]
    return rows

if __name__ == "__main__":
    data = Data(make_stories(1 + HELD_OUT + TRAIN))
    torch.manual_seed(0)
    captioner, policy = Captioner(len(data.vocabulary)), PickNet()
    for stage in EPOCHS: train_stage(stage, data, captioner, policy)
    for name, row in compare(data, captioner, policy).items():
        print(f"{name:8}  score {row[0]:.2f}  fully right {row[1]:.2f}  frames {row[2]:4.1f}")
