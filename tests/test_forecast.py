"The forecast times what training trains: the same stages, with the same frames."
import pytest
import torch

from picknet_nb.core.settings import preset
from picknet_nb.world.shapes import example_corpus
from picknet_nb.method.captioner import PaperCaptioner
from picknet_nb.method.recipes import recipes
from picknet_nb.training.forecast import foresee_training
from picknet_nb.training.train import train


@pytest.fixture
def read(monkeypatch) -> list[list[int]]:
    "How many frames of each clip the captioner read, for each batch that it was trained on."
    batches, encode = [], PaperCaptioner.encode

    def counted(self, picked, *others):
        if self.training and torch.is_grad_enabled():
            batches.append(picked.mask.sum(1).tolist())
        return encode(self, picked, *others)

    monkeypatch.setattr(PaperCaptioner, "encode", counted)
    return batches


def test_a_fixed_picker_is_timed_on_its_own_frames(read):
    recipe = recipes(4)["Uniform"]
    foresee_training(example_corpus(videos=48), preset("smoke"), recipe, begun=True)
    assert {count for batch in read for count in batch} == {4}


def test_varied_picks_are_timed_on_varied_numbers_of_frames(read):
    config = preset("smoke", varied_picks=True)
    foresee_training(example_corpus(videos=48), config, recipes()["Baseline"])
    counts = [count for batch in read for count in batch]
    assert 1 < sum(counts) / len(counts) < 20 and len(set(counts)) > 3


@pytest.mark.parametrize("row", ["Baseline", "Uniform", "PickNet (V+L)"])
def test_the_stages_that_are_timed_are_those_that_are_trained(row, tmp_path):
    corpus, config = example_corpus(videos=48), preset("smoke", word_epochs=1)
    foreseen = foresee_training(corpus, config, recipes()[row])
    train(tmp_path/"run", corpus, config, recipes()[row], bars=False)
    trained = {path.stem for path in (tmp_path/"run").glob("*.safetensors")} - {"weights"}
    assert foreseen.keys() == trained and all(seconds > 0 for seconds in foreseen.values())
