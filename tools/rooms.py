#!/usr/bin/env python3
"""Draws docs/rooms.svg: the library's rooms, and which room uses which.

    tools/rooms.py             writes the picture
    tools/rooms.py --check     writes nothing; exit status 1 if the picture is out of date

It reads the sources in src/ROOM and the three in the root, from any folder. A room uses another if
one of its files includes a header of it. Numbers of files are exact. Numbers of lines are about
right, in hundreds: --check accepts a tenth more or less, so that not every edit changes the
picture.

Needs only Python 3.
"""
import argparse
import os
import re
import sys
from xml.sax.saxutils import escape

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PICTURE = "docs/rooms.svg"
ROOT_FILES = {"symwin.c": "symwin.c", "vmm_alloc.c": "memory", "multicast.c": "window"}

# Room: row from the top, left and right edge in columns, and what it is for. The arrows come from
# the code; only where the boxes stand is written here.
BOXES = {
    "symwin.c": (0, 0, 110, "communicators: create, destroy, split"),
    "rails": (1, 0, 74, "domains, and NCCL between them"),
    "channel": (2, 78, 110, "channels between two ranks"),
    "collective": (2, 42, 74, "collectives: select, order, launch"),
    "bootstrap": (3, 0, 38, "how ranks find each other"),
    "window": (3, 42, 110, "memory of all ranks at one offset; registered buffers"),
    "control": (4, 0, 62, "control page, frames, host links, mailbox, agreement"),
    "memory": (4, 66, 110, "physical memory, pool, addresses"),
    "driver": (5, 16, 90, "CUDA's driver or the emulated one"),
    "base": (6, 0, 110, "errors, settings, handle table, poll thread, SHA-256"),
    "inspect": (1, 118, 142, "what a process has"),
}
LAST_ROW = {"inspect": 4}  # of a box of several rows

MARGIN, COLUMN, HEIGHT, LANE, TOP = 20, 7, 74, 42, 20
WIDTH = 2 * MARGIN + 142 * COLUMN
INCLUDE = re.compile(r'^\s*#\s*include\s+"src/(\w+)/\w+\.h"', re.MULTILINE)
LINES = re.compile(r"about ([\d,]+) lines")


class Bad(Exception):
    """What is wrong, in a sentence."""


def sources():
    """(room, path) of every file, sorted."""
    found = [(room, name) for name, room in ROOT_FILES.items()]
    for room in os.listdir(os.path.join(ROOT, "src")):
        if room not in BOXES:
            raise Bad(f"src/{room} has no box: add it to BOXES in tools/rooms.py")
        names = os.listdir(os.path.join(ROOT, "src", room))
        found += [(room, f"src/{room}/{name}") for name in names if name.endswith((".c", ".h"))]
    return sorted(found)


def read():
    """Of each room its number of files, of lines, and the rooms that it uses."""
    rooms = {room: {"files": 0, "lines": 0, "uses": set()} for room in BOXES}
    for room, path in sources():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        rooms[room]["files"] += 1
        rooms[room]["lines"] += text.count("\n")
        rooms[room]["uses"].update(set(INCLUDE.findall(text)) - {room})
    return rooms


# ---- where things are ----

def left(room):
    return MARGIN + BOXES[room][1] * COLUMN


def right(room):
    return MARGIN + BOXES[room][2] * COLUMN


def top(room):
    return TOP + BOXES[room][0] * (HEIGHT + LANE)


def last_row(room):
    return LAST_ROW.get(room, BOXES[room][0])


def bottom(room):
    return TOP + last_row(room) * (HEIGHT + LANE) + HEIGHT


def free_column(user, used):
    """The middle of the widest way straight down between the boxes; None: there is none."""
    ways = [(max(left(user), left(used)), min(right(user), right(used)))]
    for other in BOXES:
        if last_row(user) < BOXES[other][0] < BOXES[used][0]:
            ways = [way for low, high in ways
                    for way in ((low, min(high, left(other))), (max(low, right(other)), high))]
    low, high = max(ways, key=lambda way: way[1] - way[0])
    return (low + high) / 2 if high - low > 2 * COLUMN else None


def is_beside(user, used):
    """Whether nothing stands between a tall box and one on its left."""
    row = BOXES[used][0]
    return BOXES[user][0] <= row <= last_row(user) and not any(
        BOXES[other][0] <= row <= last_row(other) and left(used) < left(other) < left(user)
        for other in BOXES)


def points_of(user, used):
    """The points of an arrow; None: it has no way between the boxes."""
    if BOXES[used][0] > last_row(user):
        x = free_column(user, used)
        return None if x is None else [(x, bottom(user)), (x, top(used))]
    if left(user) < right(used) or BOXES[used][0] < BOXES[user][0]:
        return None
    if is_beside(user, used):
        y = top(used) + HEIGHT / 2
        return [(left(user), y), (right(used), y)]
    x, y = right(used) - 4 * COLUMN, top(used) - LANE / 2  # by the lane above the used one
    start = [(left(user), y)]
    if y < top(user):
        start = [(left(user) + 4 * COLUMN, top(user)), (left(user) + 4 * COLUMN, y)]
    return start + [(x, y), (x, top(used))]


# ---- drawing ----

def arrow(user, used):
    """The arrow, and whether it is drawn over the boxes, because the layout has no way for it."""
    points = points_of(user, used)
    over = points is None
    style = 'stroke="#c92a2a" stroke-width="2"' if over else 'stroke="#212529"'
    if over:
        points = [((left(room) + right(room)) / 2, (top(room) + bottom(room)) / 2)
                  for room in (user, used)]
    elif user == "inspect":
        style = 'stroke="#868e96" stroke-dasharray="5 4"'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{points}" fill="none" {style} marker-end="url(#head)"/>', over


def count(room, files, lines):
    also = [name for name, home in ROOT_FILES.items() if home == room != name]
    text = f"{files} file{'' if files == 1 else 's'}, about {lines:,} lines"
    return text + (f", with {' and '.join(also)}" if also else "")


def box(room, files, lines):
    x, y, width = left(room), top(room), right(room) - left(room)
    middle, centre = x + width / 2, (y + bottom(room)) / 2
    what, size = BOXES[room][3], count(room, files, lines)
    texts = [(room, 'font-weight="bold" font-size="15"'), (what, ""), (size, 'fill="#495057"')]
    if room == "inspect":  # a narrow one
        texts[2:] = [(part, 'fill="#495057"') for part in size.split(", ", 1)]
    out = [f'<rect x="{x}" y="{y}" width="{width}" height="{bottom(room) - y}" rx="5" '
           'fill="#e7f5ff" stroke="#1864ab"/>']
    for i, (text, style) in enumerate(texts):
        out.append(f'<text x="{middle:.1f}" y="{centre + 4 + 20 * (i - (len(texts) - 1) / 2):.1f}" '
                   f'text-anchor="middle" {style}>{escape(text)}</text>'.replace(" >", ">"))
    return "\n".join(out)


def picture(rooms, lines):
    """The SVG. `lines`: of each room, as the picture says."""
    height = max(bottom(room) for room in BOXES) + 50
    out = ['<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '
           f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
           "<title>symwin's rooms, and which uses which</title>",
           "<!-- made by tools/rooms.py -->",
           '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
           'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
           '<path d="M0,0 L8,4 L0,8 z" fill="#212529"/></marker></defs>',
           '<rect width="100%" height="100%" fill="white"/>']
    arrows = [arrow(user, used) for user in BOXES for used in sorted(rooms[user]["uses"])]
    out += [text for text, over in arrows if not over]
    out += [box(room, rooms[room]["files"], lines[room]) for room in BOXES]
    out += [text for text, over in arrows if over]
    out.append(f'<text x="{MARGIN}" y="{height - 18}" fill="#495057">An arrow: files of the upper '
               "room include headers of the lower one. Dashed: inspect, which reads the others."
               "</text>")
    return "\n".join(out) + "\n</svg>\n"


def rounded(n):
    return max(100, (n + 50) // 100 * 100)


def check(rooms):
    try:
        with open(os.path.join(ROOT, PICTURE), encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise Bad(f"{PICTURE}: {error.strerror}") from error
    stated = [int(number.replace(",", "")) for number in LINES.findall(text)]
    if len(stated) != len(BOXES) or picture(rooms, dict(zip(BOXES, stated))) != text:
        raise Bad(f"{PICTURE} is not what the sources give: run tools/rooms.py")
    for room, lines in zip(BOXES, stated):
        now = rooms[room]["lines"]
        if abs(lines - now) > max(100, now // 10):
            raise Bad(f"{PICTURE} says that {room} has about {lines:,} lines, and it has {now:,}: "
                      "run tools/rooms.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    try:
        rooms = read()
        if options.check:
            check(rooms)
            return 0
        with open(os.path.join(ROOT, PICTURE), "w", encoding="utf-8") as file:
            file.write(picture(rooms, {room: rounded(rooms[room]["lines"]) for room in BOXES}))
    except (Bad, OSError, UnicodeError) as error:
        print(f"rooms.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
