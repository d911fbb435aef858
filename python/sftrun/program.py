"""Where the program is, and the environment that it is started in."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys

from sftrun.errors import Problem, SftrunError

# Packages whose libraries the program loads: the variable that says where, and a file by which the folder is known.
LIBRARIES = {"torch": ("SFTRUN_TORCH_ROOT", "lib/libtorch_cpu.so"), "pyarrow": ("SFTRUN_ARROW_ROOT", "libarrow.so*")}


def find_program() -> str:
    """The path of the program: the variable SFTRUN, else `bin/sftrun` beside this module, else `sftrun` on PATH.

    @throws SftrunError if there is none
    """
    named = os.environ.get("SFTRUN")
    if named:
        path = shutil.which(named)
        if path is None or _is_this_script(path):
            raise SftrunError(2, [Problem(f"no such program: {named}", "SFTRUN in the environment", "set SFTRUN to the path of the program, or unset it")])
        return os.path.abspath(path)
    packaged = _packaged()
    if os.access(packaged, os.X_OK):
        return str(packaged)
    on_path = shutil.which("sftrun")
    if on_path is None or _is_this_script(on_path):
        raise SftrunError(2, [Problem("the program sftrun was not found", f"{packaged.parent} and PATH", "install sftrun's wheel, or set SFTRUN to the path of the program")])
    return os.path.abspath(on_path)


def _packaged() -> pathlib.Path:
    """The program of the wheel."""
    return pathlib.Path(__file__).resolve().parent / "bin" / "sftrun"


def _is_this_script(path: str) -> bool:
    """Whether the path is the script that runs now, which would start itself without end: the wheel's own command is a script."""
    return bool(sys.argv and sys.argv[0]) and os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0])


def program_environment(program: str, has_settings: bool = True) -> dict[str, str]:
    """The environment of this process. For the wheel's program also the folders of LibTorch and Arrow, where Python has them and no variable names them; another
    program was built with a LibTorch, and does not run with one of another version. Nothing is imported.

    @param has_settings  false: without variables of settings (SFTRUN_TRAIN__EPOCHS)
    """
    environment = {name: value for name, value in os.environ.items() if has_settings or not (name.startswith("SFTRUN_") and "__" in name)}
    for package, (variable, file) in LIBRARIES.items():
        if program == str(_packaged()) and not environment.get(variable):
            folder = _folder_of(package)
            if folder and any(folder.glob(file)):
                environment[variable] = str(folder)
    return environment


def _folder_of(package: str) -> pathlib.Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that was made without a specification
        return None
    folders = list(spec.submodule_search_locations or []) if spec else []
    return pathlib.Path(folders[0]) if folders else None
