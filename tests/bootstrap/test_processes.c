/* Ranks as processes on one host: creation, windows, all-reduce, and nothing left behind. */
#include "processes.h"

int main(void)
{
    processes_run("one", 1, everything, NULL);
    processes_run("two", 2, everything, NULL);
    processes_run("four", 4, everything, NULL);
    return tap_done();
}
