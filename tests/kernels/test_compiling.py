"""What compiling ahead does to extension modules that several threads load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

compiling = pytest.importorskip("frizzen.kernels.triton.compiling")

SOURCE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) {{ return PyLong_FromLong({answer}); }}
static PyMethodDef methods[] = {{{{"answer", answer, METH_NOARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_launcher(void) {{ return PyModule_Create(&definition); }}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_a_launcher_that_is_loaded_again_does_not_take_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    driver = compiling.driver
    original = driver.compile_module_from_src
    with compiling.distinct_launchers():
        load = driver.compile_module_from_src
        first, second = (load(src=SOURCE.format(answer=answer), name="launcher") for answer in (1, 2))
        # Two kernels of one signature have one launcher.
        again = load(src=SOURCE.format(answer=1), name="launcher")
    assert (first.answer(), second.answer(), again.answer()) == (1, 2, 1)
    assert driver.compile_module_from_src is original
