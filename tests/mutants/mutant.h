/* For make mutants: included before every source of the mutated tree. SW_MUTANT(n) is true if the
 * environment chooses mutation n. */
#ifndef SYMWIN_TESTS_MUTANT_H
#define SYMWIN_TESTS_MUTANT_H

#include <stdlib.h>

static int sw_mutant_chosen;

/* Runs before main() and all other constructors; afterwards the number is only read. */
__attribute__((constructor(101), unused)) static void sw_mutant_choose(void)
{
    const char *number = getenv("SW_MUTANT");

    sw_mutant_chosen = number != NULL ? atoi(number) : 0;
}

#define SW_MUTANT(number) __builtin_expect(sw_mutant_chosen == (number), 0)

#endif
