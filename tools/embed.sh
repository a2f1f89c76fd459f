#!/bin/sh
# Writes a C source that embeds files as a table: fat binaries as the table of fatbins.h, or with
# KIND other files as the table of ${KIND}s.h.
#
#   usage: [TABLE=sw] [KIND=fatbin] tools/embed.sh FILE... > fatbins.c
#
# The table is ${TABLE}_${KIND}s, an array of struct sw_${KIND}, with the length
# ${TABLE}_${KIND}_count.
# The assembler reads the files (.incbin), so their paths must be valid where it runs.
set -eu
table=${TABLE:-sw}
kind=${KIND:-fatbin}

# The file's name without its extension; in symbols _ replaces other characters.
name() { basename "${1%.*}"; }
symbol() { printf '%s_%s_%s' "$table" "$kind" "$(name "$1" | tr -c 'A-Za-z0-9\n' _)"; }

cat <<'END'
/* Made by tools/embed.sh. */
END
case $kind in
fatbin) printf '#include "src/driver/fatbins.h"\n' ;;
*) printf '#include "src/collective/tables.h"\n' ;;
esac

for file; do
    symbol=$(symbol "$file")
    cat <<END

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl $symbol\n"
        ".hidden $symbol\n"
        "$symbol:\n"
        ".incbin \"$file\"\n"
        ".popsection\n");
extern const unsigned char $symbol[];
END
done

printf '\nextern const struct sw_%s %s_%ss[];\nextern const size_t %s_%s_count;\n' \
    "$kind" "$table" "$kind" "$table" "$kind"
printf '\nconst struct sw_%s %s_%ss[] = {\n' "$kind" "$table" "$kind"
for file; do
    printf '    {"%s", %s, %s},\n' "$(name "$file")" "$(symbol "$file")" \
        "$(wc -c <"$file" | tr -d ' ')"
done
printf '    {NULL, NULL, 0},\n};\n'
printf 'const size_t %s_%s_count = %d;\n' "$table" "$kind" "$#"
