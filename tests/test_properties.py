"""What must hold for any clip, any batch and any number: properties of every function of the
model and the rewards."""
import copy
import gc
import inspect
import random
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reliability import SCALE
from torch.testing import assert_close

from picknet_nb.core import gpu
from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import preset
from picknet_nb.data.text import BOS, EOS, PAD, UNK, Vocabulary
from picknet_nb.method import (
    calibration, captioner as speaking, captioner_contract, checks, cider, custom_rewards,
    decoder, encoder, fast_cider, fast_decoder, fast_kmeans, fast_policy, generation, packing,
    picker_contract, pickers, policy, recurrence, reinforce, rewards)
from picknet_nb.method.captioner import Seen, beam, caption, greedy, make_captioner, sample
from picknet_nb.method.cider import Cider
from picknet_nb.method.decoder import Decoder, caption_loss
from picknet_nb.method.encoder import Encoder, pick_frames
from picknet_nb.method.fast_decoder import draw_randomness, dropout_scale, gumbel
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.policy import Policy

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
CONFIG = preset("smoke", hidden=10, feature_embedding=7, word_embedding=6, dropout=0.0, max_words=7)
DIMS, GLANCE, WORDS = 5, 9, 14
seeds = st.integers(0, 2**20)
few = settings(
    max_examples=40 * SCALE,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
each_device = pytest.mark.parametrize("device", DEVICES)


def clips(seed: int, device: str = "cpu", batch: int | None = None, frames: int | None = None):
    "Features, glances, picks (the first frame among them), words and videos of a random batch."
    draw = random.Random(seed)
    batch = batch or draw.randint(1, 5)
    frames = frames or draw.randint(1, 9)
    rng = torch.Generator().manual_seed(seed)
    picks = torch.rand(batch, frames, generator=rng) < draw.random()
    picks[:, 0] = True
    words = torch.randint(4, WORDS, (batch, 7), generator=rng)
    for row in words:
        row[draw.randint(0, 6) :] = PAD
    words = torch.where((words == PAD).long().cumsum(1) == 1, EOS, words)
    found = (
        torch.randn(batch, frames, DIMS, generator=rng),
        torch.randint(0, 256, (batch, frames, GLANCE), generator=rng, dtype=torch.uint8),
        picks,
        words,
        torch.arange(batch) % 3,
    )
    return tuple(each.to(device) for each in found)


def order_of(batch: int, seed: int):
    return torch.randperm(batch, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def captioner() -> speaking.PaperCaptioner:
    torch.manual_seed(0)
    return make_captioner(CONFIG.captioner, DIMS, WORDS).eval()


@pytest.fixture(scope="module")
def net() -> Policy:
    torch.manual_seed(1)
    return Policy(GLANCE, 8).calibrate(torch.randint(0, 256, (20, 9, GLANCE), dtype=torch.uint8), 4)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(
        ("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{number}" for number in range(WORDS - 4)))
    )


@pytest.fixture(scope="module")
def references() -> list[list[list[str]]]:
    draw = random.Random(0)
    return [
        [
            draw.choices([f"w{number}" for number in range(14)], k=draw.randint(0, 9))
            for _ in range(draw.randint(1, 4))
        ]
        + [["w1", "w2"]]
        for _ in range(3)
    ]


# encoder
# --------------------------------------------------------------------------------------------------


@each_device
@pytest.mark.parametrize("vector", ["last", "mean"])
@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
def test_encoder(vector, gate, device):
    torch.manual_seed(0)
    model = Encoder(DIMS, 7, 10, 0.0, gate, video_vector=vector).eval().to(device)
    encode = lambda *clip, **places: model(pick_frames(*clip, **places))

    @few
    @given(seeds)
    def holds(seed):
        features, _, picks, _, _ = clips(seed, device)
        video, order = encode(features, picks), order_of(len(picks), seed).to(device)
        # the order of the batch
        assert_close(encode(features[order], picks[order]), video[order])
        # the company
        assert_close(
            torch.cat([encode(one, two) for one, two in zip(features.split(1), picks.split(1))]),
            video,
        )
        noise = torch.where(picks[..., None], features, torch.full_like(features, 1e4))
        # dropped frames
        assert_close(encode(noise, picks), video)
        longer = torch.cat([features, noise * 3], 1)
        more = torch.cat([picks, torch.zeros_like(picks)], 1)
        # frames after the last pick
        assert_close(encode(longer, more), video)
        # more places than needed
        assert_close(encode(features, picks, most=picks.shape[1] + 3), video)
        only = [
            encode(row[chosen][None], chosen[chosen][None]) for row, chosen in zip(features, picks)
        ]
        # nothing but the picked ones
        assert_close(torch.cat(only), video)
        model.double()
        # another type
        assert_close(encode(features.double(), picks), video.double(), rtol=1e-4, atol=1e-5)
        model.float()
        assert_close(encode(features.half(), picks), video, rtol=1e-2, atol=1e-2)
        state = model.start(1)
        for feature in features[:1, :][picks[:1]].split(1):
            state = model.step(state, feature)
        # one frame at a time
        assert_close(model.read(state), video[:1], rtol=1e-4, atol=1e-5)

    holds()


@few
@given(seeds, st.integers(1, 12))
def test_compact(seed, most):
    picks = clips(seed)[2]
    source, taken = encoder.compact(picks, most)
    for row, frames, places in zip(picks, source, taken):
        assert frames[places].tolist() == row.nonzero().flatten().tolist()[:most]
        assert taken.shape[1] == most


@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_scan_is_the_loop_in_value_and_gradient(gate, kind):
    for seed in range(8):
        torch.manual_seed(seed)
        inputs = torch.randn(
            random.Random(seed).randint(1, 6), 3, 16, dtype=kind, requires_grad=True
        )
        weight = torch.randn(16, 4, dtype=kind, requires_grad=True)
        out = torch.randn(len(inputs), 3, 4, dtype=kind)
        plain = torch.autograd.grad(
            (recurrence.lstm_loop(inputs, weight, gate) * out).sum(), (inputs, weight)
        )
        quick = torch.autograd.grad(
            (recurrence.LSTMScan.apply(inputs, weight, gate) * out).sum(), (inputs, weight)
        )
        assert_close(quick, plain, rtol=1e-4, atol=1e-5)
        states = recurrence.lstm_loop(inputs, weight, gate)
        assert states.abs().max() <= 1 and gpu.full_precision(kind) == kind


@few
@given(seeds)
def test_frames_of_a_wrong_form_are_refused(seed):
    features, _, picks, _, _ = clips(seed)
    model, draw = Encoder(DIMS, 4, 4), random.Random(seed)
    wrong = [
        (features[..., :-1], picks),
        (features[0], picks),
        (features, picks[:, :0]),
        (features, picks.long()),
        (features, torch.zeros_like(picks)),
        (torch.full_like(features, float("nan")), picks),
        (torch.full_like(features, float("inf")), picks),
    ]
    with pytest.raises(PickNetError):
        model(pick_frames(*draw.choice(wrong)))


# decoder
# --------------------------------------------------------------------------------------------------


@each_device
def test_decoder(captioner, device):
    whole = copy.deepcopy(captioner).to(device)
    model: Decoder = whole.decoder

    @few
    @given(seeds)
    def holds(seed):
        words, rng = clips(seed, device)[3], torch.Generator().manual_seed(seed)
        video = torch.randn(len(words), 10, generator=rng).to(device)
        logits, order = model(video, words), order_of(len(words), seed).to(device)
        assert_close(model(video[order], words[order]), logits[order])
        assert_close(logits, decoder.plain_logits(model, video, words), rtol=1e-4, atol=1e-5)
        other = words.clone()
        other[:, 4:] = torch.randint(4, WORDS, other[:, 4:].shape, generator=rng).to(device)
        # later words do not speak to earlier ones
        assert_close(model(video, other)[:, :5], logits[:, :5])
        padded = torch.cat([words, torch.zeros_like(words)], 1)
        loss = caption_loss(logits, words)
        # nor does padding count
        assert_close(caption_loss(model(video, padded), padded), loss, rtol=1e-4, atol=1e-4)
        assert_close(caption_loss(logits[order], words[order]), loss, rtol=1e-4, atol=1e-4)
        halves = [
            caption_loss(model(each, row), row) for each, row in zip(video.split(1), words.split(1))
        ]
        # a mean over captions
        assert_close(torch.stack(halves).mean(), loss, rtol=1e-4, atol=1e-4)
        said = greedy(whole, Seen(video), 7)
        assert_close(greedy(whole, Seen(video[order]), 7), said[order])
        # a shorter limit cuts, and changes nothing else
        assert_close(greedy(whole, Seen(video), 9)[:, :5], said[:, :5])
        best, score = beam(whole, Seen(video), 1, 7, length_penalty=0.0)
        # a beam of one is greedy
        assert_close(best[:, 0], said)
        several, scores = beam(whole, Seen(video), 4, 7, best=4)
        assert (scores.diff(dim=1) <= 1e-6).all()
        for rows in (said, several.flatten(0, 1), sample(whole, Seen(video), 7)[0]):
            ended = (rows == EOS).long().cumsum(1)
            assert (ended <= 1).all() and (
                (rows == PAD) == ((ended - (rows == EOS).long()) > 0)
            ).all()
            assert not torch.isin(rows, torch.tensor([1, UNK], device=device)).any()

    holds()


@few
@given(seeds)
def test_the_probability_of_a_sample_is_that_of_its_words(captioner, seed):
    torch.manual_seed(seed)
    video = torch.randn(4, 10)
    words, total = sample(captioner, Seen(video), 7)
    log_p = (
        (captioner.decoder(video, words) + captioner.decoder.never)
        .log_softmax(-1)
        .gather(-1, words.clamp(min=EOS)[..., None])[..., 0]
    )
    assert_close(torch.where(words == PAD, 0, log_p).sum(1), total, rtol=1e-4, atol=1e-4)
    assert (total <= 0).all()


def test_the_scan_of_words_is_the_loop_in_value_and_gradient():
    for seed in range(8):
        torch.manual_seed(seed)
        tensors = [
            torch.randn(shape, dtype=torch.float64, requires_grad=True)
            for shape in ((random.Random(seed).randint(1, 6), 3, 12), (8, 4), (4, 4))
        ]
        out = torch.randn(len(tensors[0]), 3, 4, dtype=torch.float64)
        plain = torch.autograd.grad((recurrence.gru_loop(*tensors) * out).sum(), tensors)
        assert_close(
            torch.autograd.grad((recurrence.GRUScan.apply(*tensors) * out).sum(), tensors), plain
        )


@few
@given(seeds, st.floats(0, 0.9))
def test_the_loss_is_equation_18_on_a_cpu_and_on_a_gpu(seed, smoothing):
    words = clips(seed)[3]
    logits = torch.randn(
        *words.shape,
        WORDS,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(seed),
        requires_grad=True,
    )
    # equation 18, word by word: the true word's share of the target, and every word's
    said = logits.log_softmax(-1)
    true = said.gather(2, words[..., None])[..., 0]
    each = torch.where(words == PAD, 0, (1 - smoothing) * true + smoothing * said.mean(-1))
    plain = -each.sum() / len(words)
    rows, truth = logits.flatten(0, 1), words.flatten()
    by_hand = recurrence.CaptionLoss.apply(rows, truth, smoothing).sum() / len(words)
    for ours in (caption_loss(logits, words, smoothing), by_hand):  # a CPU's, and a GPU's
        assert_close(ours, plain)
        assert_close(
            torch.autograd.grad(ours, logits), torch.autograd.grad(plain, logits, retain_graph=True)
        )


# any captioner
# --------------------------------------------------------------------------------------------------


class Plainest(torch.nn.Module):
    "Nothing but what a captioner must have, with a dictionary for a memory."

    def __init__(self):
        super().__init__()
        self.read = torch.nn.Linear(DIMS, 6)
        self.words = torch.nn.Embedding(WORDS, 6)
        self.say = torch.nn.Linear(6, WORDS)

    def encode(self, picked):
        return {
            "mean": self.read(picked.features).mul(picked.mask[..., None]).sum(1)
            / picked.mask.sum(1, keepdim=True),
            "what": "a mean",
        }

    def start(self, memory):
        return [memory["mean"] * 0]

    def step(self, word, state, memory):
        state = (state[0] + self.words(word) + memory["mean"]).tanh()
        return [state], self.say(state)


@pytest.fixture(params=["paper", "plainest"])
def anyone(request, captioner):
    torch.manual_seed(2)
    return captioner if request.param == "paper" else Plainest().eval()


@few
@given(seeds)
def test_any_captioner(anyone, seed):
    features, _, picks, words, _ = clips(seed)
    order, picked = order_of(len(picks), seed), pick_frames(features, picks)
    memory = anyone.encode(picked)
    some = lambda rows: speaking.mapped(lambda each: each[rows], memory)
    logits = speaking.teach(anyone, memory, words)
    # the fastest way is the plain one
    assert_close(logits, speaking.teach_by_step(anyone, memory, words), rtol=1e-4, atol=1e-5)
    assert_close(
        speaking.teach(anyone, some(order), words[order]), logits[order], rtol=1e-4, atol=1e-5
    )
    assert len(speaking.first_tensor(memory)) == len(words)
    # made ready, it says the same
    for each in (memory, speaking.as_captioner(anyone).ready(memory)):
        assert_close(
            anyone.step(torch.full_like(words[:, 0], BOS), anyone.start(each), each)[1],
            logits[:, 0],
            rtol=1e-4,
            atol=1e-5,
        )
    said = greedy(anyone, memory, 7)
    assert torch.equal(greedy(anyone, some(order), 7), said[order])
    assert torch.equal(
        greedy(anyone, speaking.repeated(memory, 3), 7), said.repeat_interleave(3, 0)
    )
    assert torch.equal(beam(anyone, memory, 1, 7, length_penalty=0.0)[0][:, 0], said)
    assert torch.equal(caption(anyone, features, picks, 7), said)
    assert torch.equal(
        caption(anyone, features, picks, 7, beam_size=3), beam(anyone, memory, 3, 7)[0][:, 0]
    )
    drawn, total = sample(anyone, memory, 7)
    log_p = (
        (speaking.teach(anyone, memory, drawn) + speaking.forbidden_words(logits))
        .log_softmax(-1)
        .gather(-1, drawn.clamp(min=EOS)[..., None])[..., 0]
    )
    assert_close(torch.where(drawn == PAD, 0, log_p).sum(1), total, rtol=1e-4, atol=1e-4)
    several, scores = beam(anyone, memory, 4, 7, best=4)
    assert (scores.diff(dim=1) <= 1e-6).all()
    for rows in (said, drawn, several.flatten(0, 1)):
        ended = (rows == EOS).long().cumsum(1)
        assert (ended <= 1).all() and ((rows == PAD) == ((ended - (rows == EOS).long()) > 0)).all()
        assert not torch.isin(rows, torch.tensor([1, UNK])).any()


def pairs_of(row: list[int]) -> list[tuple[int, int]]:
    "Every two words in a row, `<eos>` included."
    return [pair for pair in zip(row, row[1:]) if PAD not in pair]


@few
@given(seeds)
def test_two_words_in_a_row_are_not_said_twice_where_that_is_not_wanted(anyone, seed):
    features, _, picks, _, _ = clips(seed)
    memory = anyone.encode(pick_frames(features, picks))
    for row in (
        *greedy(anyone, memory, 12, no_repeats=True).tolist(),
        *caption(anyone, features, picks, 12, 3, no_repeats=True).tolist(),
    ):
        assert len(set(pairs_of(row))) == len(pairs_of(row))
    for row, other in zip(
        greedy(anyone, memory, 12).tolist(), greedy(anyone, memory, 12, no_repeats=True).tolist()
    ):
        # otherwise nothing changes
        assert row == other or len(set(pairs_of(row))) < len(pairs_of(row))
    said = torch.randint(
        4, 7, (3, random.Random(seed).randint(2, 8)), generator=torch.Generator().manual_seed(seed)
    )
    for row, never in zip(said.tolist(), speaking.repeats(said, WORDS)):
        assert never.nonzero().flatten().tolist() == sorted(
            {after for before, after in pairs_of(row) if before == row[-1]}
        )


@few
@given(seeds)
def test_a_memory_grows_as_its_prefixes_say(anyone, seed):
    """After k picked frames the memory is that of a clip with these k alone; frame by frame,
    too, where the captioner can."""
    features, _, picks, _, _ = clips(seed, batch=1)
    picked, memory = pick_frames(features, picks), None
    grown = speaking.growing(anyone, picked)
    for count in range(1, picked.features.shape[1] + 1):
        alone = anyone.encode(speaking.mapped(lambda each: each[:, :count], picked))
        row = speaking.mapped(lambda each: each[count - 1 : count], grown)
        assert_close(speaking.first_tensor(row), speaking.first_tensor(alone), rtol=1e-4, atol=1e-5)
        if speaking.as_captioner(anyone).grow:
            memory = anyone.grow(
                memory, picked.features[:, count - 1], int(picked.times[0, count - 1])
            )
            assert_close(
                speaking.first_tensor(memory), speaking.first_tensor(alone), rtol=1e-4, atol=1e-5
            )


@few
@given(seeds)
def test_a_captioner_that_is_fed_its_own_words_depends_on_its_draws_alone(seed):
    torch.manual_seed(seed)
    model = make_captioner(
        preset("smoke", hidden=10, feature_embedding=7, word_embedding=6, dropout=0.5).captioner,
        DIMS,
        WORDS,
    )
    features, _, picks, words, _ = clips(seed)
    memory, draws = Seen(torch.randn(len(words), 10)), model.draws(*words.shape, feedback=0.5)
    logits = speaking.teach(model, memory, words, 0.5, draws)
    assert torch.equal(speaking.teach(model, memory, words, 0.5, draws), logits)
    assert_close(
        speaking.teach_by_step(model, memory, words, 0.5, draws), logits, rtol=1e-4, atol=1e-5
    )
    assert_close(
        decoder.plain_logits(model.decoder, memory.video, words, draws),
        logits,
        rtol=1e-4,
        atol=1e-5,
    )
    with speaking.without_dropout(model):
        assert not model.training and torch.equal(
            caption(model, features, picks, 7), caption(model, features, picks, 7)
        )
    assert model.training


@few
@given(seeds)
def test_pick_frames(seed):
    "Every picked frame is there, in its place and with its time; the rest is nothing."
    features, _, picks, _, _ = clips(seed)
    picked = pick_frames(features, picks)
    for clip, row in enumerate(picks):
        taken = picked.mask[clip]
        assert (
            picked.times[clip][taken].tolist() == row.nonzero().flatten().tolist()
            and (picked.features[clip][~taken] == 0).all()
        )
        assert torch.equal(picked.features[clip][taken], features[clip][row])
    fewer = pick_frames(features, picks, most=2)
    assert torch.equal(fewer.features, picked.features[:, :2]) and torch.equal(
        fewer.mask, picked.mask[:, :2]
    )


# the fast forms
# --------------------------------------------------------------------------------------------------


@each_device
def test_what_is_recorded_does_what_the_step_does_and_leaves_no_trace(device):
    """A warm-up changes nothing that is kept; a replay, and on a CPU the step itself, gives the
    same numbers."""
    for seed in range(3):
        torch.manual_seed(seed)
        layer, rows = torch.nn.Linear(4, 3).to(device), torch.randn(5, 4, device=device)
        optimiser, twin = gpu.make_adam(layer.parameters(), 0.1), copy.deepcopy(layer)
        theirs = torch.optim.Adam(twin.parameters(), lr=0.1)

        def step(layer, optimiser, rows):
            loss = layer(rows).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss.detach()

        recorded = gpu.Captured(
            lambda rows: step(layer, optimiser, rows), rows, keep=(layer, optimiser)
        )
        assert torch.equal(layer.weight, twin.weight)
        for _ in range(3):
            assert_close(recorded(rows).clone(), step(twin, theirs, rows))
        assert_close(layer.weight, twin.weight)
        # of another shape: not recorded, and still right
        assert_close(recorded(rows[:2]), step(twin, theirs, rows[:2]))
        before = copy.deepcopy(layer.state_dict())
        with gpu.rewound((layer, optimiser)):
            step(layer, optimiser, rows)
            assert not torch.equal(layer.weight, before["weight"])
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@each_device
def test_tables_of_comparisons(device):
    @few
    @given(seeds)
    def holds(seed):
        rng = torch.Generator().manual_seed(seed)
        projected, bias, weight = (
            torch.randn(*shape, generator=rng).to(device) for shape in ((2, 5, 3), (3,), (3,))
        )
        with torch.no_grad():
            table = recurrence.pair_sums(projected, bias, weight)
        for t in range(5):
            for l in range(5):
                assert_close(
                    table[:, t, l],
                    (projected[:, t] - projected[:, l] + bias).relu() @ weight,
                    rtol=1e-4,
                    atol=1e-5,
                )
        noise = torch.rand(2, 2, 5, generator=rng).to(device)
        for rollout, picks in zip(noise, recurrence.roll_out_by_table(table, noise)):
            for clip in range(2):
                last, walked = 0, [True]
                for t in range(1, 5):
                    walked.append((table[clip, t, last] > rollout[clip, t].logit()).item())
                    last = t if walked[-1] else last
                assert picks[clip].tolist() == walked

    holds()
    matrix = torch.randn(3, 5)
    assert (
        torch.equal(recurrence.turned(matrix), matrix.T)
        and recurrence.turned(matrix).is_contiguous()
    )
    double = gpu.fused(lambda x: 2 * x)
    assert torch.equal(double(matrix), 2 * matrix)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_product_in_half_precision_is_close():
    torch.manual_seed(0)
    rows = torch.randint(-255, 256, (64, 32), device="cuda").half()
    weight = torch.randn(16, 32, device="cuda", requires_grad=True)
    out = torch.randn(64, 16, device="cuda")
    product, exact = recurrence.HalfProduct.apply(rows, weight), rows.float() @ weight.T
    assert_close(product, exact, rtol=1e-2, atol=1.0)
    quick, slow = (torch.autograd.grad((each * out).sum(), weight)[0] for each in (product, exact))
    assert (quick - slow).norm() < 0.02 * slow.norm()


# policy and pickers
# -------------------------------------------------------------------------------------------------


@each_device
def test_policy(net, device):
    model = copy.deepcopy(net).to(device)

    @few
    @given(seeds)
    def holds(seed):
        _, glances, picks, _, _ = clips(seed, device)
        order = order_of(len(picks), seed).to(device)
        noise = torch.rand(2, *picks.shape, generator=torch.Generator().manual_seed(seed)).to(
            device
        )
        chosen = model.rollout(glances)
        assert chosen[:, 0].all() and torch.equal(model.rollout(glances[order]), chosen[order])
        # the company
        assert torch.equal(torch.cat([model.rollout(one) for one in glances.split(1)]), chosen)
        longer = torch.cat([glances, glances.flip(1)], 1)
        # the future
        assert torch.equal(model.rollout(longer)[:, : glances.shape[1]], chosen)
        assert_close(
            model.log_probability(glances[order], picks[order]),
            model.log_probability(glances, picks)[order],
        )
        p = model.probabilities(glances, picks)
        assert (p[:, 0] == 1).all() and ((p >= 0) & (p <= 1)).all()
        assert_close(
            model.log_probability(glances, picks).exp(),
            torch.where(picks, p, 1 - p).prod(1),
            rtol=1e-3,
            atol=1e-5,
        )
        tried = model.explore(glances, noise=noise)
        assert torch.equal(tried.greedy, chosen) and tried.sampled.shape == noise.shape
        assert_close(
            tried.log_probability,
            torch.stack([model.log_probability(glances, each) for each in tried.sampled]),
        )
        assert ((tried.entropy >= -1e-6) & (tried.entropy <= 0.6932)).all()
        for row in noise:
            assert torch.equal(
                policy.roll_out_by_frame(model, glances, row),
                model.explore(glances, noise=row[None]).sampled[0],
            )
        if glances.shape[1] > 1:
            assert torch.equal(
                model.rollout(torch.cat([glances[:, :1], glances[:, :-1]], 1))[:, 1:2],
                model.rollout(glances[:, :1].repeat(1, 2, 1))[:, 1:],
            )
        brighter = glances.clamp(0, 200)
        # differences only
        assert torch.equal(model.rollout(brighter + 55), model.rollout(brighter))
        state, walked = model.start(), []
        for glance in glances[0]:
            state, picked, _ = model.step(state, glance)
            walked.append(picked)
        assert walked == chosen[0].tolist()

    holds()


@few
@given(seeds)
def test_the_last_pick_before_each_frame(seed):
    picks = clips(seed)[2]
    expected = [
        [max((l for l in range(t) if row[l]), default=0) for t in range(len(row))]
        for row in picks.tolist()
    ]
    assert policy.last_picks(picks).tolist() == expected


@few
@given(seeds, st.floats(1.5, 8))
def test_calibration_reaches_any_count(seed, wanted):
    torch.manual_seed(seed)
    glances = torch.randint(0, 256, (40, 9, GLANCE), dtype=torch.uint8)
    model = Policy(GLANCE, 8).calibrate(glances, wanted)
    assert abs(model.rollout(glances).sum(1).float().mean().item() - wanted) < 1
    assert all(weight.isfinite().all() for weight in model.parameters())


@each_device
@pytest.mark.parametrize("name", ["all", "uniform-3", "kmeans-3", "random-3", "chance-0.5"])
def test_pickers(name, device):
    picker = make_picker(*pickers.parse_label(name))
    assert picker.label == name and picker.random == name.startswith(("random", "chance"))

    @few
    @given(seeds)
    def holds(seed):
        features, glances, _, _, _ = clips(seed, device)
        picks = picker(Clips(features, glances))
        frames, order = features.shape[1], order_of(len(features), seed).to(device)
        assert picks.dtype == torch.bool and picks.shape == features.shape[:2] and picks[:, 0].all()
        if name.endswith("-3"):
            assert (picks.sum(1) == min(3, frames)).all() and picker.most == 3
        if not picker.random:
            assert torch.equal(picker(Clips(features[order], glances[order])), picks[order])
            assert torch.equal(
                torch.cat(
                    [picker(Clips(*each)) for each in zip(features.split(1), glances.split(1))]
                ),
                picks,
            )
        if name in ("all", "uniform-3"):
            assert (
                torch.equal(picker(Clips(features * 0, glances)), picks)
                and picker.looks_at == "nothing"
            )
        # certain of what it does
        assert torch.equal(picker.probabilities(Clips(features, glances), picks), picks.float())
        if name == "kmeans-3":  # turned and moved, the distances are the same
            turn = torch.linalg.qr(
                torch.randn(
                    DIMS, DIMS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
                )
            ).Q.to(device)
            moved = features.double() @ turn + 3
            between = pickers.frame_distances(features)
            assert_close(pickers.frame_distances(moved), between, rtol=1e-3, atol=1e-3)
            assert_close(between, torch.cdist(features, features) ** 2, rtol=1e-3, atol=1e-3)

    holds()


def test_a_learned_picker_looks_at_glances_only(net):
    features, glances, *_ = clips(3)
    assert torch.equal(
        pickers.learned(net)(Clips(features, glances)),
        pickers.learned(net)(Clips(features * float("nan"), glances)),
    )


# rewards
# --------------------------------------------------------------------------------------------------


@each_device
def test_cider(vocabulary, references, device):
    scorer = Cider(references, vocabulary, device=device)
    frequencies = cider.document_frequencies(references)
    with_end = Cider(references, vocabulary, eos=True, device=device)

    @few
    @given(seeds)
    def holds(seed):
        _, _, _, words, videos = clips(seed, device)
        scores, order = scorer(words, videos), order_of(len(words), seed).to(device)
        assert_close(scorer(words[order], videos[order]), scores[order])
        assert_close(
            torch.cat([scorer(one, two) for one, two in zip(words.split(1), videos.split(1))]),
            scores,
        )
        padded = torch.cat([words, torch.zeros_like(words)], 1)
        assert_close(scorer(padded, videos), scores)
        ended = (words == EOS).long().cumsum(1) - (words == EOS).long() > 0
        # whatever stands behind the end
        assert_close(scorer(torch.where(ended, 5, words), videos), scores)
        assert ((scores >= 0) & (scores <= 10.001)).all() and scores.dtype == torch.float32
        assert (with_end(words, videos) >= 0).all()
        for row, video, found in zip(
            vocabulary.decode(words.cpu()), videos.tolist(), scores.tolist()
        ):
            assert (
                abs(cider.plain_cider(row.split(), references[video], frequencies, 3) - found)
                < 1e-4
            )

    holds()
    for video, captions in enumerate(references):  # no caption beats the only reference itself
        alone = Cider([[captions[0] or ["w0"]], [["w9"]], [["w8"]]], vocabulary, device=device)
        words = vocabulary.encode([" ".join(captions[0] or ["w0"])], 12).to(device)
        assert (words == UNK).any() or alone(
            words, torch.tensor([0], device=device)
        ).item() <= 10.001


def test_cider_refuses_tables_that_no_memory_holds(vocabulary, monkeypatch):
    monkeypatch.setattr(fast_cider, "_LARGEST_TABLE", 10_000)
    with pytest.raises(PickNetError, match="5,000 references"):
        Cider([[["w1", "w2"]] * 5000, [["w3"]]], vocabulary)


@each_device
def test_diversity(device):
    @few
    @given(seeds)
    def holds(seed):
        features, _, picks, _, _ = clips(seed, device)
        earned = rewards.diversity_reward(features, picks)
        order = order_of(len(picks), seed).to(device)
        assert_close(rewards.diversity_reward(features[order], picks[order]), earned[order])
        frames = order_of(picks.shape[1], seed).to(device)
        # a set has no order
        assert_close(
            rewards.diversity_reward(features[:, frames], picks[:, frames]),
            earned,
            rtol=1e-4,
            atol=1e-4,
        )
        # no origin
        assert_close(rewards.diversity_reward(features + 7, picks), earned, rtol=1e-4, atol=1e-3)
        # but a unit
        assert_close(
            rewards.diversity_reward(3 * features, picks), 3 * earned, rtol=1e-4, atol=1e-4
        )
        noise = torch.where(picks[..., None], features, torch.full_like(features, 1e3))
        # dropped frames
        assert_close(rewards.diversity_reward(noise, picks), earned, rtol=1e-4, atol=1e-3)
        twice = torch.cat([features, features], 1), torch.cat([picks, picks], 1)
        assert_close(rewards.diversity_reward(*twice), earned, rtol=1e-4, atol=1e-4)
        assert (
            (earned >= 0).all()
            and (earned[picks.sum(1) == 1] == 0).all()
            and earned.dtype == torch.float32
        )
        assert_close(rewards.diversity_reward(features.half(), picks), earned, rtol=1e-2, atol=1e-2)

    holds()


@few
@given(
    st.integers(0, 200), st.integers(0, 60), st.integers(1, 8), st.integers(0, 5), st.integers(0, 5)
)
def test_limits_never_grow(epoch, shrink, low, more, most):
    config = preset(
        "smoke",
        min_picks=low,
        final_max_picks=low + more,
        first_max_picks=low + more + most,
        shrink_epochs=shrink,
    ).policy
    now, later = rewards.limits_at(epoch, config), rewards.limits_at(epoch + 1, config)
    assert config.final_max_picks <= later <= now <= config.first_max_picks
    assert epoch < shrink or now == config.final_max_picks


@few
@given(seeds)
def test_rewards_of_a_batch_are_rewards_of_its_clips(vocabulary, references, seed):
    features, _, picks, words, videos = clips(seed)
    reward = rewards.Reward(CONFIG.policy, Cider(references, vocabulary), 2.0)
    earned = reward(words, videos, features, picks, 4)
    order = order_of(len(picks), seed)
    limit = torch.tensor(4)
    assert_close(
        reward(words[order], videos[order], features[order], picks[order], limit),
        type(earned)(*(each[order] for each in earned)),
    )
    inside = (picks.sum(1) >= CONFIG.policy.min_picks) & (picks.sum(1) <= 4)
    assert torch.equal(earned.inside, inside) and torch.equal(
        rewards.within_limits(picks, CONFIG.policy.min_picks, limit), inside
    )
    assert (earned.total[~inside] == CONFIG.policy.penalty).all() and (
        earned.total[inside] >= 0
    ).all()


@few
@given(seeds)
def test_units_of_diversity_do_not_depend_on_the_seed_much(seed):
    features = torch.randn(30, 12, DIMS, generator=torch.Generator().manual_seed(seed))
    one = rewards.measure_diversity(features, CONFIG.policy)
    two = rewards.measure_diversity(features, CONFIG.policy, seed=5)
    assert (
        abs(one / two - 1) < 0.1
        and abs(rewards.measure_diversity(4 * features, CONFIG.policy) / one - 4) < 1e-3
    )
    assert rewards.measure_diversity(torch.zeros(3, 12, DIMS), CONFIG.policy) == 1.0


# learning from rewards
# ----------------------------------------------------------------------------------------------


@few
@given(seeds, st.integers(2, 5), st.integers(1, 5), st.floats(-5, 5))
def test_policy_gradient(seed, rollouts, batch, shift):
    rng = torch.Generator().manual_seed(seed)
    log_p = torch.randn(rollouts, batch, dtype=torch.float64, generator=rng, requires_grad=True)
    earned = torch.randn(rollouts, batch, dtype=torch.float64, generator=rng)
    gradient = lambda reward, baseline: torch.autograd.grad(
        reinforce.policy_loss(log_p, reward, baseline), log_p
    )[0]
    plain = gradient(earned, reinforce.others_baseline(earned))
    # only differences of rewards teach
    assert_close(gradient(earned + shift, reinforce.others_baseline(earned + shift)), plain)
    assert_close(gradient(3 * earned, reinforce.others_baseline(3 * earned)), 3 * plain)
    # what one gains, the others lose
    assert_close(plain.sum(0), torch.zeros(batch, dtype=torch.float64))
    order = order_of(batch, seed)
    assert_close(
        reinforce.others_baseline(earned[:, order]), reinforce.others_baseline(earned)[:, order]
    )
    assert_close(reinforce.others_baseline(earned).mean(0), earned.mean(0))


@few
@given(st.integers(1, 7), seeds)
def test_all_that_can_happen_adds_up_to_one(frames, seed):
    torch.manual_seed(seed)
    everything, model = reinforce.all_picks(frames), Policy(GLANCE, 4)
    assert (
        everything.shape == (2 ** (frames - 1), frames)
        and everything[:, 0].all()
        and len(everything.unique(dim=0)) == len(everything)
    )
    glances = torch.randint(0, 256, (1, frames, GLANCE), dtype=torch.uint8).expand(
        len(everything), -1, -1
    )
    log_p = model.log_probability(glances, everything)
    assert_close(reinforce.expected_reward(log_p, torch.ones(len(everything))), torch.tensor(1.0))
    earned = torch.randn(len(everything))
    assert (
        earned.min() - 1e-4
        <= reinforce.expected_reward(log_p, earned).item()
        <= earned.max() + 1e-4
    )


# the whole
# --------------------------------------------------------------------------------------------------


@few
@given(seeds)
def test_captions_depend_on_picked_frames_only(captioner, seed):
    features, _, picks, _, _ = clips(seed)
    said, order = caption(captioner, features, picks, 7), order_of(len(picks), seed)
    assert torch.equal(caption(captioner, features[order], picks[order], 7), said[order])
    assert torch.equal(
        caption(
            captioner,
            torch.where(picks[..., None], features, torch.full_like(features, -1e4)),
            picks,
            7,
        ),
        said,
    )
    longer = torch.cat([features, 9 * features], 1), torch.cat([picks, torch.zeros_like(picks)], 1)
    assert torch.equal(caption(captioner, *longer, 7), said)


@pytest.mark.parametrize("drop", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_and_makes_up_for_it(drop):
    torch.manual_seed(0)
    scales = dropout_scale(torch.empty(200, 500), drop)
    assert {round(value, 4) for value in scales.unique().tolist()} == {
        0.0,
        round(1 / (1 - drop), 4),
    }
    assert (
        abs((scales == 0).float().mean().item() - drop) < 0.006
        and abs(scales.mean().item() - 1) < 0.03
    )
    assert abs(torch.corrcoef(scales[:2])[0, 1].item()) < 0.2  # rows do not share their coins


def test_noise_on_the_cpu_is_exponential():
    "Words are drawn by it: an argmax of logits with it is a draw from their softmax."
    torch.manual_seed(0)
    decoder = Decoder(20, 8, 8, 8, dropout=0.5).train()
    noise = draw_randomness(decoder, 64, 200, 0.5).noise.flatten()
    assert (
        abs(noise.mean().item() - 1) < 0.02
        and abs(noise.var().item() - 1) < 0.05
        and (noise >= 0).all()
    )
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    chosen = (
        logits + gumbel(draw_randomness(Decoder(4 * 5000, 8, 8, 8), 1, 1, 0.5).noise.view(5000, 4))
    ).argmax(-1)
    torch.testing.assert_close(
        chosen.bincount(minlength=4) / 5000, logits.softmax(0), atol=0.02, rtol=0
    )


@pytest.mark.parametrize("collecting", [True, False])
def test_nothing_is_collected_while_a_step_is_recorded_and_then_as_before(collecting):
    before = gc.isenabled()
    try:
        gc.enable() if collecting else gc.disable()
        with pytest.raises(ZeroDivisionError), gpu.without_collecting():
            assert not gc.isenabled()
            1 / 0
        assert gc.isenabled() is collecting
    finally:
        gc.enable() if before else gc.disable()


def test_every_function_is_named_here():
    """A new function of the model or the rewards must get a property here, or be reached through
    one that has."""
    through = {  # private parts of what is tested above, by the function that runs them
        "gpu": "working_type usual_device Beside Undrawn",
        "recurrence": "lstm_states lstm_cell lstm_cell_gradient first_state open_gates move_state "
        "move_state_gradient open_gates_gradient word_losses word_losses_gradient "
        "CaptionLoss GRUTrace",
        "checks": "check_shapes check_finite_frames check_words check_sizes",
        "encoder": "lstm_step",
        "packing": "EncoderState Picked",
        "decoder": "gru_step",
        "fast_decoder": "NEVER embedded looked_up thin_out Weights Draws gumbel draw_randomness "
        "choose feed cast_weights fast_logits losses_by_word",
        "captioner": "",
        "generation": "Beams extend beam_search generate next_word likeliest_word",
        "captioner_contract": "CAPTIONERS Ready Captioner",
        "policy": "PickNet",
        "fast_policy": "glance_differences project_shift pair_table project roll_out_by_scan "
        "pair_logits roll_out path_logits path_scores Rollouts stream_step",
        "calibration": "standardise search set_bias initialise",
        "pickers": "picks_at all_frames uniform random_k random_p kmeans",
        "picker_contract": "Choice PICKERS Picker PickerError picker_entry top whole_number",
        "fast_kmeans": "centre_distances greedy_start kmeans_shares nearest_distinct",
        "cider": "ngrams",
        "fast_cider": "ORDERS word_positions ngram_keys Numbered number_references Counted "
        "count_ngrams Tables ngram_weights reference_norms build_tables find look_up "
        "running_number clipped_dot similarity",
        "rewards": "paper_reward",
        "custom_rewards": "FunctionReward REWARDS reward_from reward_entry REWARD_WEIGHTS Earned "
        "cider_for reward_for",
        "reinforce": "",
    }
    source = inspect.getsource(inspect.getmodule(test_every_function_is_named_here)).split(
        "through = {"
    )[0]
    for module in (
        gpu,
        recurrence,
        checks,
        encoder,
        packing,
        decoder,
        fast_decoder,
        speaking,
        generation,
        captioner_contract,
        policy,
        fast_policy,
        calibration,
        pickers,
        picker_contract,
        fast_kmeans,
        cider,
        fast_cider,
        rewards,
        custom_rewards,
        reinforce,
    ):
        name = module.__name__.rpartition(".")[2]
        missing = [
            each
            for each in module.__all__
            if not re.search(rf"\b{each}\b", source) and each not in through[name].split()
        ]
        assert not missing, f"{name}: {missing}"
