"""What the notebooks of encoder, decoder and capture do not tell: odd shapes, many random cases,
and the traps of autocast."""
import copy
import json
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.gpu import Captured, fused, make_adam, rewound
from picknet_nb.core.settings import (
    ConfigError, load_config, preset, save_config, setting, settings_from)
from picknet_nb.data.text import BOS, EOS, PAD
from picknet_nb.method.captioner import (
    CAPTIONERS, Captioner, PaperCaptioner, Seen, beam, caption, generate, greedy, growing,
    make_captioner, repeated, sample, teach, teach_by_step)
from picknet_nb.method.decoder import NEVER, Decoder, caption_loss, gru_step, plain_logits
from picknet_nb.method.encoder import Encoder, compact, pick_frames
from picknet_nb.method.fast_decoder import draw_randomness
from picknet_nb.method.recipes import Recipe
from picknet_nb.training.runs import RunError, load_run
from picknet_nb.training.train import check_changes, train
from picknet_nb.interface.prepare import settings_of

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def small_captioner(
    words: int = 30, dims: int = 12, output_gate: str = "sigmoid", **changes
) -> PaperCaptioner:
    torch.manual_seed(0)
    return PaperCaptioner(preset("smoke", **changes).captioner, dims, words, output_gate)


def speaker(words: int, size: int) -> PaperCaptioner:
    "A captioner whose memories are vectors of this size, with opinions about words."
    captioner = make_captioner(
        preset("smoke", hidden=size, word_embedding=size, feature_embedding=size).captioner,
        3,
        words,
    ).eval()
    captioner.decoder.output.weight.data *= 4
    return captioner


def taught(captioner, features, picks, words, feedback=0.0):
    "The logits of captions, from features and picks."
    return teach(captioner, captioner.encode(pick_frames(features, picks)), words, feedback)


def some_clips(batch: int = 5, dims: int = 12, device="cpu"):
    torch.manual_seed(1)
    picks = torch.rand(batch, 30) < 0.2
    picks[:, 0], picks[0, 1:], picks[-1] = True, False, True  # one frame, some frames, all frames
    words = torch.randint(4, 30, (batch, 9))
    words[:, 6], words[:, 7:] = EOS, PAD
    return [each.to(device) for each in (torch.randn(batch, 30, dims).half(), picks, words)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_compact_keeps_the_first_picks_in_order(rows, most):
    source, taken = compact(torch.tensor(rows), most)
    for row, places, filled in zip(rows, source, taken):
        assert places[filled].tolist() == [frame for frame, pick in enumerate(row) if pick][:most]


@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
@pytest.mark.parametrize("vector", ["last", "mean"])
@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_stream_equals_batch(gate, vector, kind):
    features, picks, _ = some_clips()
    encoder = Encoder(12, 8, 6, output_gate=gate, video_vector=vector).eval()
    if kind == torch.float64:
        encoder.double()
    video = encoder(pick_frames(features.to(kind), picks))
    for clip in range(len(features)):
        state = encoder.start()
        for feature in features[clip, picks[clip]]:
            state = encoder.step(state, feature[None].to(kind))
        assert_close(encoder.read(state)[0], video[clip])


def test_fewer_places_than_picks_read_the_first_ones():
    features, _, _ = some_clips()
    encoder = Encoder(12, 8, 6).eval()
    first_three = (torch.arange(30) < 3).expand(len(features), 30)
    assert_close(
        encoder(pick_frames(features, torch.ones_like(first_three), most=3)),
        encoder(pick_frames(features, first_three)),
    )


def test_input_dropout_acts_in_training_only():
    features, picks, _ = some_clips()
    encoder = Encoder(12, 8, 6, dropout=0.0, input_dropout=0.5)
    assert not torch.equal(
        encoder(pick_frames(features, picks)), encoder(pick_frames(features, picks))
    )
    encoder.eval()
    assert torch.equal(encoder(pick_frames(features, picks)), encoder(pick_frames(features, picks)))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_fast_decoder_equals_plain_loop(batch, time, feedback, training):
    torch.manual_seed(batch + 10*time)
    decoder = Decoder(15, 5, 6, 7).train(training)
    video, words = torch.randn(batch, 7, requires_grad=True), torch.randint(0, 15, (batch, time))
    draws, results = draw_randomness(decoder, batch, time, feedback), []
    for logits in (plain_logits(decoder, video, words, draws), decoder(video, words, draws=draws)):
        loss = caption_loss(logits, words) + 0*logits.sum()
        results.append((logits, *torch.autograd.grad(loss, [video, *decoder.parameters()])))
    for plain, fast in zip(*results): assert_close(fast, plain)


def test_every_reset_gate_acts_on_every_unit():
    "Equations 9 and 10 reset the state before the product; the GRU of PyTorch resets after it."
    torch.manual_seed(1)
    state, zeros = torch.randn(1, 3), torch.zeros(1, 3)
    cell = torch.nn.GRUCell(3, 3)
    gates, proposal = cell.weight_hh.detach().split([6, 3])
    derivative = torch.autograd.functional.jacobian
    ours = derivative(
        lambda reset: gru_step(torch.cat([zeros, reset, zeros], 1), state, gates, proposal)[0],
        zeros)[:, 0]
    library = derivative(
        lambda reset: torch.func.functional_call(
            cell, {"bias_ih": torch.cat([reset, zeros, zeros], 1)[0]}, (zeros, state))[0],
        zeros)[:, 0]
    others = ~torch.eye(3, dtype=torch.bool)
    assert ours[others].ne(0).all() and library[others].eq(0).all() and library.diag().ne(0).all()


def test_half_precision_is_close_in_logits_and_gradients():
    captioner = small_captioner(words=31, dropout=0.0)  # 31: the padded rows must leave no trace
    features, picks, words = some_clips()
    results = []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = taught(captioner, features, picks, words)
            loss = caption_loss(logits, words)
        results.append((logits, *torch.autograd.grad(loss, captioner.parameters())))
    for single, rounded in zip(*results):
        assert (single - rounded).norm() < 2e-2*single.norm()


def test_captions_made_before_a_step_do_not_cut_its_gradients():
    """Autocast keeps casted weights; those cast without gradients must not be found by the
    training pass after it."""
    captioner = small_captioner()
    features, picks, words = some_clips()
    with torch.autocast("cpu", torch.bfloat16):
        caption(captioner, features, picks, 9)
        loss = caption_loss(taught(captioner, features, picks, words, 0.5), words)
    loss.backward()
    assert all(
        weight.grad is not None and weight.grad.abs().sum() > 0 for weight in captioner.parameters()
    )


def test_a_zero_feedback_tensor_is_no_feedback():
    decoder = Decoder(15, 5, 6, 7)
    assert (
        draw_randomness(decoder, 2, 3, torch.tensor(0.0)).own is None
        and draw_randomness(decoder, 2, 3, torch.tensor(0.5)).own is not None
    )


def test_own_words_are_drawn_from_the_softmax():
    torch.manual_seed(0)
    captioner, video = speaker(12, 8), torch.randn(1, 8).repeat(20_000, 1)
    words, _ = sample(captioner, Seen(video), 1)
    logits = plain_logits(captioner.decoder, video[:1], words[:1]) + captioner.decoder.never
    shares = words[:, 0].bincount(minlength=12)/20_000
    assert_close(shares, logits[0, 0].softmax(-1).detach(), atol=0.02, rtol=0)


def test_words_say_the_same_from_the_table_as_through_the_matrix():
    decoder, words = Decoder(15, 5, 6, 7), torch.randint(0, 15, (40,))
    with torch.no_grad():
        weights = decoder.weights()
        context = weights.context(torch.randn(40, 7))
        assert_close(
            weights.with_word_table().inputs(words, context), weights.inputs(words, context)
        )


@pytest.mark.parametrize("words", [1023, 1024])
def test_only_a_small_vocabulary_gets_a_table_on_a_cpu_and_captions_are_the_same(words):
    torch.manual_seed(0)
    captioner, memory = speaker(words, 8), Seen(3 * torch.randn(20, 8))
    ready = captioner.eval().ready(memory)
    assert ready.weights.word is not None  # where gradients are wanted, there is none either
    with torch.no_grad():
        assert (captioner.ready(memory).weights.word is None) == (words < 1024)
    plain = torch.full((20, 1), BOS)
    for _ in range(6):
        plain = torch.cat(
            [
                plain,
                (
                    plain_logits(captioner.decoder, memory.video, F.pad(plain[:, 1:], (0, 1)))[
                        :, -1:
                    ]
                    + captioner.decoder.never
                ).argmax(-1),
            ],
            1,
        )
    ended = (plain[:, 1:] == EOS).cumsum(1).cumsum(1) > 1
    assert torch.equal(greedy(captioner, memory, 6), plain[:, 1:].masked_fill(ended, PAD))


def test_samples_of_all_exponential_noise_are_possible_words():
    torch.manual_seed(0)
    words, total = generate(speaker(8, 4), Seen(torch.randn(5000, 4)), 12, sampled=True)
    assert not torch.isin(words[words != PAD], torch.tensor(NEVER)).any() and total.isfinite().all()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_beams_are_sorted_distinct_and_end_once(size):
    torch.manual_seed(0)
    captioner, memory = speaker(14, 8), Seen(3*torch.randn(20, 8))
    words, scores = beam(captioner, memory, size, 9, best=size)
    assert (scores.diff(dim=1) <= 0).all() and ((words == EOS).sum(-1) <= 1).all()
    for captions in words: assert len(captions.unique(dim=0)) == size
    if size == 1: assert torch.equal(words[:, 0], greedy(captioner, memory, 9))


def test_captions_of_one_word_one_clip_and_no_dropout_in_training_mode():
    captioner = small_captioner(dropout=0.9).train()
    features, picks, _ = some_clips()
    captions = [caption(captioner, features[:1], picks[:1], 1) for _ in range(5)]
    assert all(torch.equal(each, captions[0]) for each in captions) and captioner.training
    assert caption(captioner, features, picks, 16).shape == (5, 16)


def test_modules_travel():
    captioner = small_captioner().eval()
    features, picks, _ = some_clips()
    want = caption(captioner, features, picks, 9)
    for other in (copy.deepcopy(captioner), pickle.loads(pickle.dumps(captioner))):
        assert torch.equal(caption(other, features, picks, 9), want)
    fresh = small_captioner().eval()
    torch.nn.init.zeros_(fresh.decoder.output.weight)
    fresh.load_state_dict(captioner.state_dict())
    assert torch.equal(caption(fresh, features, picks, 9), want)


def test_bad_input_is_refused_in_a_sentence():
    captioner = small_captioner()
    features, picks, words = some_clips()
    cases = {
        "no picked frame": lambda: taught(captioner, features, picks & False, words),
        "not finite": lambda: taught(captioner, features * torch.inf, picks, words),
        "features must have": lambda: taught(captioner, features[..., :5], picks, words),
        "picks must be": lambda: taught(captioner, features, picks[:, :7], words),
        "another vocabulary": lambda: taught(captioner, features, picks, words + 100),
        "words must be": lambda: taught(captioner, features, picks, words[:, :0]),
        "another corpus": lambda: captioner.load_state_dict(small_captioner(words=31).state_dict()),
        "feature dimensions": lambda: captioner.load_state_dict(
            small_captioner(dims=13).state_dict()
        ),
        "best must lie": lambda: beam(captioner, Seen(torch.randn(2, 64)), 2, 5, best=3),
        "no captioner 'papper': did you mean paper": lambda: make_captioner(
            preset("smoke", architecture="papper").captioner, 12, 30
        ),
    }
    for sentence, action in cases.items():
        with pytest.raises(PickNetError, match=sentence):
            action()


def test_fused_falls_back_with_one_warning(monkeypatch):
    class OnDevice:
        is_cuda = True

    def broken(function):
        def compiled(*arguments): raise RuntimeError("no compiler")
        return compiled
    monkeypatch.setattr(torch, "compile", broken)
    function = fused(lambda thing: 42)
    with torch.no_grad(), pytest.warns(UserWarning, match="no compiler"):
        assert function(OnDevice()) == 42
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(OnDevice()) == 42


def test_rewound_also_after_an_error():
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(ZeroDivisionError), rewound((model,)):
        model.weight.data.zero_()
        1/0
    assert torch.equal(model.weight, before)


def train_a_little(captured: bool, device: str) -> tuple[list[float], torch.Tensor]:
    captioner = small_captioner().to(device)
    features, picks, words = some_clips(device=device)
    adam, feedback = make_adam(captioner.parameters(), 1e-2), torch.zeros((), device=device)

    def step(clips):
        adam.zero_grad(set_to_none=True)
        loss = caption_loss(
            taught(captioner, features[clips], picks[clips], words[clips], feedback), words[clips]
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(captioner.parameters(), 5.0)
        adam.step()
        return loss.detach()

    clips = torch.arange(4, device=device)
    run = Captured(step, clips, keep=(captioner, adam)) if captured else step
    torch.manual_seed(5)
    losses = []
    for number in range(6):
        feedback.fill_(0.2 * number)
        losses.append(run(clips if number != 3 else clips[:2]).item())  # a smaller batch in between
    return losses, captioner.decoder.output.weight.detach().clone()


def test_captured_on_a_cpu_is_the_step_itself():
    for one, other in zip(train_a_little(True, "cpu"), train_a_little(False, "cpu")):
        assert_close(one, other)


@cuda
def test_captured_on_a_gpu_is_the_step_itself():
    for one, other in zip(train_a_little(True, "cuda"), train_a_little(False, "cuda")):
        assert_close(one, other, rtol=1e-4, atol=1e-4)  # sums in another order: 1e-6 on an H200


@cuda
@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
def test_gpu_equals_cpu(gate):
    torch.backends.cudnn.allow_tf32 = False
    captioner = small_captioner(dropout=0.0, output_gate=gate)
    results = []
    for device in ("cpu", "cuda"):
        features, picks, words = some_clips(device=device)
        logits = taught(captioner.to(device), features, picks, words)
        results.append(
            [
                each.cpu()
                for each in (
                    logits,
                    *torch.autograd.grad(caption_loss(logits, words), captioner.parameters()),
                )
            ]
        )
    for one, other in zip(*results):
        assert_close(one, other, rtol=1e-5, atol=1e-5)


class Attentive(torch.nn.Module):
    """A captioner that nobody in the package has heard of: a vector for each frame, a state in a
    dictionary, no optional function."""

    def __init__(self, settings, feature_dims, vocabulary_size):
        super().__init__()
        self.see = torch.nn.Linear(feature_dims, settings.hidden)
        self.words = torch.nn.Embedding(vocabulary_size, settings.hidden)
        self.cell = torch.nn.GRUCell(2 * settings.hidden, settings.hidden)
        self.output = torch.nn.Linear(settings.hidden, vocabulary_size)

    def encode(self, picked):
        return {"frames": self.see(picked.features.float()), "mask": picked.mask}

    def start(self, memory):
        return {"state": torch.zeros_like(memory["frames"][:, 0])}

    def step(self, word, state, memory):
        scores = (memory["frames"] @ state["state"][..., None])[..., 0].masked_fill(
            ~memory["mask"], -torch.inf
        )
        seen = (scores.softmax(1)[..., None] * memory["frames"]).sum(1)
        state = self.cell(torch.cat([self.words(word), seen], 1), state["state"])
        return {"state": state}, self.output(state)


@pytest.mark.parametrize("name", ["paper", "attentive"])
def test_every_way_to_make_words_agrees_for_every_captioner(name, monkeypatch):
    monkeypatch.setitem(CAPTIONERS, "attentive", Attentive)
    torch.manual_seed(0)
    captioner = make_captioner(
        preset("smoke", architecture=name, dropout=0.0).captioner, 12, 30
    ).eval()
    features, picks, words = some_clips()
    memory = captioner.encode(pick_frames(features, picks))
    logits = teach(captioner, memory, words)
    assert_close(logits, teach_by_step(captioner, memory, words))
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
    twice = greedy(captioner, repeated(memory, 2), 9)
    assert torch.equal(twice[::2], said) and torch.equal(twice[1::2], said)
    assert (
        beam(captioner, memory, 4, 9)[1][:, 0]
        .ge(beam(captioner, memory, 1, 9)[1][:, 0] - 1e-5)
        .float()
        .mean()
        > 0.5
    )


@pytest.mark.parametrize("name", ["paper", "attentive"])
def test_growing_memories_are_those_of_fewer_frames(name, monkeypatch):
    monkeypatch.setitem(CAPTIONERS, "attentive", Attentive)
    captioner = make_captioner(preset("smoke", architecture=name).captioner, 12, 30).eval()
    features, picks, _ = some_clips()
    picked = pick_frames(features[1:2], picks[1:2])
    rows = greedy(captioner, growing(captioner, picked), 9)
    for count in range(1, picked.mask.sum() + 1):
        few = picks[1:2] & (picks[1:2].cumsum(1) <= count)
        assert torch.equal(
            greedy(captioner, captioner.encode(pick_frames(features[1:2], few)), 9)[0],
            rows[count - 1],
        )


def test_feedback_feeds_the_models_own_words_step_by_step():
    """Scheduled sampling must do something: with a feedback of one, the true words are never fed
    after the first step."""
    torch.manual_seed(0)
    captioner = Attentive(preset("smoke").captioner, 12, 30)
    features, picks, words = some_clips()
    memory = captioner.encode(pick_frames(features, picks))
    other = words.flip(0)
    same = [teach(captioner, memory, each, 0.0)[:, 1:] for each in (words, other)]
    torch.manual_seed(1)
    own = teach(captioner, memory, words, 1.0)
    torch.manual_seed(1)
    assert torch.equal(own, teach(captioner, memory, other, 1.0)) and not torch.equal(*same)


@pytest.mark.parametrize("size", [1, 4])
def test_no_pair_of_words_is_said_twice_where_that_is_asked_for(size):
    torch.manual_seed(2)
    captioner, memory = speaker(9, 8), Seen(3 * torch.randn(60, 8))
    plain, fresh = (
        beam(captioner, memory, size, 14, no_repeats=asked)[0][:, 0] for asked in (False, True)
    )
    pairs = lambda caption: [
        pair for pair in zip(caption.tolist(), caption.tolist()[1:]) if PAD not in pair
    ]
    twice = lambda captions: sum(len(pairs(each)) != len(set(pairs(each))) for each in captions)
    assert twice(plain) > 0 and twice(fresh) == 0
    if size == 1:
        assert torch.equal(fresh, greedy(captioner, memory, 14, no_repeats=True))
    same = [not pairs(each) or len(pairs(each)) == len(set(pairs(each))) for each in plain]
    # who repeats nothing says the same as before
    if size == 1:
        assert torch.equal(plain[torch.tensor(same)], fresh[torch.tensor(same)])


def test_the_scores_of_a_beam_are_those_of_its_words():
    "Whoever continues a caption goes on from that caption's own state."
    torch.manual_seed(0)
    captioner, memory = speaker(14, 8), Seen(3 * torch.randn(20, 8))
    words, scores = beam(captioner, memory, 4, 9, length_penalty=0.0, best=4)
    for place in range(4):
        said = words[:, place]
        told = (
            teach(captioner, memory, said)
            .index_fill(-1, torch.tensor(NEVER), -torch.inf)
            .log_softmax(-1)
        )
        assert_close(
            scores[:, place], told.gather(-1, said[..., None])[..., 0].where(said != PAD, 0).sum(1)
        )


class Windowed(Captioner):
    "Means of windows of frames, said by a GRU; how long a window is, is a setting of its own."
    settings = {"window": setting(4, "ours: frames in a window", low=2, high=30),
                "sharpness": setting(1.0, "ours: factor of the logits", above=0)}

    def __init__(self, settings, feature_dims, vocabulary_size):
        super().__init__()
        self.window, self.sharpness = settings.window, settings.sharpness
        self.see = torch.nn.Linear(self.window * feature_dims, settings.hidden)
        self.words = torch.nn.Embedding(vocabulary_size, settings.hidden)
        self.cell = torch.nn.GRUCell(settings.hidden, settings.hidden)
        self.output = torch.nn.Linear(settings.hidden, vocabulary_size)

    def encode(self, picked):
        features = picked.features.float()
        rest = -features.shape[1] % self.window
        windows = torch.nn.functional.pad(features, (0, 0, 0, rest)).unfold(
            1, self.window, self.window
        )
        return self.see(windows.flatten(2)).mean(1)

    def start(self, memory): return memory

    def step(self, word, state, memory):
        state = self.cell(self.words(word), state)
        return state, self.sharpness * self.output(state)


def test_what_a_captioner_leaves_out_has_a_default(monkeypatch):
    monkeypatch.setitem(CAPTIONERS, "windowed", Windowed)
    monkeypatch.setitem(CAPTIONERS, "attentive", Attentive)
    features, picks, words = some_clips()
    for name in ("windowed", "attentive"):  # one that inherits from `Captioner`, one that does not
        config = preset("smoke", architecture=name)
        captioner = make_captioner(config.captioner, 12, 30).eval()
        assert type(captioner) is CAPTIONERS[name]
        memory = captioner.encode(pick_frames(features, picks))
        assert captioner.ready(memory) is memory and captioner.grow is None
        assert captioner.draws(2, 3) is None and captioner.extra_loss(memory, words) is None
        assert_close(captioner.teach(memory, words), teach_by_step(captioner, memory, words))
        found, scores = beam(captioner, memory, 3, 6, best=3)
        assert torch.equal(captioner.rescore(memory, found, scores), scores)


@pytest.mark.parametrize("base", [torch.nn.Module, Captioner])
@pytest.mark.parametrize("missing", ["encode", "start", "step"])
def test_a_captioner_without_one_of_its_three_methods_is_an_error_when_it_is_made(
    base, missing, monkeypatch
):
    methods = {name: lambda self, *_: None for name in ("encode", "start", "step")
               if name != missing}
    kind = type("Half", (base,), methods | {"__init__": lambda self, *_: base.__init__(self)})
    monkeypatch.setitem(CAPTIONERS, "half", kind)
    with pytest.raises(PickNetError, match=f"the captioner 'half' has no `{missing}`: it needs"):
        make_captioner(preset("smoke", architecture="half").captioner, 12, 30)


def test_a_setting_of_a_captioner_s_own_is_set_checked_stored_and_read(monkeypatch, tmp_path):
    monkeypatch.setitem(CAPTIONERS, "windowed", Windowed)
    config = preset("smoke", architecture="windowed", window=6, hidden=32)
    assert config.captioner.window == 6 and config.captioner.sharpness == 1.0
    assert config.flat()["window"] == 6 and "window=6" in repr(config)
    captioner = make_captioner(config.captioner, 12, 30)
    assert captioner.see.in_features == 6 * 12  # a setting that is accepted has an effect
    path = save_config(config, tmp_path/"config.json")
    assert json.loads(path.read_text())["captioner"]["window"] == 6
    assert load_config(path) == config == settings_from(config.flat())
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    assert config.changed(dropout=0.2).captioner.window == 6
    assert config.changed(window=8).captioner.window == 8
    for changes, said in (({"window": 1}, "window must be 2 or more"),
                          ({"window": 2.5}, "window must be int"),
                          ({"sharpness": 0.0}, "sharpness must be more than 0"),
                          ({"windoww": 3}, "no such setting: 'windoww'; did you mean window")):
        with pytest.raises(ConfigError, match=said):
            config.changed(**changes)


def test_a_setting_of_one_captioner_is_unknown_to_another(monkeypatch, tmp_path):
    monkeypatch.setitem(CAPTIONERS, "windowed", Windowed)
    config = preset("smoke", architecture="windowed", window=6)
    assert config.changed(architecture="paper") == preset("smoke")
    for attempt in (lambda: preset("smoke", window=4),
                    lambda: config.changed(architecture="paper", window=4),
                    lambda: settings_from({"window": 4})):
        with pytest.raises(ConfigError, match="no such setting: .?window"):
            attempt()
    # a file from before the captioner had this setting gets the default
    old = preset("smoke", architecture="windowed").flat()
    del old["window"]
    assert settings_from(old).captioner.window == 4
    path = save_config(config, tmp_path/"config.json")
    monkeypatch.delitem(CAPTIONERS, "windowed")
    with pytest.raises(FileError, match="config.json: no captioner 'windowed'.*--use MODULE"):
        load_config(path)


def test_a_captioner_cannot_declare_a_setting_that_there_is(monkeypatch):
    monkeypatch.setattr(Windowed, "settings", {"hidden": setting(3, "ours: another size")})
    monkeypatch.setitem(CAPTIONERS, "windowed", Windowed)
    with pytest.raises(ConfigError, match="a captioner cannot declare hidden"):
        preset("smoke", architecture="windowed")


def test_a_setting_of_a_captioner_s_own_reaches_a_run_and_comes_back_from_it(
    monkeypatch, tmp_path, corpus
):
    monkeypatch.setitem(CAPTIONERS, "windowed", Windowed)
    typed = settings_of(["window=6", "sharpness=2", "architecture=windowed"])
    assert typed == {"window": 6, "sharpness": 2.0, "architecture": "windowed"}
    brief = preset("smoke", supervision_epochs=1)
    config, recipe = check_changes(brief, typed), Recipe("all", adapted=False)
    with pytest.raises(ConfigError, match="no such setting: 'window'"):
        check_changes(brief, {"window": 6})
    train(tmp_path, corpus, config, recipe, bars=False)
    model, stored, _, about = load_run(tmp_path)
    assert model.captioner.window == stored.captioner.window == about["settings"]["window"] == 6
    with pytest.raises(RunError, match="holds another run: window 6 .now 4."):
        train(tmp_path, corpus, config.changed(window=4), recipe, bars=False)
    with pytest.raises(ConfigError, match="no such setting: 'widow'; did you mean window"):
        settings_of(["widow=6"])
    with pytest.raises(ConfigError, match="window must be a whole number, not 'six'"):
        settings_of(["window=six"])
