"""Commands of setuptools that put the runner into a wheel.

pyproject.toml names them. They are loaded as a file, without the package. Where there is no C compiler the wheel is for
any platform, and has the sources only.
"""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_FOLDER = Path(__file__).parent
_COMPILER = runpy.run_path(str(_FOLDER / "c_compiler.py"))
#: The wheel's folder of this package.
_PLACE = "cuts/backends/native"


class BuildWithRunner(build_py):  # type: ignore[misc]
    """Copies the package's files, and compiles the runner beside them."""

    def run(self) -> None:
        super().run()
        compiler = _COMPILER["find_c_compiler"]()
        if compiler and not self.editable_mode:
            target, source = Path(self.build_lib, _PLACE, _COMPILER["LIBRARY_NAME"]), _FOLDER / "source"
            options = _COMPILER["LIBRARY_OPTIONS"]
            subprocess.run(
                _COMPILER["compile_command"](compiler, target, sorted(source.glob("*.c")), source, options), check=True
            )


class PlatformWheel(bdist_wheel):  # type: ignore[misc]
    """Names a wheel with the runner after its platform.

    Any Python 3 loads it.
    """

    def finalize_options(self) -> None:
        if _COMPILER["find_c_compiler"]():
            self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)
