/* Names and sizes of the enumerations that callers see: types, operations, algorithms,
 * collectives. */
#include <stddef.h>

#include "symwin.h"

size_t symwin_type_bytes(symwin_type type)
{
    switch (type) {
#define TYPE_CASE(name, value, text, bytes)                                                        \
    case name:                                                                                     \
        return bytes;
        SYMWIN_TYPE_LIST(TYPE_CASE)
#undef TYPE_CASE
    }
    return 0;
}

const char *symwin_type_name(symwin_type type)
{
    switch (type) {
#define TYPE_CASE(name, value, text, bytes)                                                        \
    case name:                                                                                     \
        return #text;
        SYMWIN_TYPE_LIST(TYPE_CASE)
#undef TYPE_CASE
    }
    return NULL;
}

const char *symwin_op_name(symwin_op op)
{
    switch (op) {
#define OP_CASE(name, value, text)                                                                 \
    case name:                                                                                     \
        return #text;
        SYMWIN_OP_LIST(OP_CASE)
#undef OP_CASE
    }
    return NULL;
}

const char *symwin_algo_name(symwin_algo algo)
{
    switch (algo) {
#define ALGO_CASE(name, value, text)                                                               \
    case name:                                                                                     \
        return #text;
        SYMWIN_ALGO_LIST(ALGO_CASE)
#undef ALGO_CASE
    }
    return NULL;
}

const char *symwin_collective_name(symwin_collective collective)
{
    switch (collective) {
#define COLLECTIVE_CASE(name, value, text)                                                         \
    case name:                                                                                     \
        return #text;
        SYMWIN_COLLECTIVE_LIST(COLLECTIVE_CASE)
#undef COLLECTIVE_CASE
    }
    return NULL;
}
