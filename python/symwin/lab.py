"""symwin-perf's runs as objects: tables, pictures, checks and race reports, inline in notebooks.

    from symwin import lab

    lab.bench("--collective", "allgather", "-t", "4", "-b", "1K", "-e", "64K")
    lab.run("kernel.cu", ranks=2, seconds=10)

Both start symwin-perf, which prints what it always prints (`Result.output`); so the figures are its
figures. docs/symwin-perf.md has its options, docs/your-own-kernel.md the rules of a kernel.
"""

import json
import re
import subprocess
import tempfile
from html import escape
from pathlib import Path
from typing import NamedTuple

from . import _plot
from ._library import program
from .errors import invalid

_LINE = re.compile(r"^(ok|FAILED|FOUND) +(.+?): ((?:.|\n {8})*)$", re.M)


class Line(NamedTuple):
    """A line of a check or of a hunt."""

    right: bool
    where: str  # "emulated driver, 3 ranks"
    text: str  # what was tried, and what came if it was wrong


class Result:
    """What symwin-perf said.

    ok       nothing was wrong, and nothing was found
    lines    of the check of a kernel, and of the hunt for races: a list of Line
    rows     of the table: dicts with collective, bytes, time_us, busbw_gbs and so on
    about    driver, ranks, devices, commit: a dict; {} if nothing was timed
    picture  time and bus bandwidth against size, as SVG; None if nothing was timed
    output   all that was printed
    """

    def __init__(self, ok, output, about, picture):
        self.ok, self.output, self.picture = ok, output, picture
        self.about = {key: value for key, value in about.items() if key != "results"}
        self.rows = about.get("results", [])
        self.lines = [
            Line(state == "ok", where, re.sub(r"\n {8}", " ", text))
            for state, where, text in _LINE.findall(output)
        ]

    @property
    def wrong(self):
        """The lines that say what is wrong."""
        return [line for line in self.lines if not line.right]

    def __repr__(self):
        state = "right" if self.ok else "; ".join(line.text for line in self.wrong) or "wrong"
        return f"<symwin.lab.Result: {len(self.lines)} lines, {len(self.rows)} rows, {state}>"

    def _repr_html_(self):
        parts = [f"<pre>{escape(line.where)}: {escape(line.text)}</pre>" for line in self.wrong]
        if self.lines and not parts:
            parts = [f"<p>{len(self.lines)} checks, all right</p>"]
        return "".join(parts) + (self.picture or _table(self.rows))


def _table(rows):
    names = ("collective", "algo", "type", "bytes", "time_us", "busbw_gbs", "wrong")
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(row.get(name)))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><tr>{head}</tr>{body}</table>" if rows else ""


def _start(arguments):
    """(exit status, what was printed) of symwin-perf."""
    words = [program("symwin-perf"), *(str(word) for word in arguments)]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode == 2:
        raise invalid((done.stdout.strip().splitlines() or ["symwin-perf: wrong arguments"])[-1])
    ended = f"FAILED  symwin-perf: ended by signal {-done.returncode}\n"
    return done.returncode, done.stdout + (ended if done.returncode < 0 else "")


def bench(*arguments):
    """Runs symwin-perf with these options and returns its Result. --csv and --json are its own."""
    for word in arguments:
        if str(word).partition("=")[0] in ("--csv", "--json", "--tune", "--race"):
            raise invalid(f"{word} is not for bench(); start python -m symwin bench {word}")
    with tempfile.TemporaryDirectory() as folder:
        rows, table = Path(folder) / "rows", str(Path(folder) / "table")
        status, output = _start([*arguments, "--json", rows, "--csv", table])
        about = json.loads(rows.read_text()) if rows.exists() and rows.stat().st_size else {}
        result = Result(status == 0, output, about, _drawn(table) if about else None)
        if status != 0 and not result.lines and not result.rows:
            raise invalid(output.strip())  # no such file, or it does not compile
        return result


def _drawn(table):
    """The picture of a table, or None if it has nothing to draw."""
    try:
        return _plot.picture([table], _plot.options_of([table, "--output", ""]))
    except _plot.Bad:
        return None


def run(kernel, ranks=None, *, compile="", seconds=0, arguments=()):
    """Compiles, checks and times your own kernel, and hunts for races in it.

    kernel     a file, or "file.cu:NAME"; or the text of a file, if it has several lines
    ranks      how many; default: symwin-perf's
    compile    words for the compilers
    seconds    of the hunt on each driver; 0: none. Nothing is hunted if the check fails
    arguments  more options of symwin-perf: ("-b", "1K", "-e", "64K", "-d", "f32")
    """
    with tempfile.TemporaryDirectory() as folder:
        if "\n" in str(kernel):
            own = Path(folder) / "kernel.cu"
            own.write_text(kernel)
            kernel = own
        words = ["--kernel", kernel]
        words += ["-t", ranks] if ranks is not None else []
        words += ["--compile", compile] if compile else []
        # symwin-perf draws a kernel's picture too, into the current folder unless it is told where.
        result = bench(*words, "--picture", Path(folder) / "picture.svg", *arguments)
        if seconds and result.ok:
            status, output = _start([*words, "--race", "--seconds", seconds])
            hunted = Result(status == 0, output, {}, None)
            result.ok = hunted.ok
            result.lines += hunted.lines
            result.output += output
        return result
