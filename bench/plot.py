#!/usr/bin/env python3
"""Draws symwin-perf's CSV files: time and bus bandwidth against size, on logarithmic axes.

    bench/plot.py --output picture.svg FILE.csv...

Every library and algorithm is a line. Of symwin's algorithms the fastest at each size is drawn as
"symwin, fastest" and the library's selection as "symwin auto" (one line "symwin" if only one
algorithm was timed); with --all each algorithm is drawn, too. If the files have measurements of the
links (symwin-perf --link), the best one is a horizontal line: the upper limit of the bus bandwidth
of an all-reduce that moves every byte as rarely as possible. With one rank, which has no bandwidth,
only times are drawn. The files may come from several runs, or from rivals/torch_symm.py. They must
have the same type, operation, number of ranks, mode and placement; otherwise --type, --op, --ranks,
--mode, --placement select them.

Needs nothing but Python 3.
"""
import argparse
import csv
import math
import os
import re
import sys
from xml.sax.saxutils import escape

COLOURS = ["#0b6e4f", "#c1272d", "#3b5bdb", "#e67700", "#862e9c", "#087f5b", "#495057", "#a61e4d"]
DASHES = {"symwin": "", "nccl": "6 3", "torch": "2 3"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 560, 420, 70, 70, 90
CHOICES = ("collective", "type", "op", "ranks", "mode", "placement")


class Bad(Exception):
    """A fault of the input, in a sentence."""


def version(name):
    """The text for --version. Only symwin.h has the version."""
    header = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "symwin.h")
    try:
        with open(header, encoding="utf-8") as file:
            return f"{name} (symwin) " + re.search(r'#define SYMWIN_VERSION "(.*)"',
                                                   file.read()).group(1)
    except (OSError, AttributeError):
        return f"{name} (symwin) of no known version: there is no symwin.h above it"


def size(text):
    """A number with an optional K, M or G."""
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    value = int(text[:-1] if shift else text) << shift
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a size")
    return value


def parse(path):
    """The lines of a file: a comment as (number, text, None), a row as (number, None, {name:
    value}). A file may have several runs, each with its own column names."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeError) as error:
        raise Bad(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    names = None
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            yield number, line[1:].strip(), None
        elif line.startswith("library,"):
            names = next(csv.reader([line]))
        elif line:
            values = next(csv.reader([line]))
            if names is None or len(values) != len(names):
                raise Bad(f"{path}:{number}: not a row of symwin-perf's table")
            yield number, None, dict(zip(names, values))


def convert(row, where, whole, figures, words):
    """Converts a row's numbers in place, and checks that it has the columns `words`."""
    try:
        for name in whole:
            row[name] = int(row[name])
        for name in figures:
            row[name] = float(row[name] or 0)  # the host's time may be missing
        for name in words:
            row[name]  # pylint: disable=pointless-statement
    except (KeyError, ValueError) as error:
        raise Bad(f"{where}: not a row of symwin-perf's table ({error!r})") from error
    row.setdefault("collective", "allreduce")  # older files do not have the column
    if row["time_us"] <= 0 or (row["bytes"] <= 0 and row["library"] != "launch"
                               and row["collective"] != "barrier"):
        raise Bad(f"{where}: a time and a size are above zero")
    if row.get("wrong", "") not in ("", "0"):
        raise Bad(f"{where}: {row['wrong']} elements are wrong, so its time counts for nothing")


def read(paths):
    """The rows of all files as dictionaries, and the comments of the first."""
    rows, comments = [], []
    for path in paths:
        for number, comment, row in parse(path):
            if row is not None:
                convert(row, f"{path}:{number}", ("bytes",), ("time_us", "busbw_gbs"),
                        ("library", "algo", "placement"))
                rows.append(row)
            elif path == paths[0]:
                comments.append(comment)
    if not rows:
        raise Bad("no rows")
    return rows, comments


def choose(rows, options):
    """Keeps the rows of one collective, type and so on; by default those of the first row."""
    links = [row for row in rows if row["library"] == "link"]
    kept = [row for row in rows if row["library"] not in ("link", "launch") and row["bytes"] > 0]
    said = []
    for name in CHOICES:
        want = getattr(options, name)
        if want is None and kept:
            want = kept[0].get(name, "")
        said.append(want)
        there = sorted({row.get(name, "") for row in kept})
        kept = [row for row in kept if row.get(name, "") == want]
        links = [row for row in links if name in ("type", "op", "placement", "mode", "collective")
                 or row.get(name, "") == want]
        if not kept:
            raise Bad("no row has " + ", ".join(f"{n} {w}" for n, w in zip(CHOICES, said)) +
                      (f"; there is {name} " + ", ".join(there) if there else ""))
    return kept, links, said


def lines_of(rows, show_all):
    """{name: (library, {bytes: (time, bandwidth)})}: symwin's best first, then its selection, if
    both were timed."""
    best, auto, lines, algos = {}, {}, {}, set()
    for row in rows:
        point = (row["time_us"], row["busbw_gbs"])
        if row["library"] == "symwin":
            algos.add(row["algo"])
            if row["bytes"] not in best or point[0] < best[row["bytes"]][0]:
                best[row["bytes"]] = point
            if row["algo"] == "auto":
                auto[row["bytes"]] = point
            if not show_all:
                continue
        name = row["algo"] if row["library"] != "symwin" else "symwin " + row["algo"]
        lines.setdefault(name, (row["library"], {}))[1][row["bytes"]] = point
    if len(algos) < 2:
        return {"symwin": ("symwin", best), **lines} if best else lines
    first = {"symwin, fastest": ("symwin", best)}
    if auto and not show_all:
        first["symwin auto"] = ("symwin", auto)
    return {**first, **lines}


def size_name(value):
    """1024 -> 1 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:g} {unit}"
        value /= 1024
    return ""


class Axes:
    """A panel with logarithmic axes: base 2 for x, base 10 for y."""

    def __init__(self, left, title, xs, ys):
        self.left, self.title = left, title
        self.x0, self.x1 = math.log2(min(xs)), math.log2(max(xs))
        self.y0, self.y1 = math.log10(min(ys)) - 0.05, math.log10(max(ys)) + 0.05
        if self.x1 - self.x0 < 1:
            self.x0, self.x1 = self.x0 - 0.5, self.x1 + 0.5
        self.parts = []

    def x(self, value):
        return self.left + (math.log2(value) - self.x0) / (self.x1 - self.x0) * WIDTH

    def y(self, value):
        return TOP + HEIGHT - (math.log10(value) - self.y0) / (self.y1 - self.y0) * HEIGHT

    def text(self, x, y, words, anchor="middle", more=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>'
                          f"{escape(words)}</text>")

    def rule(self, x0, y0, x1, y1, colour="#dee2e6", dash=""):
        self.parts.append(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
                          f'stroke="{colour}" stroke-dasharray="{dash}"/>')

    def frame(self):
        """Title, grid and labels."""
        self.text(self.left + WIDTH / 2, TOP - 12, self.title, more=' font-weight="bold"')
        first, last = math.ceil(self.x0), math.floor(self.x1)
        step = max(1, (last - first + 7) // 8)
        for power in range(first, last + 1, step):
            x = self.x(2.0 ** power)
            self.rule(x, TOP, x, TOP + HEIGHT)
            self.text(x, TOP + HEIGHT + 16, size_name(2.0 ** power))
        ticks = [d * 10.0 ** p for p in range(math.floor(self.y0), math.ceil(self.y1) + 1)
                 for d in range(1, 10) if self.y0 <= math.log10(d * 10.0 ** p) <= self.y1]
        for tick in ticks:
            decade = f"{tick:e}"[0] == "1"
            self.rule(self.left, self.y(tick), self.left + WIDTH, self.y(tick),
                      "#ced4da" if decade else "#f1f3f5")
            if decade or f"{tick:e}"[0] in "25" or len(ticks) < 6:
                self.text(self.left - 6, self.y(tick) + 4, f"{tick:g}", "end")
        self.parts.append(f'<rect x="{self.left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" '
                          'fill="none" stroke="#868e96"/>')

    def line(self, points, colour, dash):
        """A line through {bytes: value}, with a dot at each."""
        spots = [(self.x(size), self.y(value)) for size, value in sorted(points.items())]
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        self.parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" '
                          f'stroke-width="2" stroke-dasharray="{dash}"/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
                       for x, y in spots]

    def limit(self, value, words):
        """A horizontal line."""
        self.rule(self.left, self.y(value), self.left + WIDTH, self.y(value), "#212529", "8 4")
        self.text(self.left + 6, self.y(value) - 5, words, "start")


def draw(lines, links, title, note):
    """The whole picture as SVG text."""
    limit = max(links, key=lambda row: row["busbw_gbs"], default=None)
    sizes = [size for _, points in lines.values() for size in points]
    times = [point[0] for _, points in lines.values() for point in points.values()]
    widths = [point[1] for _, points in lines.values() for point in points.values() if point[1] > 0]
    if limit is not None and limit["busbw_gbs"] > 0:
        widths.append(limit["busbw_gbs"])
    panels = [Axes(LEFT, "time (us)", sizes, times)]
    if widths:  # one rank sends nothing
        panels.append(Axes(LEFT + WIDTH + GAP, "bus bandwidth (10^9 bytes/s)", sizes, widths))
    parts = []
    for number, axes in enumerate(panels):
        axes.frame()
        if number == 1 and limit is not None and limit["busbw_gbs"] > 0:
            axes.limit(limit["busbw_gbs"], f'{limit["algo"]}: {limit["busbw_gbs"]:.0f}')
        for index, (library, points) in enumerate(lines.values()):
            axes.line({size: point[number] for size, point in points.items() if point[number] > 0},
                      COLOURS[index % len(COLOURS)], DASHES.get(library, "4 2"))
        parts += axes.parts
    names = Axes(LEFT, "", sizes, times)
    for index, (name, (library, _)) in enumerate(lines.items()):
        y = TOP + 20 + 18 * index
        names.parts.append(f'<line x1="{LEFT + 12}" y1="{y}" x2="{LEFT + 44}" y2="{y}" '
                           f'stroke-width="2" stroke="{COLOURS[index % len(COLOURS)]}" '
                           f'stroke-dasharray="{DASHES.get(library, "4 2")}"/>')
        names.text(LEFT + 50, y + 4, name, "start")
    total = LEFT + len(panels) * (WIDTH + GAP) - GAP + 30
    names.text(total / 2, 24, title, more=' font-size="16" font-weight="bold"')
    names.text(total / 2, 44, note, more=' fill="#495057"')
    body = "\n".join(parts + names.parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{TOP + HEIGHT + 40}" '
            f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
            f'fill="white"/>\n{body}\n</svg>\n')


def note_of(comments):
    """Devices, driver, date and commit, if the head of the file has them."""
    found = []
    for line in comments:
        if line.startswith("symwin-perf"):
            found += [part.strip() for part in line.split(",")[1:]]
        elif line.startswith("rank 0:"):
            found.insert(0, line.split(",")[1].strip())
        elif line.startswith("driver:"):
            found.append(line)
    return "; ".join(found)


def name_of(collective):
    """allgather -> all-gather."""
    words = {"allreduce": "all-reduce", "allgather": "all-gather", "alltoall": "all-to-all",
             "sendrecv": "send and receive"}
    return words.get(collective, collective.replace("_", "-"))


def picture(paths, options):
    """The SVG text of the rows that the options select."""
    rows, comments = read(paths)
    kept, links, said = choose(rows, options)
    lines = lines_of(kept, options.all)
    name, kind, op, ranks, mode, place = said
    title = (f"{name_of(name)}, {ranks} rank{'s' if ranks != '1' else ''}, "
             f"{kind} {op}, {mode}, {place} of place").replace(" none,", ",")
    return draw(lines, links, title.replace("in of place", "in place"), note_of(comments))


def options_of(arguments=None):
    """The parsed command line; by default sys.argv."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE.csv")
    parser.add_argument("--output", required=True, metavar="FILE.svg")
    parser.add_argument("--version", action="version", version=version("plot.py"))
    parser.add_argument("--all", action="store_true", help="each of symwin's algorithms too")
    for name in CHOICES:
        parser.add_argument("--" + name, help="draws these rows; default: those of the first row")
    return parser.parse_args(arguments)


def main():
    options = options_of()
    try:
        text = picture(options.files, options)
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)
    except (Bad, OSError) as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
