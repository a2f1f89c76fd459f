"""symwin.lab, and the notebooks."""

import json
import shutil
from pathlib import Path

import pytest

import symwin
from symwin import lab

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "python" / "notebooks").glob("*.ipynb"))
SMALL = ("-b", "1K", "-e", "1K", "-d", "f32", "-n", "2", "-G", "2")

needs_compiler = pytest.mark.skipif(
    symwin.is_emulated() and not shutil.which("g++"), reason="there is no g++"
)


def test_bench():
    result = lab.bench("-t", 2, "--collective", "broadcast", *SMALL)
    assert result.ok and not result.lines and "Wrong elements: 0 OK" in result.output
    assert {(row["collective"], row["bytes"], row["wrong"]) for row in result.rows} == {
        ("broadcast", 1024, 0)
    }
    assert result.about["ranks"] == 2 and "results" not in result.about
    assert result.picture.startswith("<svg") and result._repr_html_() == result.picture


def test_bench_has_a_table_where_there_is_no_picture():
    result = lab.bench("-t", 2, "--collective", "barrier", "-n", "2", "-G", "2")
    assert result.ok and result.rows
    assert (result.picture or "").startswith("<svg") or "<td>barrier</td>" in result._repr_html_()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--collective", "prefix"), "unknown name"),
        (("--csv", "file"), "--csv is not for bench"),
        (("--json=file",), "--json=file is not for bench"),
        (("--race",), "python -m symwin bench --race"),
        (("-t", "0"), "-t"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(symwin.SymwinInvalid, match=words):
        lab.bench(*arguments)


@needs_compiler
def test_kernel_that_does_not_compile(tmp_path):
    kernel = """#include "symwin/kernel.cuh"
SYMWIN_KERNEL_ABOUT(pull, "types=f32")
extern "C" __global__ void pull(const struct symwin_kernel_args args) { int x = ; }
"""
    with pytest.raises(symwin.SymwinInvalid, match="(?s)error: .*does not compile for"):
        lab.run(kernel, ranks=2)
    own = tmp_path / "kernel.cu"
    own.write_text("not a kernel\n")
    with pytest.raises(symwin.SymwinInvalid, match="no __global__ function"):
        lab.run(own, ranks=2)
    own.write_bytes(kernel.replace("x = ;", "\xe9 = ;").encode("latin-1"))
    with pytest.raises(symwin.SymwinInvalid, match="(?s)error: .*does not compile for"):
        lab.run(own, ranks=2)  # which the compiler repeats


def test_no_such_kernel(tmp_path):
    with pytest.raises(symwin.SymwinInvalid, match="none.cu"):
        lab.run(tmp_path / "none.cu", ranks=2)


@needs_compiler
def test_kernel_that_is_wrong():
    kernel = f"{ROOT}/tests/own/collectives.cu:broadcast"
    result = lab.run(kernel, ranks=2, compile="-DBUG", seconds=1, arguments=SMALL)
    assert not result.ok and result.wrong
    assert all(line.where.startswith("emulated driver") for line in result.wrong)
    assert "wrong" in repr(result) or result.wrong[0].text in repr(result)
    assert "<pre>" in result._repr_html_()


@needs_compiler
def test_kernel_that_is_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = f"{ROOT}/tests/own/collectives.cu:broadcast"
    result = lab.run(kernel, ranks=2, seconds=1, arguments=SMALL)
    assert result.ok and not result.wrong, result.output
    assert any("bursts" in line.text for line in result.lines)  # the hunt
    assert {row["algo"] for row in result.rows} > {"broadcast"}
    assert not list(tmp_path.iterdir())  # nothing is left in the current folder


@needs_compiler
def test_barrier_has_no_picture():
    kernel = f"{ROOT}/tests/own/collectives.cu:wait_for_all"
    result = lab.run(kernel, ranks=2, arguments=("-n", "2", "-G", "2"))
    assert result.ok and result.rows and not result.wrong, result.output


@needs_compiler
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook(path):
    space = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), space)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 3
