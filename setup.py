"""Drives the CMake build for setuptools; all else about the package is in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


def find_tool(name: str) -> str:
    """Path of a build tool; a virtual environment's own comes before the system's."""
    folders = os.environ.get("PATH", os.defpath)
    if sys.prefix != sys.base_prefix:
        folders = os.pathsep.join([str(Path(sys.executable).parent), folders])
    found = shutil.which(name, path=folders)
    if found is None:
        raise RuntimeError(f"{name} is needed to build symmoe._core: pip install {name}")
    return found


def run_quietly(command: list[str]) -> None:
    """Runs a command and shows what it printed only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise RuntimeError(f"{shlex.join(command)} failed with {done.returncode}")


class CMakeBuild(build_ext):
    """Builds symmoe._core with CMake and Ninja, in a folder that stays: a second build is short."""

    def build_extension(self, ext: Extension) -> None:
        """Configures, builds and puts the module where setuptools expects it.

        CMAKE_ARGS of the environment is added to the configure command.
        """
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        # Apart from each other: an isolated build has a pybind11 of its own and rebuilds it all.
        isolated = not Path(pybind11.__file__).is_relative_to(sys.prefix)
        build = ROOT / "build" / f"{'isolated-' * isolated}{sys.implementation.cache_tag}"
        cmake = find_tool("cmake")
        configure = [cmake, "--log-level=NOTICE", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
        configure += [
            f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
        ]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        run_quietly(configure)
        subprocess.run([cmake, "--build", str(build)], check=True)
        install = [cmake, "--install", str(build), "--prefix", str(target)]
        run_quietly([*install, "--component", "python"])

    def copy_extensions_to_source(self) -> None:
        """Copies the module into the source tree, with the libraries that it opens at run time."""
        super().copy_extensions_to_source()
        built = Path(self.build_lib) / "symmoe"
        package = ROOT / "python" / "symmoe"
        libraries = {path.name: path for path in built.glob("libsymmoe_*.so")}
        for old in package.glob("libsymmoe_*.so"):
            if old.name not in libraries:  # of a build with other options
                old.unlink()
        for name, path in libraries.items():
            shutil.copy2(path, package / name)


setup(ext_modules=[Extension("symmoe._core", sources=[])], cmdclass={"build_ext": CMakeBuild})
