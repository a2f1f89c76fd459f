#!/bin/sh
# Writes the C source that embeds fat binaries as the table of fatbins.h, or as one of another name.
#
#   usage: [TABLE=sw] tools/embed.sh FILE.fatbin... > fatbins.c
#
# The table is ${TABLE}_fatbins, and ${TABLE}_fatbin_count is its length.
# The files are read by the assembler (.incbin), so their paths have to be good where that runs.
set -eu
table=${TABLE:-sw}

cat <<'END'
/* Made by tools/embed.sh. */
#include "fatbins.h"
END

for file; do
    name=$(basename "$file" .fatbin)
    cat <<END

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl ${table}_fatbin_$name\n"
        ".hidden ${table}_fatbin_$name\n"
        "${table}_fatbin_$name:\n"
        ".incbin \"$file\"\n"
        ".popsection\n");
extern const unsigned char ${table}_fatbin_$name[];
END
done

printf '\nextern const struct sw_fatbin %s_fatbins[];\nextern const size_t %s_fatbin_count;\n' "$table" "$table"
printf '\nconst struct sw_fatbin %s_fatbins[] = {\n' "$table"
for file; do
    name=$(basename "$file" .fatbin)
    printf '    {"%s", %s_fatbin_%s, %s},\n' "$name" "$table" "$name" "$(wc -c <"$file" | tr -d ' ')"
done
printf '    {NULL, NULL, 0},\n};\n'
printf 'const size_t %s_fatbin_count = %d;\n' "$table" "$#"
