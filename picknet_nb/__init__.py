__version__ = "0.2.0"
__all__ = ["caption", "load", "prepare", "train", "reproduce"]


def __getattr__(name: str):
    """The functions of `picknet_nb.api` and every module (`picknet_nb.pickers` …), imported when
    they are first asked for."""
    from importlib import import_module
    if name in __all__:
        return getattr(import_module(".api", __name__), name)
    try:
        if not name.startswith("_"):
            return import_module(f".{name}", __name__)
    except ModuleNotFoundError as reason:
        if reason.name != f"{__name__}.{name}":
            raise  # a module of ours is there, and something that it needs is not
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
