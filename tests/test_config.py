"Settings and files: what is refused, what older files may hold, what a lock says and does."
import errno
import importlib
import os
import subprocess
import sys
from dataclasses import asdict, fields
from functools import partial

import pytest

from picknet_nb.core.files import FileError, PickNetError, first_few, locked
from picknet_nb.core.registry import Registry
from picknet_nb.core.settings import (
    Config, ConfigError, group_of, load_config, preset, save_config, settings_from)
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS, make_picker


@pytest.mark.parametrize("changes, said", [
    ({"supervision_rate": -1.0}, "supervision_rate must be more than 0"),
    ({"weight_decay": -1e-4}, "weight_decay must be 0 or more"),
    ({"consensus": -1.0}, "consensus must be 0 or more"),
    ({"mention_weight": -1.0}, "mention_weight must be 0 or more"),
    ({"dropout": 1.0}, "dropout must be less than 1"),
    ({"frames": 2}, "min_picks must not exceed frames: 3 of 2"),
    ({"clock": 1}, "clock must be bool"),
])
def test_settings_that_cannot_work_are_refused_by_name(changes, said):
    with pytest.raises(ConfigError, match=said):
        preset("paper", **changes)


def test_a_setting_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ConfigError, match="no such setting: bean"):
        settings_from({"bean": 5})


@pytest.mark.parametrize("name", ["paper", "improved", "small", "smoke"])
def test_settings_survive_a_file_with_groups_and_one_without(name, tmp_path):
    config = preset(name, seed=3)
    assert load_config(save_config(config, tmp_path/"config.json")) == config
    assert settings_from(asdict(config)) == settings_from(config.flat()) == config


def test_every_setting_is_in_one_group_and_can_be_changed_by_its_name():
    config = Config()
    for group in fields(config):
        for setting in fields(getattr(config, group.name)):
            assert group_of(setting.name) == group.name
            assert (
                config.changed(**{setting.name: getattr(getattr(config, group.name), setting.name)})
                == config
            )
    with pytest.raises(ConfigError, match="no such setting: 'hiden'; did you mean hidden"):
        config.changed(hiden=3)


def test_the_preset_of_the_paper_has_the_numbers_that_the_paper_prints():
    paper = preset("paper").flat()
    printed = {
        "frames": 30,
        "glance_size": 56,
        "feature_embedding": 512,
        "word_embedding": 512,
        "hidden": 1024,
        "policy_hidden": 1024,
        "dropout": 0.5,
        "min_word_count": 3,
        "batch_size": 128,
        "supervision_rate": 3e-4,
        "reinforcement_rate": 3e-4,
        "adaptation_rate": 1e-4,
        "supervision_epochs": 100,
        "reinforcement_epochs": 100,
        "adaptation_epochs": 100,
        "min_picks": 3,
        "final_max_picks": 7,
        "penalty": -1.0,
    }
    assert {name: paper[name] for name in printed} == printed


def test_the_preset_of_a_compared_captioner_is_found_where_captioners_are():
    code = """
import sys
from picknet_nb.core.settings import ConfigError, preset, settings_from
try: preset("ta")
except ConfigError as error: print(error)
assert "torch" not in sys.modules  # settings stand on nothing
import picknet_nb.method.captioner
assert "picknet_nb.systems" not in sys.modules  # until one of them is missing
print(preset("ta").captioner.architecture)
print(settings_from({"architecture": "hrne", "window": 3}).captioner.window)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *others = done.stdout.splitlines()
    assert "no preset 'ta'" in first and "import picknet_nb.systems" in first
    assert others == ["ta", "3"]
    assert "ruc-uva" in CAPTIONERS
    with pytest.raises(ConfigError, match="no preset 'tb': choose one of .*improved.*, ruc-uva"):
        preset("tb")


def test_registries_name_what_there_is():
    things = Registry("thing")
    things.add("ball", round=True)(thing := lambda: 1)
    assert things.find("ball") is thing and things.facts("ball") == {"round": True}
    with pytest.raises(PickNetError, match="no thing 'bal': did you mean ball"):
        things.find("bal")


def test_the_homes_of_members_are_imported_one_by_one_and_only_when_they_are_missed(
        tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path/"shop.py").write_text(
        "from picknet_nb.core.registry import Registry\n"
        "THINGS = Registry('thing', homes=('ball_home', 'egg_home', 'broken_home'))\n"
        "THINGS.add('own')(lambda: 0)\n")
    for name in ("ball", "egg"):  # a home builds on the module of the registry
        (tmp_path/f"{name}_home.py").write_text(
            f"from shop import THINGS\n@THINGS.add('{name}')\ndef make(): return '{name}'\n")
    (tmp_path/"broken_home.py").write_text("raise ImportError('something is missing')\n")
    things = importlib.import_module("shop").THINGS
    try:
        assert things.find("own")() == 0 and "ball_home" not in sys.modules
        assert things["ball"]() == "ball" and "egg_home" not in sys.modules
        assert "egg" in things and things.find("egg")() == "egg"
        for ask in (lambda: things.find("cup"), lambda: list(things), lambda: len(things)):
            with pytest.raises(ImportError, match="something is missing"):
                ask()  # each time: a home that cannot be imported is not forgotten
        (tmp_path/"broken_home.py").write_text("")
        importlib.invalidate_caches()
        assert sorted(things) == ["ball", "egg", "own"] and len(things) == 3
        with pytest.raises(KeyError):
            things["cup"]
    finally:
        for name in ("shop", "ball_home", "egg_home", "broken_home"):
            sys.modules.pop(name, None)


def test_one_function_under_two_names_keeps_the_facts_of_both():
    make_picker_of = lambda: lambda clips: clips.glances[..., 0] > 0
    PICKERS.add("bright, watched", looks_at="glances", random=False)(make_picker_of)
    PICKERS.add("bright, guessed", looks_at="features", random=True)(make_picker_of)
    try:
        watched, guessed = make_picker("bright, watched"), make_picker("bright, guessed")
    finally:
        del PICKERS["bright, watched"], PICKERS["bright, guessed"]
    assert (watched.looks_at, watched.random) == ("glances", False)
    assert (guessed.looks_at, guessed.random) == ("features", True)


def test_facts_belong_to_the_thing_that_was_registered_with_them():
    things = Registry("thing")
    things.add("ball", round=True)(lambda: 1)
    kept = dict(things)
    things["ball"] = lambda: 2  # another thing, of which nothing is known
    assert things.facts("ball") == {}
    things.clear(), things.update(kept)
    assert things.facts("ball") == {"round": True}
    with pytest.raises(PickNetError, match="no thing 'bal'"):
        things.facts("bal")


def test_a_name_that_is_taken_is_given_away_with_a_warning_that_names_both():
    things = Registry("thing")

    def ball(): return 1

    def egg(): return 2

    things.add("ball", round=True)(ball)
    with pytest.warns(UserWarning, match="the thing 'ball' was .*[.]ball and is now .*[.]egg"):
        things.add("ball", round=False)(egg)
    assert things.find("ball") is egg and things.facts("ball") == {"round": False}


def test_a_cell_that_is_run_again_registers_without_a_warning(recwarn):
    things, cell = Registry("thing"), "def ball(size=1):\n    'A ball.'\n    return size\n"
    for module in ("mine", "mine", "__main__", "mine"):  # and a notebook beside its module
        exec(cell, space := {"__name__": module})
        things.add("ball", round=True)(space["ball"])
        things.add("small ball")(partial(space["ball"], 0.1))
    # the notebook goes on with what it has defined, although its module was imported afterwards
    assert not recwarn.list and things.find("ball").__module__ == "__main__"


def test_a_few_names_and_how_many_more():
    assert (
        first_few([]) == ""
        and first_few("abc") == "a, b, c"
        and first_few("abcde", 2) == "a, b and 3 more"
    )


HOLD = ("import sys, time; from picknet_nb.core.files import locked\nwith locked(sys.argv[1]): "
        "print('held', flush=True); time.sleep(60)")


def test_a_lock_names_its_holder_and_opens_when_it_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline().strip() == "held"
    with pytest.raises(FileError, match=f"in use by process {holder.pid} on "):
        with locked(tmp_path):
            pass
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        pass


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links on this system")
def test_a_lock_writes_nothing_through_a_link(tmp_path):
    (tmp_path/"precious.txt").write_text("mine")
    (tmp_path/"out").mkdir()
    for name in (".lock", ".locked_by"):
        (tmp_path/"out"/name).symlink_to(tmp_path/"precious.txt")
    try:
        with locked(tmp_path/"out"): pass
    except FileError:
        pass  # refusing such a folder is fine, writing through the link is not
    assert (tmp_path/"precious.txt").read_text() == "mine"


def test_a_file_system_without_locks_is_not_called_busy(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl", reason="no such locks on this system")

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FileError, match="cannot be locked: Operation not supported"):
        with locked(tmp_path): pass
