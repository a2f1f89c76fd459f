#!/bin/sh
# Writes the C source that embeds fat binaries as the table of fatbins.h.
#
#   usage: tools/embed.sh FILE.fatbin... > fatbins.c
#
# The files are read by the assembler (.incbin), so their paths have to be good where that runs.
set -eu

cat <<'END'
/* Made by tools/embed.sh. */
#include "fatbins.h"
END

for file; do
    name=$(basename "$file" .fatbin)
    cat <<END

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl sw_fatbin_$name\n"
        ".hidden sw_fatbin_$name\n"
        "sw_fatbin_$name:\n"
        ".incbin \"$file\"\n"
        ".popsection\n");
extern const unsigned char sw_fatbin_$name[];
END
done

printf '\nconst struct sw_fatbin sw_fatbins[] = {\n'
for file; do
    name=$(basename "$file" .fatbin)
    printf '    {"%s", sw_fatbin_%s, %s},\n' "$name" "$name" "$(wc -c <"$file" | tr -d ' ')"
done
printf '    {NULL, NULL, 0},\n};\n'
printf 'const size_t sw_fatbin_count = %d;\n' "$#"
