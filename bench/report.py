#!/usr/bin/env python3
"""Writes the measured tables and pictures of README.md and docs.

    bench/report.py            writes the pages and the pictures
    bench/report.py --check    writes nothing; exit status 1 if they are out of date

The pages are README.md, docs/performance.md, and performance-tables.md and collectives-tables.md of
docs/notes. The data is in symwin-perf's CSV files in bench/results. A file is named
DATE-MACHINE-perf-KIND.csv, as bench/run.sh does, with N-ranks- before perf if not all GPUs of the
machine took part. KIND is

    graph    graph replays: all algorithms, in place and out of place, rivals, links
    stream   stream launches: the library's choice, rivals
    types    several types at equal bytes
    sms      grids of several sizes; several runs may be concatenated

A file DATE-MACHINE-collectives-graph.csv has graph replays of several collectives, beside rivals.

The newest file of a kind, machine and number of ranks is used. Files of the emulated driver
(MACHINE is "emulated") are ignored. In the pages, the text between <!-- begin NAME --> and
<!-- end NAME --> is replaced. NAMES below lists the names; each must be in one of the pages.

Needs only Python 3.
"""
import argparse
import os
import re
import sys
import textwrap

sys.dont_write_bytecode = True
import plot  # pylint: disable=wrong-import-position
from plot import Bad, size_name  # pylint: disable=wrong-import-position

FILE = re.compile(r"(\d{4}-\d\d-\d\d)-(.+?)-(?:(\d+)-ranks-)?perf-(graph|stream|types|sms)\.csv")
COLLECTIVES = re.compile(r"(\d{4}-\d\d-\d\d)-(.+?)-(?:(\d+)-ranks-)?collectives-(graph)\.csv")
MARKER = re.compile(r"^<!-- (begin|end) (\S+) -->$")
HEAD_LINES = ((r"symwin-perf \S+, commit (\S+), ", ("commit",)),
              (r"rank 0: device \d+, (.*), process \d+$", ("gpu",)),
              (r"driver: (.*); nccl: (.*)$", ("driver", "nccl")))
MODES = {"graph": "graph", "stream": "stream", "types": "graph", "sms": "graph"}
RIVALS = {"nccl": "NCCL", "nccl-window": "NCCL, symmetric windows",
          "nccl-plain": "NCCL, plain memory",
          "nccl-reg": "NCCL, registered", "nccl-reg-symwin": "NCCL, registered memory of symwin",
          "nccl-window-symwin": "NCCL, symmetric windows on memory of symwin",
          "torch-one-shot": "PyTorch, one-shot", "torch-two-shot": "PyTorch, two-shot"}
PLACES = {"out": "out of place", "in": "in place"}
WHOLE = ("bytes", "ranks")
FIGURES = ("time_us", "busbw_gbs", "host_us")
WORDS = ("library", "algo", "type", "op", "placement", "mode", "launched", "blocks", "wrong")
NOTHING = "Not measured."
COLUMNS = 100  # of a line outside of tables
PAGES = ("README.md", "docs/performance.md", "docs/notes/performance-tables.md",
         "docs/notes/collectives-tables.md")
KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
HEAD = (KI, 64 * KI, MI, 16 * MI, 64 * MI, 256 * MI, GI)  # sizes of the short tables: graphs,
HEAD_STREAM = (KI, 64 * KI, MI, 16 * MI)                  # streams, where the host's time counts
HEAD_COLLECTIVES = (64, 4 * KI, 32 * KI, 256 * KI, 2 * MI, 16 * MI)


class Table:
    """One CSV file: its rows of a collective, and its head: that of the first run if there are
    several. `others` has the other collectives of the file."""

    def __init__(self, path, date, kind, machine, collective="allreduce"):
        self.path, self.date, self.kind, self.machine = path, date, kind, machine
        self.collective, self.others = collective, []
        self.head, self.rows = {}, {}
        self.lines, self.unchecked = 0, 0
        for number, comment, row in plot.parse(path):
            if row is None:
                self.note(comment)
            else:
                self.add(f"{path}:{number}", row)
        if not self.rows:
            raise Bad(f"{path}: no rows")

    def note(self, line):
        """A line of the head. Of several runs the first counts, but for the arguments."""
        for pattern, names in HEAD_LINES:
            found = re.match(pattern, line)
            for name, value in zip(names, found.groups()) if found else ():
                self.head.setdefault(name, value)
        found = re.match(r"arguments: (.*)$", line)
        if found:
            arguments = re.sub(r"--csv[ =]\S+ ?", "", found[1]).strip()
            self.head.setdefault("arguments", []).append(arguments)

    def add(self, where, row):
        plot.convert(row, where, WHOLE, FIGURES, WORDS)
        if row["collective"] != self.collective:
            if row["collective"] not in self.others:
                self.others.append(row["collective"])
            return
        key = tuple(row[name] for name in ("library", "algo", "type", "op", "placement", "bytes"))
        if row["mode"] != MODES[self.kind]:
            raise Bad(f"{where}: mode {row['mode']} in a table of {MODES[self.kind]} calls")
        if self.kind == "sms":
            key += (int(row["blocks"] or 0),)  # the same grid twice: the last counts
        elif key in self.rows:
            raise Bad(f"{where}: the second row of {', '.join(str(part) for part in key)}")
        if self.lines and row["ranks"] != self.ranks:
            raise Bad(f"{where}: {row['ranks']} ranks after rows of {self.ranks}")
        self.ranks = row["ranks"]
        self.lines += 1
        self.unchecked += row["wrong"] == ""
        self.rows[key] = row

    def choose(self, **want):
        """The rows that have these values, in the file's order."""
        return [row for row in self.rows.values()
                if all(row[name] == value for name, value in want.items())]

    def ours(self, algo="auto", **want):
        return self.choose(library="symwin", algo=algo, **want)

    def values(self, name, **want):
        """The different values of a column, in the file's order."""
        return list(dict.fromkeys(row[name] for row in self.choose(**want)))

    def pairs(self):
        """Types and operations of ours."""
        rows = self.choose(library="symwin")
        return list(dict.fromkeys((row["type"], row["op"]) for row in rows))


# ---- which files ---------------------------------------------------------------------------------

def newest_of(folder, pattern):
    """[((machine, the number of ranks that it says, kind), (date, name))], by date."""
    newest = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise Bad(f"{folder}: {error.strerror}") from error
    for name in names:  # by date
        found = pattern.fullmatch(name)
        if found and found[2] != "emulated":
            newest[found[2], found[3], found[4]] = (found[1], name)
    return sorted(newest.items(), key=lambda item: item[1])


def find(folder):
    """{(machine, ranks): {kind: Table}}, by machine, most ranks first."""
    groups = {}
    for (machine, said, kind), (date, name) in newest_of(folder, FILE):
        table = Table(os.path.join(folder, name), date, kind, machine)
        if said is not None and int(said) != table.ranks:
            raise Bad(f"{table.path}: rows of {table.ranks} ranks under this name")
        groups.setdefault((machine, table.ranks), {})[kind] = table
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], -item[0][1])))


def find_collectives(folder):
    """[{collective: Table}] of each file that has rivals: the others are of no interest here."""
    groups = []
    for (machine, _, kind), (date, name) in newest_of(folder, COLLECTIVES):
        path = os.path.join(folder, name)
        first = Table(path, date, kind, machine)
        tables = {"allreduce": first}
        tables.update({other: Table(path, date, kind, machine, other) for other in first.others})
        if any(table.choose(library="nccl") for table in tables.values()):
            groups.append(tables)
    return groups


def name_of(tables):
    """A group in words: 4 x NVIDIA H200, 2 ranks."""
    table = next(iter(tables.values()))
    count = re.match(r"(\d+)-x-", table.machine)
    gpu = table.head.get("gpu")
    words = (f"{count[1]} x {gpu}" if count else gpu) if gpu else table.machine
    return f"{words}, {table.ranks} rank{'s' if table.ranks > 1 else ''}"


# ---- markdown ------------------------------------------------------------------------------------

def number(value):
    """Three digits, or more before the point; two of what is small."""
    for digits, least in ((0, 99.95), (1, 9.995), (2, 0.0995)):
        if value >= least:
            return f"{value:.{digits}f}"
    return f"{value:.2g}"


def figure(row, name="time_us"):
    return number(row[name]) if row else "-"


def ratio(above, below):
    return f"{above['time_us'] / below['time_us']:.2f}" if above and below else "-"


def grid(head, rows):
    """A table. The first column is text, and so are those whose heads begin with a colon."""
    lines = ["| " + " | ".join(word.lstrip(":") for word in head) + " |",
             "|" + "|".join("---" if i == 0 or word[0] == ":" else "---:"
                            for i, word in enumerate(head)) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return lines


def by_size(rows):
    return {row["bytes"]: row for row in rows}


def score(pairs):
    """A rival's score over all sizes; pairs are (its row, ours)."""
    ratios = [(rival["time_us"] / ours["time_us"], ours["bytes"]) for rival, ours in pairs]
    least, at = min(ratios)
    ahead = sum(value >= 1 for value, _ in ratios)
    return f"{ahead} of {len(ratios)}", f"{least:.2f}, at {size_name(at)}"


def rivals_of(table, **want):
    """{name: {bytes: row}} of the rivals that were timed."""
    rivals = {name: by_size(table.choose(algo=name, **want)) for name in RIVALS}
    return {name: rows for name, rows in rivals.items() if rows}


def quickest(rivals, size):
    """The rival's row of least time, None if none was timed."""
    rows = [rows_of[size] for rows_of in rivals.values() if size in rows_of]
    return min(rows, key=lambda row: row["time_us"], default=None)


def pairs_of(rows_of, ours):
    """A rival's rows and ours, at the sizes that both have."""
    return [(rows_of[row["bytes"]], row) for row in ours if row["bytes"] in rows_of]


def versus(table, place, type_, op, host, sizes=None):
    """A table of ours and every rival, at some sizes; or at all sizes, with the scores."""
    want = {"type": type_, "op": op, "placement": place}
    ours = [row for row in table.ours(**want) if sizes is None or row["bytes"] in sizes]
    rivals = rivals_of(table, **want)
    head = ["size", ":algorithm", "us"] + (["host, us"] if host else []) + ["GB/s"]
    for name in rivals:
        head += [RIVALS[name] + ", us"] + (["host, us"] if host else []) + ["ratio"]
    rows = []
    for row in ours:
        cells = [size_name(row["bytes"]), row["launched"] or "-", figure(row)]
        cells += ([figure(row, "host_us")] if host else []) + [figure(row, "busbw_gbs")]
        for rows_of in rivals.values():
            rival = rows_of.get(row["bytes"])
            cells += [figure(rival)] + ([figure(rival, "host_us")] if host else [])
            cells.append(ratio(rival, row))
        rows.append(cells)
    lines = grid(head, rows) + [""]
    if sizes is not None:
        return lines[:-1]
    for name, rows_of in rivals.items():
        both = pairs_of(rows_of, ours)
        if both:
            ahead, least = score(both)
            lines.append(f"- At least as fast as {RIVALS[name]} at {ahead} sizes; "
                         f"lowest ratio {least}.")
    return lines + ([] if rivals else ["NCCL: not measured."])


# ---- the blocks of the pages ---------------------------------------------------------------------

class Report:
    """The text for each name in NAMES, as lines, and the pictures."""

    def __init__(self, folder):
        self.groups = find(folder)
        self.collective_groups = find_collectives(folder)
        self.base = "."     # folder of the page that is being filled
        self.pictures = {}  # path -> SVG

    def link(self, path):
        return os.path.relpath(os.path.abspath(path), self.base).replace(os.sep, "/")

    def sections(self, kind, body):
        """For each group with a table of this kind, a heading and the blocks of body(table,
        tables), with blank lines between them. A block is a list of lines."""
        blocks = []
        for tables in self.groups.values():
            content = list(body(tables[kind], tables)) if kind in tables else []
            if content:
                blocks += [["### " + name_of(tables)]] + content
        return [line for block in blocks for line in [""] + block][1:] or [NOTHING]

    def measured(self):
        """The files, and the programs that wrote them."""
        rows = []
        for tables in self.groups.values():
            for kind, table in tables.items():
                head = table.head
                arguments = dict.fromkeys(head.get("arguments", []))
                unchecked = f"; {table.unchecked} rows not checked" if table.unchecked else ""
                rows.append([name_of(tables), f"[{kind}]({self.link(table.path)}){unchecked}",
                             table.date, head.get("commit", "-"), head.get("driver", "-"),
                             head.get("nccl", "-"),
                             ", ".join(f"`{text}`" for text in arguments) or "-"])
        head = ["machine", ":table", ":date", ":commit", ":driver", ":NCCL",
                ":options of symwin-perf"]
        return grid(head, rows) if rows else [NOTHING]

    def number(self):
        """One number and one picture: the graph replays of the most ranks."""
        tables = [tables["graph"] for tables in self.groups.values() if "graph" in tables]
        table = max(tables, key=lambda table: table.ranks, default=None)
        ours = table.ours(type="bf16", op="sum", placement="out", bytes=KI) if table else []
        if not ours:
            return [NOTHING]
        text = (f"On {name_of({'graph': table})}, an all-reduce of 1 KiB (bf16, graph replays) "
                f"takes {figure(ours[0])} us")
        times = [f"{RIVALS[name]} {figure(rows[KI])} us"
                 for name, rows in rivals_of(table, type="bf16", op="sum", placement="out").items()
                 if KI in rows]
        text += f". In the same run: {'; '.join(times)}" if times else ""
        text += f" ({table.date}, commit {table.head.get('commit', '-')})."
        return textwrap.wrap(text, COLUMNS) + [""] + self.drawn(table)

    def scores(self):
        """How often each rival was slower, or as fast, and where it came closest."""
        found, names = [], []
        for tables in self.groups.values():
            for kind in "graph", "stream":
                table = tables.get(kind)
                for type_, op in table.pairs() if table else []:
                    for place in PLACES:
                        want = {"type": type_, "op": op, "placement": place}
                        ours = table.ours(**want)
                        cells = {name: pairs_of(rows_of, ours)
                                 for name, rows_of in rivals_of(table, **want).items()}
                        cells = {name: "; ".join(score(both))
                                 for name, both in cells.items() if both}
                        if cells:
                            names += [name for name in cells if name not in names]
                            words = [name_of(tables), f"{kind}, {type_} {op}, {PLACES[place]}"]
                            found.append((words, cells))
        names = [name for name in RIVALS if name in names]
        rows = [words + [cells.get(name, "-") for name in names] for words, cells in found]
        head = ["machine", ":calls"] + [":" + RIVALS[name] for name in names]
        return grid(head, rows) if rows else [NOTHING]

    def short(self, host, sizes):
        """The calls at some sizes only."""
        def body(table, _):
            blocks = []
            for type_, op in table.pairs():
                ours = table.ours(type=type_, op=op, placement="out")
                if any(row["bytes"] in sizes for row in ours):
                    title = f"{type_} {op}, out of place, {self.origin(table)}:"
                    blocks += [textwrap.wrap(title, COLUMNS, break_on_hyphens=False),
                               versus(table, "out", type_, op, host, sizes)]
            return ([self.drawn(table)] if blocks and not host else []) + blocks
        return body

    def origin(self, table):
        """The date, file and commit of a table."""
        return f"[{table.date}]({self.link(table.path)}), commit {table.head.get('commit', '-')}"

    def drawn(self, table):
        """Draws a table's picture, in a file beside it; returns the lines that show it."""
        end = "" if table.collective == "allreduce" else "-" + table.collective
        path = f"{table.path[:-len('.csv')]}{end}.svg"
        options = plot.options_of([table.path, "--output", path, "--collective", table.collective])
        try:
            self.pictures[path] = plot.picture(options.files, options)
        except Bad as error:
            raise Bad(f"{table.path}: {error}") from error
        what = "time and bus bandwidth" if table.ranks > 1 else "time"
        return [f"![{what} against size]({self.link(path)})"]

    def calls(self, host):
        def body(table, _):
            yield self.drawn(table)
            for type_, op in table.pairs():
                if table.ours(type=type_, op=op, placement="out"):
                    yield [f"{type_} {op}, out of place:"]
                    yield versus(table, "out", type_, op, host)
            for row in table.choose(library="launch") if host else []:
                yield [f"A kernel that does nothing ({row['algo']}): {figure(row)} us, "
                       f"{figure(row, 'host_us')} us of the host."]
        return body

    def in_place(self):
        def body(table, _):
            for type_, op in table.pairs():
                want = {"type": type_, "op": op}
                outs = by_size(table.ours(placement="out", **want))
                rivals = rivals_of(table, placement="in", **want)
                rows = []
                for inside in table.ours(placement="in", **want):
                    out = outs.get(inside["bytes"])
                    if out is None:
                        continue
                    cells = [size_name(out["bytes"]), figure(out), out["launched"] or "-",
                             figure(inside), inside["launched"] or "-", ratio(inside, out)]
                    for rows_of in rivals.values():
                        rival = rows_of.get(out["bytes"])
                        cells += [figure(rival), ratio(rival, inside)]
                    rows.append(cells)
                head = ["size", "out of place, us", ":algorithm", "in place, us", ":algorithm",
                        "in / out"]
                for name in rivals:
                    head += [RIVALS[name] + " in place, us", "ratio"]
                if rows:
                    yield [f"{type_} {op}:"]
                    yield grid(head, rows)
        return self.sections("graph", body)

    def algorithms(self):
        def body(table, _):
            for type_, op in table.pairs():
                want = {"type": type_, "op": op, "placement": "out"}
                names = [name for name in table.values("algo", library="symwin", **want)
                         if name != "auto"]
                if not names:
                    continue
                times = {name: by_size(table.ours(name, **want)) for name in names}
                auto = by_size(table.ours(**want))
                rows = []
                for size in table.values("bytes", library="symwin", **want):
                    row_of = {name: times[name].get(size) for name in names}
                    best = min((row for row in row_of.values() if row),
                               key=lambda row: row["time_us"], default=None)
                    cells = [f"**{figure(row)}**" if row and row is best else figure(row)
                             for row in row_of.values()]
                    rows.append([size_name(size)] + cells + [figure(auto.get(size)),
                                                             ratio(auto.get(size), best)])
                yield [f"{type_} {op}, out of place, us:"]
                yield grid(["size"] + names + ["auto", "auto / fastest"], rows)
        return self.sections("graph", body)

    def types(self):
        def body(table, _):
            for op in table.values("op", library="symwin", algo="auto", placement="out"):
                want = {"op": op, "placement": "out"}
                names = table.values("type", library="symwin", algo="auto", **want)
                rows = []
                for size in table.values("bytes", library="symwin", algo="auto", **want):
                    row_of = {row["type"]: row for row in table.ours(bytes=size, **want)}
                    launched = dict.fromkeys(row["launched"] or "-" for row in row_of.values())
                    rows.append([size_name(size)] + [figure(row_of.get(name)) for name in names] +
                                [", ".join(launched)])
                yield [f"{op}, out of place, us:"]
                yield grid(["size"] + names + [":algorithm"], rows)
        return self.sections("types", body)

    def sms(self):
        def cell(row):
            return f"{figure(row)} ({figure(row, 'busbw_gbs')})" if row else "-"

        def body(table, tables):
            for type_, op in table.pairs():
                want = {"type": type_, "op": op, "placement": "out"}
                ours = table.choose(library="symwin", **want)
                if not ours:
                    continue
                blocks = sorted({int(row["blocks"] or 0) for row in ours})
                free = tables["graph"].choose(library="symwin", **want) if "graph" in tables else []
                free = {(row["algo"], row["bytes"]): row for row in free}
                rows = []
                for size, algo in sorted(dict.fromkeys((row["bytes"], row["algo"]) for row in ours),
                                         key=lambda pair: pair[0]):
                    row_of = {int(row["blocks"] or 0): row for row in ours
                              if (row["bytes"], row["algo"]) == (size, algo)}
                    launched = dict.fromkeys(row["launched"] for row in row_of.values())
                    name = f"auto: {', '.join(launched)}" if algo == "auto" else algo
                    rows.append([size_name(size), name] + [cell(row_of.get(n)) for n in blocks] +
                                [cell(free.get((algo, size)))])
                head = ["size", ":algorithm"] + [f"{n} blocks" for n in blocks] + ["no limit"]
                yield [f"{type_} {op}, out of place, us (GB/s):"]
                yield grid(head, rows)
        return self.sections("sms", body)

    def of_collectives(self, body):
        """For each file of collectives, a heading, its origin and the blocks of body(tables)."""
        blocks = []
        for tables in self.collective_groups:
            first = next(iter(tables.values()))
            what = "Graph replays, out of place, bf16, sums where there is an operation; the size"
            text = f"{what} is that of a rank's larger buffer; {self.origin(first)}:"
            blocks += [["### " + name_of(tables)], textwrap.wrap(text, COLUMNS)]
            blocks += list(body(tables))
        return [line for block in blocks for line in [""] + block][1:] or [NOTHING]

    def collectives(self):
        """A picture and a table for each."""
        def body(tables):
            for name, table in tables.items():
                yield ["#### " + plot.name_of(name)]
                if any(row["bytes"] > 0 for row in table.ours()):
                    yield self.drawn(table)
                for type_, op in table.pairs():
                    yield versus(table, "out", type_, op, False)
        return self.of_collectives(body)

    def head_collectives(self):
        """The times at some sizes, and in brackets those of the quickest rival."""
        def body(tables):
            rows = []
            for name, table in tables.items():
                ours = by_size(table.ours(placement="out"))
                rivals = rivals_of(table, placement="out")
                cells = [f"{figure(ours.get(size))} ({figure(quickest(rivals, size))})"
                         for size in HEAD_COLLECTIVES]
                if any(size in ours for size in HEAD_COLLECTIVES):
                    rows.append([plot.name_of(name)] + cells)
            yield grid([""] + [size_name(size) for size in HEAD_COLLECTIVES], rows)
        return self.of_collectives(body)

    def links(self):
        """The newest table of a group that has rows of links."""
        rows = []
        for tables in self.groups.values():
            found = [table for table in tables.values() if table.choose(library="link")]
            newest = max(found, key=lambda table: table.date, default=None)
            for row in newest.choose(library="link") if newest else []:
                rows.append([name_of(tables), row["algo"], size_name(row["bytes"]), figure(row),
                             figure(row, "busbw_gbs")])
        return grid(["machine", ":way", "size", "us", "GB/s"], rows) if rows else [NOTHING]


NAMES = {"number": Report.number, "scores": Report.scores,
         "head": lambda report: report.sections("graph", report.short(False, HEAD)),
         "head-stream": lambda report: report.sections("stream", report.short(True, HEAD_STREAM)),
         "measured": Report.measured,
         "graph": lambda report: report.sections("graph", report.calls(False)),
         "stream": lambda report: report.sections("stream", report.calls(True)),
         "in-place": Report.in_place, "algorithms": Report.algorithms, "types": Report.types,
         "sms": Report.sms, "links": Report.links, "head-collectives": Report.head_collectives,
         "collectives": Report.collectives}


# ---- the pages -----------------------------------------------------------------------------------

def fill(document, text, report, seen):
    """The text with new blocks between its markers. `seen` has the blocks of all pages so far."""
    lines, inside = [], None
    report.base = os.path.dirname(os.path.abspath(document))
    for line in text.splitlines():
        found = MARKER.match(line)
        if found is None:
            lines += [] if inside else [line]
            continue
        word, name = found.groups()
        if name not in NAMES:
            raise Bad(f"{document}: there is no block \"{name}\", but {', '.join(NAMES)}")
        if (word == "end") != (inside == name) or (word == "begin") != (inside is None):
            raise Bad(f"{document}: {line} where {inside or 'no block'} is open")
        if word == "begin" and name in seen:
            raise Bad(f"{document}: {line} for the second time")
        inside = name if word == "begin" else None
        seen.add(name)
        lines += [line, ""] + NAMES[name](report) + [""] if word == "begin" else [line]
    if inside:
        raise Bad(f"{document}: <!-- begin {inside} --> has no end")
    return "\n".join(lines) + "\n"


def content(path):
    """A file's text, None where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeError as error:
        raise Bad(f"{path}: {error}") from error


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=plot.version("report.py"))
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit status 1 if anything would change")
    parser.add_argument("--results", default=os.path.relpath(os.path.join(here, "results")),
                        metavar="FOLDER")
    parser.add_argument("--document", metavar="FILE.md", action="append", dest="documents",
                        help="a page, instead of " + ", ".join(PAGES) + "; may be repeated")
    options = parser.parse_args()
    documents = options.documents or [os.path.relpath(os.path.join(here, "..", page))
                                      for page in PAGES]
    try:
        report, seen, files = Report(options.results), set(), {}
        for document in documents:
            text = content(document)
            if text is None:
                raise Bad(f"{document}: No such file or directory")
            files[document] = fill(document, text, report, seen)
        for name in NAMES:
            if name not in seen:
                raise Bad(f"{', '.join(documents)}: no <!-- begin {name} -->")
        files.update(report.pictures)
        changed = [path for path, new in files.items() if content(path) != new]
        for path in changed:
            if options.check:
                print(f"report.py: {path} is not what the files of {options.results} give: "
                      "run bench/report.py", file=sys.stderr)
                continue
            with open(path, "w", encoding="utf-8") as file:
                file.write(files[path])
            print(path)
    except (Bad, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
