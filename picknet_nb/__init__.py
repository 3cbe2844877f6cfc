__version__ = "0.2.0"
_HOMES = {  # where each public name is defined; it is imported when it is first asked for
    "interface.python": (
        "caption", "caption_many", "load", "prepare", "train", "evaluate", "reproduce"),
    "method.captioner": ("CAPTIONERS", "Captioner"),
    "method.pickers": ("PICKERS",),
    "method.rewards": ("REWARDS", "reward_from"),
    "method.recipes": ("ROWS", "Recipe"),
    "data.backbones": ("BACKBONES", "Backbone"),
    "data.datasets": ("DATASETS",),
    "core.settings": ("setting",),
    "core.files": ("PickNetError",),
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str):
    "Import a public function or registry, or a subpackage, when it is first asked for."
    from importlib import import_module
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    if name in {home.partition(".")[0] for home in _HOMES}:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
