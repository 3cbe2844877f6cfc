"Settings: what is refused, what older files may hold, what a lock says."
import errno
import json

import pytest

from picknet_nb.config import Config, ConfigError, FileError, load_config, locked, preset, save_config, settings_from


@pytest.mark.parametrize("changes, said", [
    ({"supervision_rate": -1.0}, "supervision_rate must be more than 0"),
    ({"gradient_clip": 0.0}, "gradient_clip must be more than 0"),
    ({"weight_decay": -1e-4}, "weight_decay must be 0 or more"),
    ({"consensus": -1.0}, "consensus must be 0 or more"),
    ({"mention_weight": -1.0}, "mention_weight must be 0 or more"),
    ({"dropout": 1.0}, "dropout must be less than 1"),
    ({"frames": 2}, "min_picks must not exceed frames: 3 of 2"),
    ({"clock": 1}, "clock must be bool"),
])
def test_settings_that_cannot_work_are_refused_by_name(changes, said):
    with pytest.raises(ConfigError, match=said):
        preset("full", **changes)


def test_settings_that_nobody_reads_any_more_are_passed_over_in_older_files(tmp_path):
    path = save_config(preset("smoke"), tmp_path/"config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_size": 96, "beam": 5}))
    assert load_config(path) == preset("smoke")
    assert settings_from({"hidden": 7, "beam": 1}) == Config(hidden=7)
    with pytest.raises(ConfigError, match="no such setting: bean"):
        settings_from({"bean": 5})


def test_a_file_system_without_locks_is_not_called_busy(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl", reason="no such locks on this system")

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FileError, match="cannot be locked: Operation not supported"):
        with locked(tmp_path): pass
