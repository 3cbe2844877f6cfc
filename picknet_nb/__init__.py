__version__ = "0.2.0"
__all__ = ["caption", "load"]


def __getattr__(name: str):
    "`picknet_nb.caption` and `picknet_nb.load`, imported with torch when they are first asked for."
    if name not in __all__:
        raise AttributeError(f"module 'picknet_nb' has no attribute {name!r}")
    from . import captioning
    return getattr(captioning, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
