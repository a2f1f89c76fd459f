#!/usr/bin/env python3
"""Simulates collectives of GPUs on several hosts: symwin inside each host, NCCL between the hosts.

    bench/scale/scale.py [options]     prints a table
    bench/scale/scale.py --doc         prints the tables of docs/scaling.md
    bench/scale/scale.py --write       writes them into docs/scaling.md
    bench/scale/scale.py --check       writes nothing; exit status 1 if the page is out of date
    bench/scale/scale.py --bed FILE    compares with a test bed (bed.sh)

docs/scaling.md explains the model and where its numbers come from. Nothing of it was measured on
several hosts. All hosts and rails are alike and start at once, so the simulation has the resources
of one GPU: its NVLinks, its network link, and the communicators of its rail.

Needs only Python 3.
"""
import argparse
import collections
import heapq
import math
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import plot  # pylint: disable=wrong-import-position
from plot import Bad, size_name  # pylint: disable=wrong-import-position

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30

# Times inside a host, by its number of GPUs. Other numbers are derived from the four.
MEASURED = {2: "2026-11-30-2-x-nvidia-h200-collectives-graph.csv",
            4: "2026-11-27-4-x-nvidia-h200-collectives-graph.csv"}
INSIDE = ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall", "scatter")
COLLECTIVES = INSIDE[:5]
ONESHOT = {"allreduce": 128 * KI, "broadcast": 512 * KI}  # served by pushes of it to each peer

# NCCL 2.28.9's own cost model, microseconds: a call, a hop over NVLink, a hop over the network of a
# communicator with several ranks a host; the share of the link's rate. PAT needs one rank a host.
Engine = collections.namedtuple("Engine", "algo proto base inside network share")
TREE_SHARE = 0.92
ENGINES = (Engine("ring", "LL", 6.6, 1.0, 2.7, 1 / 2),
           Engine("ring", "LL128", 14.0, 1.9, 4.0, 0.92),
           Engine("ring", "Simple", 8.4, 3.4, 14.0, 1),
           Engine("tree", "LL", 6.8, 0.6, 5.0, 1 / 3.8),
           Engine("tree", "LL128", 14.0, 1.25, 8.5, 120 / 128),
           Engine("tree", "Simple", 8.4, 4.0, 14.0, 1), Engine("PAT", "Simple", 8.0, 0, 14.0, 0.75))
PAT_HOP, PAT_RANK = 1 / 3.5, 2.8  # of a hop, log2 times; of each rank, microseconds
ONE_A_HOST = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}  # a hop of the network, one rank a host
LATENCY = 5.0   # at this --latency hops of the network take the time above
POST = 1.0      # of each message of an all-to-all, microseconds
HANDOVER = 1.0  # from a kernel to one of another stream that waits for it, microseconds; assumed
SUM_RATE = 1e6  # bytes a microsecond that a sum on 32 multiprocessors reads; assumed

CHUNKS = (1, 2, 4, 8, 16, 32)
LANES = 4          # communicators of a rail of the library
AHEAD = LANES + 1  # first stages queued before the last stage of the first chunk, at most
WAYS = ("stages", "swaps", "whole")
HOSTS = (1, 2, 4, 16, 128, 1024, 12500)
SIZES = (64 * KI, MI, 16 * MI, 256 * MI, GI)
RATES = (25.0, 50.0, 100.0)
LIMITS = {"hosts": (1, 1000000), "gpus": (1, 72), "bytes": (1, 1 << 50), "rate": (0.001, 1e6),
          "latency": (0.001, 1e6), "tree_share": (0.001, 1), "communicators": (1, 64),
          "chunks": (1, 1024)}

Result = collections.namedtuple("Result", "us way chunks engine")


# ---- inside a host -------------------------------------------------------------------------------

def look_up(line, size):
    """The time of a size by [(bytes, us)]: log-log between two sizes; below the first its time,
    above the last its rate."""
    if size <= line[0][0]:
        return line[0][1]
    if size >= line[-1][0]:
        return line[-1][1] * size / line[-1][0]
    high = next(i for i, point in enumerate(line) if point[0] >= size)
    (b0, t0), (b1, t1) = line[high - 1:high + 1]
    return t0 * (t1 / t0) ** (math.log(size / b0) / math.log(b1 / b0))


class Inside:
    """Times of collectives inside a host with this many GPUs: measured, or derived from another
    number of GPUs by the bytes over each GPU's links."""

    cache = {}

    def __init__(self, gpus, source=None):
        self.gpus = gpus
        self.source = source or (gpus if gpus in MEASURED else 4)
        if self.source not in Inside.cache:
            Inside.cache[self.source] = self.read(MEASURED[self.source])
        self.points, self.nccl_rate = Inside.cache[self.source]

    @staticmethod
    def read(name):
        """({collective: [(bytes, us)]}, {collective: NCCL's bus bandwidth at the largest size})"""
        path = os.path.relpath(os.path.join(HERE, "..", "results", name))
        points, rates = {name: {} for name in INSIDE}, {name: {0: 0.0} for name in INSIDE}
        for line, _, row in plot.parse(path):
            if row and row["collective"] in points:
                plot.convert(row, f"{path}:{line}", ("bytes",), ("time_us", "busbw_gbs"), ("algo",))
                if row["library"] == "symwin":
                    points[row["collective"]][row["bytes"]] = row["time_us"]
                else:  # with symmetric windows or without, whichever is faster
                    of = rates[row["collective"]]
                    of[row["bytes"]] = max(row["busbw_gbs"], of.get(row["bytes"], 0))
        for name, times in points.items():
            if len(times) < 2 or len(rates[name]) < 2:
                raise Bad(f"{path}: no times of {name}")
            least, line = math.inf, []
            for size in sorted(times, reverse=True):  # no size takes longer than a larger one
                least = min(least, times[size])
                line.append((size, least))
            points[name] = line[::-1]
        return points, {name: of[max(of)] for name, of in rates.items()}

    def look_up(self, collective, size):
        return look_up(self.points[collective], size)

    def time(self, collective, size):
        if self.gpus == 1:
            return 0.0
        peers = (self.gpus - 1) / (self.source - 1)
        part = 1 if collective == "broadcast" else peers * self.source / self.gpus
        us = self.look_up(collective, size * part)
        if collective in ONESHOT and peers > 1:
            us = max(us, self.look_up(collective, min(size * peers, ONESHOT[collective])))
        return us


# ---- NCCL ----------------------------------------------------------------------------------------

def nccl(setup, collective, hosts, gpus, size, engine):
    """(latency, time of the bytes) of one call of a communicator with `gpus` ranks on each of
    `hosts` hosts. A rail is a communicator with one rank a host."""
    ranks, doubled = hosts * gpus, 2 if collective == "allreduce" else 1
    hop = (engine.network if gpus > 1 else ONE_A_HOST[engine.proto]) * setup.latency / LATENCY
    share = engine.share * (setup.tree_share if engine.algo == "tree" else 1)
    rate = setup.rate * 1e3 * share  # bytes in a microsecond
    if collective == "alltoall":
        messages = ranks - gpus
        return engine.base + hop, max(messages * POST, size * messages / ranks / rate)
    if engine.algo == "PAT":
        return (engine.base + math.log2(hosts) * hop * PAT_HOP + hosts * PAT_RANK,
                (hosts - 1) / hosts * size / rate)
    if engine.algo == "tree":
        part = 1 / 2 if hosts == 2 else 1
        latency = (gpus - 1) * engine.inside + math.ceil(math.log2(hosts)) * hop
    else:
        part = 1 if collective == "broadcast" else (ranks - 1) / ranks
        latency = (ranks - hosts) * engine.inside + (hosts - 1) * hop
    us = part * size / gpus / rate
    if gpus > 1:  # each GPU's NVLinks carry the whole message
        us = max(us, size / (Inside(gpus).nccl_rate[collective] * 1e3 * engine.share))
    return engine.base + doubled * latency, doubled * us


def engines(collective, gpus):
    """The algorithms and protocols that NCCL has for a collective."""
    some = {"allreduce": ("ring", "tree"), "alltoall": ("ring",), "broadcast": ("ring",)}
    return [engine for engine in ENGINES
            if engine.algo in some.get(collective, ("ring", "PAT") if gpus == 1 else ("ring",))
            and (collective != "alltoall" or engine.proto != "LL128")]


def flat(setup, collective, hosts, size, algo):
    """NCCL's time with one communicator of all ranks, by its quickest protocol; None without."""
    times = [sum(nccl(setup, collective, hosts, setup.gpus, size, engine))
             for engine in engines(collective, setup.gpus) if engine.algo == algo]
    return min(times, default=None) if hosts > 1 else None


def flat_best(setup, collective, hosts, size):
    times = [flat(setup, collective, hosts, size, algo) for algo in ("ring", "tree", "PAT")]
    return min((us for us in times if us is not None), default=None)


# ---- hierarchical --------------------------------------------------------------------------------

def bound(setup, collective, hosts, size):
    """What each GPU's network link has to carry, at its rate."""
    share = 1 if collective == "alltoall" else 1 / setup.gpus
    part = 1 if collective == "broadcast" and hosts > 1 else (hosts - 1) / hosts
    return (2 if collective == "allreduce" else 1) * part * share * size / (setup.rate * 1e3)


def ways(collective, gpus):
    """{name: stages of a chunk}: where, what, and by how much the chunk's bytes are divided."""
    rail, swap = ("rail", collective), ("rail", "alltoall", gpus)
    swaps = [swap, ("lane", "sum", gpus), swap]
    if gpus == 1:
        return {"rail": [rail + (1,)], **({"swaps": swaps} if collective == "allreduce" else {})}
    return {
        "allreduce": {"stages": [("inside", "reduce_scatter", 1), rail + (gpus,),
                                 ("inside", "allgather", 1)],
                      "swaps": [("inside", "reduce_scatter", 1)] + swaps
                               + [("inside", "allgather", 1)],
                      "whole": [("inside", "allreduce", 1), rail + (1,)]},
        "reduce_scatter": {"stages": [("inside", "reduce_scatter", 1), rail + (gpus,)]},
        "allgather": {"stages": [rail + (gpus,), ("inside", "allgather", 1)]},
        "broadcast": {"stages": [("inside", "scatter", 1), rail + (gpus,),
                                 ("inside", "allgather", 1)],
                      "whole": [rail + (1,), ("inside", "broadcast", 1)]},
        "alltoall": {"stages": [("inside", "alltoall", 1), rail + (1,)]},
    }[collective]


def run(tasks, queues, on_link, slower):
    """The end of the last task. `tasks` is {name: (us, [(name of one to wait for, delay)])};
    `queues` lists, for each resource, its tasks in the order in which they are queued: a resource
    does one at a time, in that order. The tasks in `on_link` share the link: if n of them are under
    way, each takes slower(n) times as long as alone."""
    waits = {name: len(after) for name, (_, after) in tasks.items()}
    ready, where, wakes = dict.fromkeys(tasks, 0.0), {}, collections.defaultdict(list)
    for name, (_, after) in tasks.items():
        for other, delay in after:
            wakes[other].append((name, delay))
    events, started, now, flows = [], set(), 0.0, {}  # flows: what is left of each

    def start(queue):
        if queue and waits[queue[0]] == 0 and queue[0] not in started:
            name = queue[0]
            started.add(name)
            begin = max(now, ready[name])
            heapq.heappush(events, (begin + (0 if name in on_link else tasks[name][0]), name))

    queues = [collections.deque(queue) for queue in queues]
    for queue in queues:
        where.update((name, queue) for name in queue)
        start(queue)
    while events or flows:
        slow, least = slower(len(flows)), min(flows, key=flows.get, default=None)
        end = now + flows[least] * slow if flows else math.inf
        moment = min(end, events[0][0] if events else math.inf)
        flows = {name: left - (moment - now) / slow for name, left in flows.items()}
        now = moment
        if moment == end:
            name = least
            del flows[name]
        else:
            _, name = heapq.heappop(events)
            if name in on_link:
                flows[name] = tasks[name][0]
                continue
        where[name].popleft()
        for other, delay in wakes[name]:
            waits[other] -= 1
            ready[other] = max(ready[other], now + delay)
            start(where[other])
        start(where[name])
    if len(started) != len(tasks):
        raise Bad("tasks wait for each other")
    return now


def pipeline(stages, chunks, ahead, communicators, slower=lambda calls: calls):
    """The time of a collective in chunks. A stage is ("inside", us), ("rail", latency, us of the
    bytes), or ("lane", us) of a kernel between two calls. A call holds a communicator of its rail
    throughout, and shares the link only for its bytes: equally, unless `slower` is measured."""
    tasks, inside, on_link = {}, [], set()
    rails = [[] for _ in range(communicators)]
    for chunk in range(chunks):
        last = None
        for number, (place, *times) in enumerate(stages):
            name, after = (chunk, number), [(last, HANDOVER)] if last else []
            if place == "lane":
                rails[chunk % communicators].append(name)
            elif place == "rail":
                latency = (chunk, number, "latency")
                tasks[latency] = (times[0], after)
                after = [(latency, 0)]
                rails[chunk % communicators] += [latency, name]
                on_link.add(name)
            tasks[name] = (times[-1], after)
            last = name
    first, last = stages[0][0] == "inside", stages[-1][0] == "inside" and len(stages) > 1
    for chunk in range(chunks + ahead):
        if first and chunk < chunks:
            inside.append((chunk, 0))
        if last and chunk >= ahead - 1 and chunk - ahead + 1 < chunks:
            inside.append((chunk - ahead + 1, len(stages) - 1))
    return run(tasks, [inside] + rails, on_link, slower)


def hierarchical(setup, collective, hosts, size):
    """The fastest way, number of chunks and engine."""
    inside = Inside(setup.gpus)
    if hosts == 1:
        return Result(inside.time(collective, size), "inside", 1, None)
    best = Result(math.inf, None, 0, None)
    for way, plan in ways(collective, setup.gpus).items():
        if way in WAYS and way not in setup.ways:
            continue
        for chunks in [setup.chunks] if setup.chunks else CHUNKS:
            rails = [(name, part) for place, name, part in plan if place == "rail"]
            calls, (called, part) = [], rails[0]
            for engine in engines(called, 1):
                latency, us = nccl(setup, called, hosts, 1, size / chunks / part, engine)
                calls.append((latency + us, engine, latency, us))
            if setup.communicators == 1:  # nothing overlaps a call, so the shortest is the best
                calls = [min(calls)]
            for total, engine, *times in calls:
                if len(rails) * max(total * math.ceil(chunks / setup.communicators),
                                    times[1] * chunks) >= best.us:
                    continue
                stages = [("rail", *times) if place == "rail" else
                          ("lane", size / chunks / part / SUM_RATE) if place == "lane" else
                          ("inside", inside.time(name, size / chunks))
                          for place, name, part in plan]
                us = pipeline(stages, chunks, min(chunks, AHEAD), setup.communicators)
                if us < best.us:
                    best = Result(us, way, chunks, engine)
    return best


# ---- compared with a test bed --------------------------------------------------------------------

TOGETHER = {"pairs": 2, "lanes": LANES}  # calls at the same time in tables of a bed
WITHIN = 0.15


class Bed:
    """What bed.sh has measured on one machine: steps inside and calls on rails, of which the
    simulation makes times of whole calls, and those times."""

    def __init__(self, path):
        self.times = {name: collections.defaultdict(dict) for name in ("inside", "rail", *TOGETHER)}
        self.whole, self.ranks, part = {}, {}, None
        for line, text, row in plot.parse(path):
            if text and text.startswith("bed: "):
                part = text[5:]
            if not row:
                continue
            plot.convert(row, f"{path}:{line}", ("bytes", "ranks"), ("time_us",), ("algo",))
            self.ranks[part] = row["ranks"]
            if part == "whole":
                pieces = int(row["blocks"] or 0) if row["algo"] == "rails" else 0
                self.whole[pieces, row["bytes"]] = row["time_us"]
            elif part in self.times:  # of jobs at the same time, the slowest
                of = self.times[part][row["collective"]]
                of[row["bytes"]] = max(row["time_us"], of.get(row["bytes"], 0))
        for name, needs in {"inside": INSIDE[:3], **dict.fromkeys(("rail", *TOGETHER),
                                                                  INSIDE[:1])}.items():
            for collective in needs:
                if len(self.times[name][collective]) < 2:
                    raise Bad(f"{path}: no times of {name}, {collective}: make it by bed.sh")
        if not self.whole:
            raise Bad(f"{path}: no times of whole calls: make it by bed.sh")
        self.gpus = self.ranks["inside"]

    def time(self, name, collective, size):
        return look_up(sorted(self.times[name][collective].items()), size)

    def slower(self, size):
        """By how much a call on a rail is slower if others are under way, by their number."""
        alone = self.time("rail", "allreduce", size)
        line = [(1, 1.0)] + [(calls, self.time(name, "allreduce", size) / alone)
                             for name, calls in TOGETHER.items()]
        return lambda calls: look_up(line, calls)

    def simulate(self, pieces, size):
        """An all-reduce in pieces; 0: by one exchange of all of it."""
        if pieces == 0:
            return (self.time("inside", "allreduce", size) + HANDOVER +
                    self.time("rail", "allreduce", size))
        part = size / pieces
        stages = [("inside", self.time("inside", "reduce_scatter", part)),
                  ("rail", 0.0, self.time("rail", "allreduce", part / self.gpus)),
                  ("inside", self.time("inside", "allgather", part))]
        return pipeline(stages, pieces, min(AHEAD, pieces), LANES, self.slower(part / self.gpus))


def bed_table(bed):
    """([row of the table], the share of all rows that are within 15 %)"""
    rows, good = [], 0
    for size in sorted({size for _, size in bed.whole}):
        for pieces in sorted(pieces for pieces, of in bed.whole if of == size):
            measured, simulated = bed.whole[pieces, size], bed.simulate(pieces, size)
            good += abs(simulated / measured - 1) <= WITHIN
            rows.append([size_name(size), f"rails, {pieces}" if pieces else "one exchange",
                         figure(measured), figure(simulated), f"{simulated / measured:.2f}"])
    return table(["bytes", "way, pieces", "measured, us", "simulated, us", "ratio"],
                 rows, 2), good / len(rows)


# ---- tables --------------------------------------------------------------------------------------

def figure(value, digits=3):
    """A number of so many digits, without an exponent."""
    if value is None:
        return "-"
    places = max(0, digits - 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{places}f}"


def share(setup, collective, hosts, size, us):
    if hosts == 1:
        return "-"
    percent = 100 * bound(setup, collective, hosts, size) / us
    return f"{percent:.{0 if percent >= 9.95 else 1}f} %"


def table(head, rows, left=1):
    lines = ["| " + " | ".join(row) + " |" for row in [head] + rows]
    return lines[:1] + ["|" + "---|" * left + "---:|" * (len(head) - left)] + lines[1:]


def variant(setup, **changes):
    return argparse.Namespace(**{**vars(setup), **changes})


def cell(setup, hosts, size):
    us = hierarchical(setup, "allreduce", hosts, size).us
    if hosts == 1:
        return figure(us)
    return (f"{figure(us)}, {share(setup, 'allreduce', hosts, size, us)} "
            f"({figure(flat_best(setup, 'allreduce', hosts, size))})")


def rate_table(setup, rate):
    setup = variant(setup, rate=rate)
    return table(["hosts", "GPUs"] + [size_name(size) for size in SIZES],
                 [[str(hosts), str(hosts * setup.gpus)] + [cell(setup, hosts, size)
                                                           for size in SIZES] for hosts in HOSTS])


def choice(result):
    engine = "-"
    if result.engine:
        algo = "sends" if result.way == "swaps" else result.engine.algo
        engine = f"{algo}, {result.engine.proto}"
    return [result.way, str(result.chunks), engine]


def figures(setup):
    rows = []
    for size in (64 * KI, GI):
        result = hierarchical(setup, "allreduce", 128, size)
        rows.append([size_name(size), figure(result.us)] + choice(result)
                    + [figure(sum(Inside(setup.gpus).time(name, size)
                                  for name in ("reduce_scatter", "allgather"))),
                       figure(bound(setup, "allreduce", 128, size)),
                       share(setup, "allreduce", 128, size, result.us)]
                    + [figure(flat(setup, "allreduce", 128, size, algo))
                       for algo in ("ring", "tree")])
    return table(["size", "us", "way", "chunks", "engine", "both stages inside, us", "bound, us",
                  "share", "NCCL's ring, us", "NCCL's tree, us"], rows)


def variants(setup):
    rows = []
    for name, changes in (
            [("as above", {})]
            + [(f"{latency} us a hop", {"latency": float(latency)}) for latency in (3, 7, 10)]
            + [(f"trees at {part:g} of the rate", {"tree_share": part}) for part in (0.7, 0.8, 1)]
            + [(f"{count} communicator{'s' * (count > 1)} a rail", {"communicators": count})
               for count in (1, 2, 8)]
            + [("one chunk", {"chunks": 1}),
               ("without two exchanges", {"ways": ("stages", "whole")}),
               ("without them, trees at 1, 3 us",
                {"ways": ("stages", "whole"), "tree_share": 1, "latency": 3.0})]):
        changed = variant(setup, **changes)
        chunks = str(hierarchical(changed, "allreduce", 128, GI).chunks)
        rows.append([name] + [cell(changed, 128, size) for size in (64 * KI, 16 * MI, 256 * MI, GI)]
                    + [chunks])
    return table(["", "64 KiB", "16 MiB", "256 MiB", "1 GiB", "chunks at 1 GiB"], rows)


def others(setup):
    rows = []
    for collective in COLLECTIVES[1:]:
        cells = []
        for size in SIZES:
            us = hierarchical(setup, collective, 128, size).us
            cells.append(f"{figure(us)}, {share(setup, collective, 128, size, us)} "
                         f"({figure(flat_best(setup, collective, 128, size))})")
        rows.append([collective] + cells)
    return table(["128 hosts"] + [size_name(size) for size in SIZES], rows)


def rule(_):
    """The rule for other numbers of GPUs, from two to four, over what four take."""
    derived, measured, rows = Inside(4, 2), Inside(4), []
    for collective in INSIDE:
        rows.append([collective] + [
            f"{derived.time(collective, size) / measured.time(collective, size):.2f}"
            for size in (KI,) + SIZES[:-1]])
    return table(["derived over measured"] + [size_name(size) for size in (KI,) + SIZES[:-1]], rows)


BLOCKS = {"figures": figures, "variants": variants, "others": others, "rule": rule,
          **{f"rate-{rate:g}": lambda setup, rate=rate: rate_table(setup, rate) for rate in RATES}}


def fill(path, setup):
    """(the page, the page with the tables of today)"""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    new = text
    for name, block in BLOCKS.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        if new.count(begin) != 1 or end not in new.split(begin)[1]:
            raise Bad(f"{path}: not one block {name}")
        before, after = new.split(begin)
        new = "\n".join([before + begin] + block(setup) + ["", ""]) + end + after.split(end, 1)[1]
    return text, new


def show(options):
    rows = []
    for hosts in options.hosts:
        for size in options.bytes:
            result = hierarchical(options, options.collective, hosts, size)
            rows.append([str(hosts), str(hosts * options.gpus), str(size), figure(result.us, 5)]
                        + choice(result)
                        + [figure(bound(options, options.collective, hosts, size), 5),
                           share(options, options.collective, hosts, size, result.us)]
                        + [figure(flat(options, options.collective, hosts, size, algo), 5)
                           for algo in ("ring", "tree")])
    print("\n".join(table(["hosts", "GPUs", "bytes", "us", "way", "chunks", "engine", "bound, us",
                           "share", "NCCL ring, us", "NCCL tree, us"], rows, 0)))


# ---- arguments -----------------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message):
        self.exit(2, f"scale.py: {message}\n")


def number(name, whole, many=False):
    """A converter for an option: a number, or several with commas between, within its limits."""
    def one(text):
        digits, scale = text, 1
        if name == "bytes" and text[-1:].upper() in ("K", "M", "G", "T"):
            digits, scale = text[:-1], 1 << 10 * ("KMGT".index(text[-1].upper()) + 1)
        try:
            value = (int if whole else float)(digits) * scale
        except ValueError:
            value = math.nan
        low, high = LIMITS[name]
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {low} to {high}")
        return value
    return (lambda text: [one(part) for part in text.split(",")]) if many else one


def some_ways(text):
    if not set(text.split(",")) <= set(WAYS):
        raise argparse.ArgumentTypeError(f"{text!r} is not some of {', '.join(WAYS)}")
    return text.split(",")


def main():
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--version", action="version", version=plot.version("scale.py"))
    add("--collective", choices=COLLECTIVES, default="allreduce")
    add("--hosts", type=number("hosts", True, True), default=HOSTS, metavar="H[,H...]")
    add("--gpus", type=number("gpus", True), default=8, metavar="G", help="of each host; 8")
    add("--bytes", type=number("bytes", True, True), default=SIZES, metavar="N[,N...]",
        help="of the larger buffer; K, M, G and T are powers of 1024")
    add("--rate", type=number("rate", False), default=50.0, metavar="GB/s",
        help="of each GPU's network link, one direction; 50")
    add("--latency", type=number("latency", False), default=LATENCY, metavar="us",
        help=f"of a hop of a short message over the network; {LATENCY:g}")
    add("--tree-share", type=number("tree_share", False), default=TREE_SHARE, metavar="SHARE",
        help=f"of the rate, that NCCL's trees reach; {TREE_SHARE}")
    add("--communicators", type=number("communicators", True), default=LANES, metavar="N",
        help=f"of each rail, that take the chunks in turn; {LANES}")
    add("--ways", type=some_ways, default=WAYS, metavar="WAY[,WAY]", help="not all of "
        + ", ".join(WAYS))
    add("--chunks", type=number("chunks", True), default=None, metavar="N",
        help="instead of the fastest number of " + ", ".join(str(count) for count in CHUNKS))
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--doc", action="store_true", help="print the tables of the page")
    mode.add_argument("--write", action="store_true", help="write them into the page")
    mode.add_argument("--check", action="store_true", help="exit status 1 if the page has others")
    mode.add_argument("--bed", metavar="FILE.csv", help="compare with what bed.sh has measured; "
                      "exit status 1 if a time is not within 15 %%")
    add("--document", metavar="FILE.md", help="the page; docs/scaling.md",
        default=os.path.relpath(os.path.join(HERE, "..", "..", "docs", "scaling.md")))
    options = parser.parse_args()
    # The page's tables do not depend on the other options.
    setup = parser.parse_args([])
    try:
        if options.bed:
            lines, good = bed_table(Bed(options.bed))
            print("\n".join(lines + ["", f"{good:.0%} of the times are within {WITHIN:.0%}"]))
            return 0 if good == 1 else 1
        if options.doc:
            for name, block in BLOCKS.items():
                print("\n".join([f"{name}:", ""] + block(setup) + [""]))
        elif options.write or options.check:
            old, new = fill(options.document, setup)
            if options.check and old != new:
                raise Bad(f"{options.document} has other tables than the simulation gives: run "
                          "bench/scale/scale.py --write")
            if old != new:
                with open(options.document, "w", encoding="utf-8") as file:
                    file.write(new)
        else:
            show(options)
    except (Bad, OSError) as error:
        print(f"scale.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
