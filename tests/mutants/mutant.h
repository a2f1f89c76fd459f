/* For make mutants: read before every source of the mutated tree. SW_MUTANT(n) holds where n is the mutation that
 * the environment chooses. */
#ifndef SYMWIN_TESTS_MUTANT_H
#define SYMWIN_TESTS_MUTANT_H

#include <stdlib.h>

static int sw_mutant_chosen;

/* Before main() and all other constructors: later it is only read. */
__attribute__((constructor(101), unused)) static void sw_mutant_choose(void)
{
    const char *number = getenv("SW_MUTANT");

    sw_mutant_chosen = number != NULL ? atoi(number) : 0;
}

#define SW_MUTANT(number) __builtin_expect(sw_mutant_chosen == (number), 0)

#endif
