__version__ = "0.2.0"
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what editors and type checkers read; a test compares it with what follows
    from . import core, data, interface, measure, method, systems, training, use, world
    from .core.files import PickNetError as PickNetError
    from .core.settings import setting as setting
    from .data.annotations import DATASETS as DATASETS
    from .data.backbones import BACKBONES as BACKBONES, Backbone as Backbone
    from .data.corpus import Corpus as Corpus
    from .interface.python import (
        Evaluation as Evaluation, Run as Run, Table as Table, caption as caption,
        caption_many as caption_many, evaluate as evaluate, load as load, prepare as prepare,
        reproduce as reproduce, train as train)
    from .method.captioner import CAPTIONERS as CAPTIONERS, Captioner as Captioner
    from .method.pickers import PICKERS as PICKERS, Clips as Clips
    from .method.recipes import ROWS as ROWS, Recipe as Recipe
    from .method.rewards import REWARDS as REWARDS, reward_from as reward_from
    from .use.captioning import Caption as Caption, VideoCaptioner as VideoCaptioner

_SUBPACKAGES = (
    "core", "data", "world", "method", "systems", "training", "use", "measure", "interface")
_HOMES = {  # where each public name is defined; it is imported when it is first asked for
    "interface.python": (
        "caption", "caption_many", "load", "prepare", "train", "evaluate", "reproduce",
        "Run", "Evaluation", "Table"),
    "method.captioner": ("CAPTIONERS", "Captioner"),
    "method.pickers": ("PICKERS", "Clips"),
    "method.rewards": ("REWARDS", "reward_from"),
    "method.recipes": ("ROWS", "Recipe"),
    "data.backbones": ("BACKBONES", "Backbone"),
    "data.corpus": ("Corpus",),
    "data.annotations": ("DATASETS",),
    "use.captioning": ("Caption", "VideoCaptioner"),
    "core.settings": ("setting",),
    "core.files": ("PickNetError",),
}
__all__ = [name for names in _HOMES.values() for name in names]

if not TYPE_CHECKING:  # or a type checker would believe that there is anything one asks for

    def __getattr__(name: str):
        "Import a public name, or a subpackage, when it is first asked for."
        from importlib import import_module
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f".{home}", __name__), name)
        if name in _SUBPACKAGES:
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
