"""What roundoff can do only with help from outside, and what to install for it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that works once its packages can be imported and its programs are on the path."""

    name: str
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    fix: str

    def missing(self) -> tuple[str, ...]:
        """Name what is not installed; nothing is imported to find out."""
        packages = [name for name in self.packages if importlib.util.find_spec(name) is None]
        programs = [name for name in self.programs if shutil.which(name) is None]
        return (*packages, *programs)


FEATURES = (
    Feature(name="checkpoints of Keras", packages=("h5py",), fix="pip install 'roundoff[checkpoints]'"),
    Feature(name="experiments on a Ray cluster", packages=("ray",), fix="pip install 'roundoff[cluster]'"),
    Feature(name="Hugging Face models", packages=("transformers",), fix="pip install 'roundoff[hf]'"),
    Feature(name="Hugging Face Trainer and Accelerate", packages=("accelerate",), fix="pip install 'roundoff[hf]'"),
    Feature(name="Lightning", packages=("lightning",), fix="pip install 'roundoff[lightning]'"),
    Feature(name="pictures from a folder", packages=("PIL",), fix="pip install 'roundoff[images]'"),
    Feature(name="the documentation as pages", packages=("mkdocs", "material"), fix="pip install 'roundoff[docs]'"),
    Feature(name="runs live in a browser", packages=("starlette", "uvicorn"), fix="pip install 'roundoff[serve]'"),
    Feature(name="TensorBoard logs", packages=("tensorboard",), fix="pip install 'roundoff[tensorboard]'"),
    Feature(name="native stacks of a crash or hang", programs=("gdb",), fix="apt install gdb"),
    Feature(name="memory checks of the compiled kernels", programs=("valgrind",), fix="apt install valgrind"),
)
"""One line for each; none of them is needed to record, read or compare."""
