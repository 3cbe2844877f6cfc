"""What makes HRNE, BA, MS-RNN, Aalto and DenseCap themselves, and that each of them is a
captioner like any other."""
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import noise_corpus
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from picknet_nb.core.gpu import Captured, make_adam
from picknet_nb.core.settings import PRESETS, preset
from picknet_nb.data.text import EOS, PAD
from picknet_nb.world.shapes import example_corpus
from picknet_nb.method.captioner import (
    beam, caption, generate, greedy, growing, make_captioner, mapped, repeated, teach,
    teach_by_step)
from picknet_nb.method.decoder import NEVER, caption_loss
from picknet_nb.method.encoder import Encoder, Picked, lstm_step, pick_frames
from picknet_nb.method.extras import ExtendedSupervision
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.rewards import cider_for
from picknet_nb.method.stages import Model, frame_choice
from picknet_nb.systems.aalto import combined
from picknet_nb.systems.ba import BoundaryEncoder, segment_ends
from picknet_nb.systems.densecap import detection_loss, none_shows
from picknet_nb.systems.hrne import WindowEncoder
from picknet_nb.systems.ms_rnn import Gaussian, divergence, from_the_end

NAMES = ["hrne", "ba", "ms-rnn", "aalto", "densecap"]
# nats a caption; measured: 2.45 (MS-RNN) to 2.78 (DenseCap) on x86, 1.94 (HRNE) on ARM
MARGIN = 1.5
# attention keeps what it looks at: nothing to grow
STREAMS = [name for name in NAMES if name != "hrne"]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def some_captioner(name: str, dims: int = 12, words: int = 30, **changes):
    torch.manual_seed(0)
    return make_captioner(preset("smoke", architecture=name, **changes).captioner, dims, words)


def some_clips(batch: int = 5, dims: int = 12):
    torch.manual_seed(1)
    picks = torch.rand(batch, 30) < 0.2
    picks[:, 0], picks[0, 1:], picks[-1] = True, False, True  # one frame, some frames, all frames
    words = torch.randint(4, 30, (batch, 9))
    words[:, 6], words[:, 7:] = EOS, PAD
    return torch.randn(batch, 30, dims).half(), picks, words


def whole_loss(captioner, memory, words):
    "What is made small in training: the loss of the words, and whatever else there is."
    loss = caption_loss(teach(captioner, memory, words), words)
    extra = captioner.extra_loss(memory, words)
    return loss if extra is None else loss + extra


@pytest.fixture(scope="module")
def sixteen():
    """Six frames of each of sixteen clips of the built-in world, and one caption of each, all
    different."""
    corpus = example_corpus(16)
    words = corpus.words[::10]
    # nobody learns from what comes after the longest
    words = words[:, : (words != PAD).sum(1).max()]
    assert len(words.unique(dim=0)) == 16
    return (
        corpus.features,
        (torch.arange(30) % 5 == 0).expand(16, 30),
        words,
        len(corpus.vocabulary),
    )


LEARNED = {}


def learned(name: str, clips, blind: bool):
    "The same captioner for every test; who wants to change it copies it."
    if (name, blind) not in LEARNED: LEARNED[name, blind] = taught(name, clips, blind)
    return LEARNED[name, blind]


def taught(name: str, clips, blind: bool, steps: int | None = None, device: str = "cpu"):
    """A captioner that has tried to learn the clips by heart, and its last loss of a caption; a
    blind one is shown zeros."""
    features, picks, words, vocabulary = clips
    features, picks, words = (each.to(device) for each in (features * (not blind), picks, words))
    captioner = some_captioner(name, features.shape[-1], vocabulary, dropout=0.0).to(device)
    adam = make_adam(captioner.parameters(), 2e-2)

    def step(rows):
        memory = captioner.encode(pick_frames(features[rows], picks[rows]))
        loss = caption_loss(teach(captioner, memory, words[rows]), words[rows])
        extra = captioner.extra_loss(memory, words[rows])
        extra = torch.zeros_like(loss) if extra is None else extra
        adam.zero_grad(set_to_none=True)
        (loss + extra).backward()
        torch.nn.utils.clip_grad_norm_(captioner.parameters(), 5.0)
        adam.step()
        # of MS-RNN the bound: its words alone have been told too much
        return (loss + extra).detach() if name == "ms-rnn" else loss.detach()

    rows = torch.arange(16, device=device)
    run = Captured(step, rows, keep=(captioner, adam))
    # two LSTMs in a row take longer to begin
    for _ in range(steps or (80 if name == "hrne" else 60)):
        loss = run(rows)
    return captioner.eval(), loss.item()


@pytest.mark.parametrize("name", NAMES)
def test_who_sees_learns_what_the_blind_cannot(name, sixteen):
    """Of sixteen different captions a captioner that sees no video can at best say each with
    probability 1/16: a loss of log 16."""
    _, seen = learned(name, sixteen, blind=False)
    _, blind = learned(name, sixteen, blind=True)
    assert blind > math.log(16) - 0.05
    assert seen < blind - MARGIN, f"{name} sees: {seen:.2f}, does not: {blind:.2f}"


@cuda
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_in_a_recorded_step(name, sixteen):
    assert taught(name, sixteen, blind=False, device="cuda")[1] < math.log(16) - 1.5


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_make_words_agrees(name):
    captioner, (features, picks, words) = some_captioner(name, dropout=0.3).eval(), some_clips()
    memory = captioner.encode(pick_frames(features, picks))
    assert_close(teach(captioner, memory, words), teach_by_step(captioner, memory, words))
    said, total = generate(captioner, memory, 9)
    assert torch.equal(said, greedy(captioner, memory, 9)) and torch.equal(
        said, beam(captioner, memory, 1, 9)[0][:, 0]
    )
    scores = (
        teach(captioner, memory, said)
        .index_fill(-1, torch.tensor(NEVER), -torch.inf)
        .log_softmax(-1)
    )
    assert_close(total, scores.gather(-1, said[..., None])[..., 0].where(said != PAD, 0).sum(1))
    assert torch.equal(greedy(captioner, repeated(memory, 2), 9), said.repeat_interleave(2, 0))
    best, scores = beam(captioner, memory, 3, 9, best=3)
    assert best.shape == (5, 3, 9) and (scores.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("name", ["ba", "ms-rnn", "aalto", "densecap"])
def test_with_the_same_draws_a_lesson_is_the_steps(name):
    """Dropout and latent variables that were drawn beforehand are the same in both forms, so
    rewarded words are rewarded for what they were."""
    captioner, (features, picks, words) = some_captioner(name, dropout=0.4), some_clips()
    memory = captioner.encode(pick_frames(features, picks))
    draws = captioner.draws(5, 9)
    fast = teach(captioner, memory, words, draws=draws)
    assert_close(fast, teach_by_step(captioner, memory, words, draws=draws))
    assert not torch.equal(fast, teach(captioner, memory, words, draws=captioner.draws(5, 9)))


@pytest.mark.parametrize("name", NAMES)
def test_feedback_feeds_words_of_its_own(name):
    captioner, (features, picks, words) = some_captioner(name).eval(), some_clips()
    memory = captioner.encode(pick_frames(features, picks))
    results = []
    for each in (words, words.flip(0)):
        torch.manual_seed(3)
        results.append(teach(captioner, memory, each, 1.0))
    assert torch.equal(*results) and not torch.equal(results[0], teach(captioner, memory, words))


@pytest.mark.parametrize("name", NAMES)
def test_only_places_that_are_taken_count(name):
    captioner, (features, picks, _) = some_captioner(name).eval(), some_clips()
    clip = pick_frames(features[1:2], picks[1:2])
    room = clip.features.shape[1] + 5
    wide = Picked(
        F.pad(clip.features, (0, 0, 0, 5)), F.pad(clip.mask, (0, 5)), F.pad(clip.times, (0, 5))
    )
    assert wide.mask.shape[1] == room
    said = [generate(captioner, captioner.encode(each), 9) for each in (clip, wide)]
    assert torch.equal(said[0][0], said[1][0])
    assert_close(said[0][1], said[1][1])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_remembered_after_each_frame(name):
    captioner, (features, picks, _) = some_captioner(name).eval(), some_clips()
    clip = pick_frames(features[1:2], picks[1:2])
    rows, stream = growing(captioner, clip), None
    spoken = greedy(captioner, rows, 9)
    assert (captioner.grow is not None) == (name in STREAMS)
    for place, feature in enumerate(clip.features[0]):
        few = picks[1:2] & (picks[1:2].cumsum(1) <= place + 1)
        assert torch.equal(
            greedy(captioner, captioner.encode(pick_frames(features[1:2], few)), 9)[0],
            spoken[place],
        )
        if name in STREAMS:
            stream = captioner.grow(stream, feature[None], place)
            for one, other in zip(
                stream if name == "aalto" else (stream,), rows if name == "aalto" else (rows,)
            ):
                assert_close(one.video[0], other.video[place])
    if name == "densecap":
        assert_close(stream.absent[0], rows.absent[-1])


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_and_captions_before_a_step_keep_gradients(name):
    captioner, (features, picks, words) = some_captioner(name), some_clips()
    with torch.autocast("cpu", torch.bfloat16):
        caption(captioner, features, picks, 9)
        loss = whole_loss(captioner, captioner.encode(pick_frames(features, picks)), words)
    loss.backward()
    assert loss.isfinite() and all(
        weight.grad is not None and weight.grad.abs().sum() > 0 for weight in captioner.parameters()
    )
    single = whole_loss(captioner.eval(), captioner.encode(pick_frames(features, picks)), words)
    with torch.autocast("cpu", torch.bfloat16):
        half = whole_loss(captioner, captioner.encode(pick_frames(features, picks)), words)
    # its cost is drawn anew each time
    if name != "ms-rnn":
        assert_close(half, single, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["hrne", "aalto", "densecap"])
def test_gradients_by_finite_differences(name):
    captioner = (
        some_captioner(name, 4, 9, feature_embedding=3, word_embedding=3, hidden=4).double().eval()
    )
    picks = torch.tensor([[True, True, True, True, True], [True, False, True, False, False]])
    clips = pick_frames(torch.randn(2, 5, 4).double(), picks)
    words = torch.tensor([[5, 6, 3], [7, 3, 0]])
    loss = lambda features: caption_loss(
        captioner.teach(captioner.encode(clips._replace(features=features)), words), words
    )
    assert torch.autograd.gradcheck(loss, clips.features.clone().requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_its_preset_trains_with_rewarded_words(name):
    config = preset(
        "smoke",
        **{
            key: value
            for key, value in PRESETS[name].flat().items()
            if key
            in ("architecture", "mention_weight", "feedback_step", "consensus", "video_vector")
        },
    )
    assert (
        PRESETS[name].captioner.architecture == name
        and config.captioner.mention_weight == config.training.feedback_step == 0
    )
    corpus = noise_corpus(20)
    model = Model.for_corpus(config, corpus)
    stage = ExtendedSupervision(
        model,
        corpus,
        config,
        frame_choice(make_picker("uniform", 6), corpus),
        cider=cider_for(corpus),
    )
    loss, measures = stage(corpus.pairs("train")[:20])
    loss.backward()
    assert (
        loss.isfinite()
        and "word_reward" in measures
        and sum(weight.grad.abs().sum() for weight in model.captioner.parameters()) > 0
    )
    copy.deepcopy(model)  # nothing of the step stays behind in the module


def test_a_frame_touches_its_own_window_and_no_other():
    encoder = WindowEncoder(preset("smoke").captioner, 12).eval()
    features = torch.randn(2, 10, 12)
    clip = Picked(features, torch.ones(2, 10, dtype=torch.bool), torch.arange(10).expand(2, 10))
    before = encoder.filtered(clip)[0]
    for frame in range(10):
        other = features.clone()
        other[0, frame] += 1
        # (windows, clips)
        changed = (encoder.filtered(clip._replace(features=other))[0] != before).any(-1)
        assert changed.nonzero().tolist() == [[frame // 4, 0]]


def test_the_upper_lstm_reads_as_many_windows_as_there_are():
    encoder = WindowEncoder(preset("smoke").captioner, 12).eval()
    picks = torch.arange(30) < torch.tensor([[1], [4], [5], [30]])
    parts = encoder(pick_frames(torch.randn(4, 30, 12), picks))
    assert parts.mask.sum(1).tolist() == [1, 1, 2, 8] and parts.features.shape == (4, 8, 64)


def boundary_encoder(bias: float | None = None) -> BoundaryEncoder:
    torch.manual_seed(0)
    encoder = BoundaryEncoder(
        preset("smoke", dropout=0.0, hidden=8, feature_embedding=6).captioner, 5
    )
    if bias is not None:
        torch.nn.init.zeros_(encoder.boundary.weight)
        torch.nn.init.constant_(encoder.boundary.bias, bias)
    return encoder


def test_a_boundary_resets_the_state():
    encoder, features = boundary_encoder(bias=9.0).eval(), torch.randn(3, 7, 5)
    states, cuts = encoder.segments(encoder.embed(features.transpose(0, 1)))
    assert cuts[0].sum() == 0 and cuts[1:].eq(1).all()
    # every frame as a clip of its own
    alone, _ = encoder.segments(encoder.embed(features.flatten(0, 1))[None])
    assert_close(states.transpose(0, 1).flatten(0, 1), alone[0])


def test_without_boundaries_it_is_one_segment():
    encoder, features = boundary_encoder(bias=-9.0).eval(), torch.randn(3, 7, 5)
    states, cuts = encoder.segments(encoder.embed(features.transpose(0, 1)))
    plain = Encoder(5, 6, 8, 0.0).eval()
    plain.load_state_dict(
        {
            name: weight
            for name, weight in encoder.state_dict().items()
            if name.split(".")[0] in ("embedding", "lstm")
        }
    )
    assert cuts.sum() == 0
    assert_close(states[-1], plain(pick_frames(features, torch.ones(3, 7, dtype=torch.bool))))


def test_boundaries_are_tried_out_in_training():
    encoder, features = boundary_encoder(bias=-1.0), torch.randn(400, 11, 5)
    cuts = encoder.segments(encoder.embed(features.transpose(0, 1)))[1]
    assert set(cuts.unique().tolist()) == {0.0, 1.0}
    assert_close(cuts[1:].mean(), torch.tensor(-1.0).sigmoid(), atol=0.03, rtol=0)


def test_segments_end_where_the_next_begins_or_nothing_follows():
    cuts = torch.tensor([0.0, 0, 1, 1, 0, 1])[:, None, None]
    taken = torch.tensor([True, True, True, True, True, False])[:, None, None]
    assert segment_ends(cuts, taken).flatten().tolist() == [0, 1, 1, 0, 1, 0]


def plain_video(encoder: BoundaryEncoder, frames: torch.Tensor) -> torch.Tensor:
    """One clip, frame by frame, every sum written out; a decision is a step whose slope is the
    sigmoid's."""
    size = encoder.lstm.hidden_size
    upper = torch.nn.LSTM(size, size)
    upper.weight_ih_l0, upper.weight_hh_l0 = encoder.upper_inputs.weight, encoder.upper_state.weight
    upper.bias_ih_l0 = encoder.upper_inputs.bias
    upper.bias_hh_l0 = torch.nn.Parameter(torch.zeros(4 * size))
    h = c = above_h = above_c = torch.zeros(1, size)
    for number, frame in enumerate(frames):
        x = encoder.embedding(frame[None])
        if number:
            soft = encoder.boundary(torch.cat([x, h], 1)).sigmoid()
            s = (soft > 0.5).float() + soft - soft.detach()
            next_h, next_c = lstm_step(h, above_h, above_c, upper)
            above_h, above_c = s * next_h + (1 - s) * above_h, s * next_c + (1 - s) * above_c
            h, c = (1 - s) * h, (1 - s) * c
        h, c = lstm_step(x, h, c, encoder.lstm)
    return lstm_step(h, above_h, above_c, upper)[0][0]


def test_straight_through_gradients_are_those_of_a_plain_loop():
    encoder, wish = boundary_encoder().eval(), torch.randn(3, 8)
    encoder.boundary.weight.data *= 5  # so that both decisions occur
    features, picks = torch.randn(3, 9, 5), torch.arange(9) < torch.tensor([[9], [4], [1]])
    cuts = encoder.segments(encoder.embed(features.transpose(0, 1)))[1][1:]
    assert 0 < cuts.mean() < 1
    fast = encoder(pick_frames(features, picks))
    plain = torch.stack([plain_video(encoder, clip[taken]) for clip, taken in zip(features, picks)])
    assert_close(fast, plain)
    names, weights = zip(*encoder.named_parameters())
    for name, one, other in zip(
        names, *(torch.autograd.grad((each * wish).sum(), weights) for each in (fast, plain))
    ):
        assert_close(one, other, msg=lambda message: f"{name}: {message}")
        if "boundary" in name:
            assert one.abs().sum() > 0


def test_divergence_is_that_of_the_library():
    q, p = Gaussian.read(torch.randn(7, 6)), Gaussian.read(torch.randn(7, 6))
    assert_close(
        divergence(q, p),
        kl_divergence(Normal(*q), Normal(*p)).sum(-1),
    )


def test_ms_rnn_pays_for_the_divergence_of_the_posterior_from_the_prior():
    """KL(posterior || prior) of the latents that training draws, over words and not padding; by the
    library, and never the other way round."""
    captioner, memory, words = stochastic()
    _, latents = captioner.logits_and_latents(
        memory, words, captioner.draws(*words.shape), knowing=True
    )
    prior, posterior = Normal(*latents.prior), Normal(*latents.posterior)
    said = lambda each: torch.where(words.T != PAD, each.sum(-1), 0).sum(0)  # (batch,)
    paid = captioner.paid(latents, words)
    assert_close(paid, said(kl_divergence(posterior, prior)))
    assert not torch.allclose(paid, said(kl_divergence(prior, posterior)), rtol=0.01)
    captioner.train()
    torch.manual_seed(5)
    captioner.teach(memory, words)
    loss = captioner.extra_loss(memory, words)
    torch.manual_seed(5)
    _, latents = captioner.logits_and_latents(
        memory, words, captioner.draws(*words.shape), knowing=True
    )
    each = kl_divergence(Normal(*latents.posterior), Normal(*latents.prior))
    assert_close(loss, said(each).mean())


def test_captions_are_read_from_their_own_end():
    words = torch.tensor([[7, 8, EOS, PAD], [5, EOS, PAD, PAD]]).T
    assert words.gather(0, from_the_end(words)).T.tolist() == [[EOS, 8, 7, PAD], [EOS, 5, PAD, PAD]]


def stochastic():
    "A small MS-RNN, a memory, and captions."
    captioner, (features, picks, words) = some_captioner("ms-rnn").eval(), some_clips()
    # a posterior that is near enough to sample from
    captioner.follow.weight.data[captioner.latent:] *= 0.1
    return captioner, captioner.encode(pick_frames(features, picks)), words


@torch.no_grad()
def bound_of(captioner, memory, words, samples=400):
    "The bound of each caption, by its two halves: loss of the words and divergence."
    said = words.repeat_interleave(samples, 0)
    logits, latents = captioner.logits_and_latents(
        repeated(memory, samples), said, captioner.draws(*said.shape), knowing=True
    )
    spoken = (
        F.cross_entropy(logits.flatten(0, 1), said.flatten(), ignore_index=PAD, reduction="none")
        .view_as(said)
        .sum(1)
    )
    return -(spoken + captioner.paid(latents, said)).view(-1, samples).mean(1)


@torch.no_grad()
def log_likelihood(captioner, memory, words, samples):
    "log p(caption | video) from below, (batch,): importance sampling from the posterior."
    said = words.repeat_interleave(samples, 0)
    logits, (values, *both) = captioner.logits_and_latents(
        repeated(memory, samples), said, captioner.draws(*said.shape), knowing=True
    )
    spoken = logits.log_softmax(-1).gather(-1, said[..., None])[..., 0].T  # (time, rows)
    prior, posterior = (Normal(*each).log_prob(values).sum(-1) for each in both)
    each = torch.where(said.T != PAD, spoken + prior - posterior, 0)
    return each.sum(0).view(-1, samples).logsumexp(1) - math.log(samples)


def test_the_bound_is_a_bound():
    torch.manual_seed(0)
    captioner, memory, words = stochastic()
    bound = bound_of(captioner, memory, words)
    weighted = log_likelihood(captioner, memory, words, 3000)
    said = words.repeat_interleave(20_000 // 5, 0)
    with torch.no_grad():
        logits = captioner.logits_and_latents(
            repeated(memory, 4000), said, captioner.draws(*said.shape), knowing=False
        )[0]
    total = (
        -F.cross_entropy(logits.flatten(0, 1), said.flatten(), ignore_index=PAD, reduction="none")
        .view_as(said)
        .sum(1)
    )
    by_prior = total.view(5, 4000).logsumexp(1) - math.log(4000)  # knows nothing of the posterior
    assert (weighted > bound + 0.5).all()
    assert_close(weighted, by_prior, atol=0.4, rtol=0)


def test_a_single_sample_estimates_the_bound():
    torch.manual_seed(0)
    captioner, memory, words = stochastic()
    single = (
        log_likelihood(captioner, repeated(memory, 400), words.repeat_interleave(400, 0), 1)
        .view(5, 400)
        .mean(1)
    )
    assert_close(single, bound_of(captioner, memory, words), atol=0.5, rtol=0)


def test_the_cost_of_a_lesson_is_that_of_its_own_latents():
    captioner, memory, words = stochastic()
    captioner.train()
    torch.manual_seed(5)
    logits = captioner.teach(memory, words)
    cost = captioner.extra_loss(memory, words)
    torch.manual_seed(5)
    again, latents = captioner.logits_and_latents(
        memory, words, captioner.draws(*words.shape), knowing=True
    )
    assert (
        torch.equal(logits, again)
        and torch.equal(cost, captioner.paid(latents, words).mean())
        and cost > 0
    )
    torch.nn.init.zeros_(captioner.posterior.weight), torch.nn.init.zeros_(captioner.posterior.bias)
    captioner.follow.weight.data[captioner.latent :] = 0
    assert captioner.extra_loss(memory, words) == 0  # a posterior that is the prior pays nothing


def test_the_bound_has_the_right_gradient():
    captioner = some_captioner(
        "ms-rnn", 4, 9, feature_embedding=3, word_embedding=3, hidden=8
    ).double()
    words, draws = torch.tensor([[5, 6, 3], [7, 3, 0]]), captioner.eval().draws(2, 3)

    def bound(video):
        logits, latents = captioner.logits_and_latents(
            type(memory)(video), words, draws, knowing=True
        )
        return caption_loss(logits, words) + captioner.paid(latents, words).mean()

    memory = captioner.encode(
        pick_frames(torch.randn(2, 5, 4).double(), torch.ones(2, 5, dtype=torch.bool))
    )
    assert torch.autograd.gradcheck(bound, memory.video.detach().requires_grad_())


def test_chance_can_be_repeated_and_means_are_no_chance():
    torch.manual_seed(0)
    captioner, memory, _ = stochastic()
    rows = repeated(mapped(lambda each: each[:1], memory), 60)
    draws = captioner.draws(60, 9)
    said = generate(captioner, rows, 9, draws=draws)[0]
    assert torch.equal(said, generate(captioner, rows, 9, draws=draws)[0])
    assert len(said.unique(dim=0)) > 1 and len(greedy(captioner, rows, 9).unique(dim=0)) == 1


def test_a_committee_is_taught_as_its_members_are():
    logits = [torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    words = torch.tensor([[5, 6, 7, 8, EOS], [4, EOS, PAD, PAD, PAD], [9, 9, 9, EOS, PAD]])
    assert_close(combined(logits).exp().sum(-1), torch.ones(3, 5, dtype=torch.float64))
    together = caption_loss(combined(logits), words)
    apart = sum(caption_loss(each, words) for each in logits) / 3
    assert_close(together, apart)
    for one, other in zip(
        torch.autograd.grad(together, logits), torch.autograd.grad(apart, logits)
    ):
        assert_close(one, other)


def test_members_who_agree_say_what_each_of_them_would():
    logits = torch.randn(4, 12)
    assert_close(combined([logits, logits]).softmax(-1), logits.softmax(-1), atol=1e-5, rtol=1e-4)


def test_the_evaluator_changes_which_sentence_is_chosen(sixteen):
    captioner = copy.deepcopy(learned("aalto", sixteen, blind=False)[0])
    features, picks, words, _ = sixteen
    chosen = lambda candidates: (
        captioner.rescore(memory, candidates, torch.zeros(16, 2)).argmax(1).float().mean()
    )
    with torch.no_grad():
        memory = captioner.encode(pick_frames(features, picks))
        for shift in (1, 5):
            # another clip's caption first, its own second
            candidates = torch.stack([words.roll(shift, 0), words], 1)
            assert chosen(candidates) > 0.9 and chosen(candidates.flip(1)) < 0.1
        # cannot be said
        assert (
            captioner.rescore(memory, candidates, torch.tensor([[0.0, -torch.inf]]).expand(16, 2))
            .argmax(1)
            .sum()
            == 0
        )
        before = beam(captioner, memory, 4, 14)[0]
        captioner.evaluator.video.weight.neg_(), captioner.evaluator.video.bias.neg_()
        assert chosen(candidates) < 0.1  # who scores the other way chooses the other one
        # of a beam, too
        assert (beam(captioner, memory, 4, 14)[0] != before).any(-1).float().mean() > 0.9
        assert torch.equal(beam(captioner, memory, 1, 14)[0][:, 0], greedy(captioner, memory, 14))


def test_the_evaluator_teaches_itself_alone():
    "Its loss reads the video vectors of the members and must not change them."
    captioner, (features, picks, words) = some_captioner("aalto"), some_clips()
    memory = captioner.encode(pick_frames(features, picks))
    captioner.extra_loss(memory, words).backward()
    assert all(weight.grad is None for weight in captioner.members.parameters())
    assert all(weight.grad.abs().sum() > 0 for weight in captioner.evaluator.parameters())


def test_captions_of_one_clip_are_no_counter_examples():
    captioner, (features, picks, words) = some_captioner("aalto").eval(), some_clips()
    evaluator, memory = captioner.evaluator, captioner.encode(pick_frames(features, picks))
    rows, said = repeated(memory, 2), words.repeat_interleave(2, 0)
    said[1::2, 0] = 4
    scores = 10 * evaluator.embed_video(rows) @ evaluator.embed_sentence(said).T
    losses = [
        -scores[row, row]
        + scores[row, [row, *(other for other in range(10) if other // 2 != row // 2)]].logsumexp(0)
        for row in range(10)
    ]
    assert_close(evaluator.loss(rows, said), torch.stack(losses).mean())


def test_a_word_is_shown_if_one_frame_shows_it():
    scores = torch.randn(6, 3, 8)
    taken = torch.arange(6)[:, None] < torch.tensor([6, 2, 1])
    for clip, count in enumerate((6, 2, 1)):
        shown = 1 - (1 - scores[:count, clip].sigmoid()).prod(0)
        assert_close(1 - none_shows(scores, taken)[clip].exp(), shown)


def test_the_loss_of_words_is_a_cross_entropy_for_each_word():
    absent, words = -torch.rand(2, 9) - 0.1, torch.tensor([[5, 6, EOS, PAD], [7, 7, 8, EOS]])
    truth = torch.zeros(2, 9)
    truth[0, [5, 6]], truth[1, [7, 8]] = 1, 1
    assert_close(
        detection_loss(absent, words),
        F.binary_cross_entropy(1 - absent.exp(), truth, reduction="none").sum(1).mean(),
    )
    assert (
        detection_loss(torch.full((2, 9), -1e-9), words).isfinite()
        and detection_loss(torch.full((2, 9), -300.0), words).isfinite()
    )


def test_frames_learn_words_from_captions_of_clips(sixteen):
    captioner, _ = learned("densecap", sixteen, blind=False)
    features, picks, words, vocabulary = sixteen
    with torch.no_grad(): shown = 1 - captioner.encode(pick_frames(features, picks)).absent.exp()
    said = torch.zeros(16, vocabulary).scatter_(1, words, 1.0).bool()
    said[:, :4] = False
    assert shown[said].mean() > 0.7 and shown[~said].mean() < 0.05
