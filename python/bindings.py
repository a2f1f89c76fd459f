#!/usr/bin/env python3
"""Writes symwin/_api.py, the ctypes declarations of symwin.h, from the header and its parts.

    python/bindings.py HEADER_FOLDER OUTPUT

Status, type and operation values, structs and prototypes have one source: what is declared there
with SYMWIN_API, an X list, an enum or a typedef struct. What this script does not understand in
such a declaration is an error, never left out.
"""
import re
import sys
from pathlib import Path

PARTS = ["symwin.h"] + [
    f"symwin/{name}.h"
    for name in "channel collective driver inspect launch memory register".split()
]

# C type -> expression of ctypes. Pointers to structs that are declared are POINTER(struct).
PLAIN = {
    "void": "None", "int": "c_int", "unsigned": "c_uint", "size_t": "c_size_t",
    "ptrdiff_t": "c_ssize_t", "uint64_t": "c_uint64", "int64_t": "c_int64",
    "unsigned char": "c_ubyte", "char": "c_char", "float": "c_float", "double": "c_double",
}  # fmt: skip


class Unknown(Exception):
    pass


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return text.replace("\\\n", " ")


def expression(ctype, structs, enums):
    """The ctypes expression of a C type such as 'const symwin_parts *'."""
    stars = ctype.count("*")
    words = [w for w in ctype.replace("*", " ").split() if w not in ("const", "struct", "enum")]
    name = " ".join(words)
    if name in enums:
        name = "int"
    if name.endswith("_fn"):
        return "c_void_p"
    if stars == 0:
        if name in structs:
            return name
        if name not in PLAIN:
            raise Unknown(f"type {ctype!r}")
        return PLAIN[name]
    if stars == 1 and name == "char":
        return "c_char_p"
    if stars == 1 and name in structs:
        return f"POINTER({name})"
    if stars == 1 and name in PLAIN and name not in ("void", "unsigned char"):
        return f"POINTER({PLAIN[name]})"
    if stars == 1:
        return "c_void_p"  # opaque, or bytes
    if stars == 2:
        return "POINTER(c_void_p)"
    raise Unknown(f"type {ctype!r}")


def declarator(text):
    """('const void *', 'ptr', None) of 'const void *ptr'; the last is an array's length."""
    match = re.fullmatch(r"(.*?[\s*])(\w+)\s*(?:\[(\w+)\])?", text.strip(), flags=re.S)
    if not match:
        raise Unknown(f"declaration {text!r}")
    return " ".join(match[1].split()), match[2], match[3]


def fields(body, structs, enums):
    for line in filter(None, (" ".join(d.split()) for d in body.split(";"))):
        first, *more = line.split(",")
        ctype, name, length = declarator(first)
        declared = [(name, length)]
        for other in more:  # int domains, domain
            match = re.fullmatch(r"\s*(\w+)\s*(?:\[(\w+)\])?\s*", other)
            if not match:
                raise Unknown(f"declaration {line!r}")
            declared.append((match[1], match[2]))
        for name, length in declared:
            yield name, expression(ctype, structs, enums) + (f" * {length}" if length else "")


def bind(folder):
    text = "\n".join(without_comments((Path(folder) / part).read_text()) for part in PARTS)
    out = ['"""Generated from symwin.h by python/bindings.py."""', "from ctypes import *", ""]
    enums = set(re.findall(r"typedef enum (\w+)", text))
    names = re.findall(r"typedef struct (\w+) \{", text)

    plain = r"#define (SYMWIN_\w+) (\(?-?\d+\)?|\"[^\"]*\")\s*$"
    for match in re.finditer(plain, text, flags=re.M):
        out.append(f"{match[1]} = {match[2]}")
    for match in re.finditer(r"#define SYMWIN_(\w+)_LIST\(X\)(.*)$", text, flags=re.M):
        entries = re.findall(r"X\((\w+), (\d+)(?:, (\w+|\"[^\"]*\"))?", match[2])
        if len(entries) != match[2].count("X("):
            raise Unknown(f"SYMWIN_{match[1]}_LIST")
        out += [f"{name} = {value}" for name, value, _ in entries]
        if entries[0][2].isidentifier():  # the short names; those of SYMWIN_STATUS_LIST are texts
            out.append(f"{match[1]}_NAMES = { {text: int(value) for _, value, text in entries} }")
    for match in re.finditer(r"enum(?: \w+)? \{([^}#]*)\}", text):
        for entry in filter(None, (e.strip() for e in match[1].split(","))):
            parts = re.fullmatch(r"(\w+) = (-?\d+)", entry)
            if not parts:
                raise Unknown(f"enumerator {entry!r}")
            out.append(f"{parts[1]} = {parts[2]}")
    out.append("")
    for match in re.finditer(r"typedef struct (\w+) \{(.*?)\n?\} (\w+);", text, flags=re.S):
        known = set(names[: names.index(match[1])])
        out.append(f"\nclass {match[1]}(Structure):")
        rows = ",\n".join(f'        ("{n}", {e})' for n, e in fields(match[2], known, enums))
        out.append(f"    _fields_ = [\n{rows},\n    ]")
    for alias in re.findall(r"typedef (symwin_\w+) (symwin_\w+);", text):
        if alias[0] in names:
            out.append(f"\n{alias[1]} = {alias[0]}")
            names.append(alias[1])

    out.append("\nPROTOTYPES = {")
    count = 0
    for match in re.finditer(r"SYMWIN_API ([\w\s*]+?)(\w+)\(([^)]*)\);", text):
        arguments = [] if match[3].strip() == "void" else [
            expression(declarator(a)[0], names, enums) for a in match[3].split(",")
        ]  # fmt: skip
        returned = expression(match[1], names, enums)
        out.append(f'    "{match[2]}": ({returned}, [{", ".join(arguments)}]),')
        count += 1
    out.append("}")
    declared = len(re.findall(r"^SYMWIN_API ", text, flags=re.M))
    if count != declared:
        raise Unknown(f"{declared - count} of {declared} functions")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        text = bind(sys.argv[1])
    except (Unknown, OSError) as error:
        sys.exit(f"bindings.py: not understood: {error}")
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
