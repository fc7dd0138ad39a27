"""Libraries of C++ classes and operators: built with CMake, loaded, and run without Python.

::

    project.py      what decides what a build makes: sources, compiler, torch, options
    toolchain.py    cmake, ninja and the compiler: which ones, and what they complain about
    artifacts.py    what CMake has made
    inputs.py       what a build has read from beyond its project
    entries.py      an entry of the cache, and whether it is whole
    building.py     a CMake project to libraries and programs, in a cache
    probe.py        whether a library can be loaded, tried in a process of its own
    loading.py      the classes and operators of a library, and who registered a name before
    saving.py       TorchScript files whose C++ state comes back
    infer.py        a saved model in a C++ process
"""

from stateful_pipeline.libraries.building import BuiltLibrary, build, default_cache
from stateful_pipeline.libraries.infer import (
    Inference,
    infer_program,
    missing_tools,
    run_infer,
    run_text,
)
from stateful_pipeline.libraries.loading import LoadedLibrary, load, registered_classes
from stateful_pipeline.libraries.saving import save

__all__ = [
    "BuiltLibrary",
    "Inference",
    "LoadedLibrary",
    "build",
    "default_cache",
    "infer_program",
    "load",
    "missing_tools",
    "registered_classes",
    "run_infer",
    "run_text",
    "save",
]
