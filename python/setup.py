"""What pyproject.toml cannot say: the version, which is symwin.h's, and the wheel's platform. The
wheel has no code of torch's ABI. Of Python's it has only the extension, by the stable ABI, without
which all works as well. So one wheel serves all versions."""

import platform
import re
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent / "symwin"


def version():
    return re.search(r'SYMWIN_VERSION = "(.*)"', (HERE / "_api.py").read_text())[1]


def newest_glibc():
    """The minor number of the newest glibc 2.N that a library or program of the wheel asks for."""
    files = [str(f) for pattern in ("lib/*", "bin/*", "*.so") for f in HERE.glob(pattern)]
    text = subprocess.run(
        ["readelf", "-V", *files], check=True, capture_output=True, text=True
    ).stdout
    return max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", text))


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", f"manylinux_2_{newest_glibc()}_{platform.machine()}"


setup(version=version(), cmdclass={"bdist_wheel": Wheel})
