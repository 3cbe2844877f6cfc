"Reads everything from settings.ini, so that a version or a dependency is written in one place."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


class Build(build_py):
    "Leave out the index of notebooks, which nbdev alone reads: a quarter of the Python."

    def find_package_modules(self, package, folder):
        found = super().find_package_modules(package, folder)
        return [each for each in found if each[1] != "_modidx"]


parser = ConfigParser(delimiters=["="])
parser.read("settings.ini", encoding="utf-8")
settings = parser["DEFAULT"]

extras = {
    key.removesuffix("_requirements"): settings[key].split()
    for key in settings
    if key.endswith("_requirements")
}
with_dev = "video", "metrics", "cnn", "clip", "notebook", "ray"
extras["dev"] += [each for name in with_dev for each in extras[name]]

setup(
    version=settings["version"],
    description=settings["description"],
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=settings["author"],
    author_email=settings["author_email"],
    project_urls={
        "Source": settings["git_url"],
        "Documentation": settings["doc_host"] + settings["doc_baseurl"],
    },
    keywords=settings["keywords"].split(),
    packages=find_packages(include=["picknet_nb", "picknet_nb.*"]),
    package_data={"picknet_nb": ["paper.json", "py.typed", "bundled/*/*"]},
    include_package_data=False,  # models are data, not a package
    cmdclass={"build_py": Build},
    install_requires=settings["requirements"].split(),
    extras_require=extras,
    entry_points={"console_scripts": settings["console_scripts"].split()},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
    ],
)
