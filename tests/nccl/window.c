/* Puts a window of symwin on memory of ncclMemAlloc: both libraries share one pool. */
#include <stdio.h>
#include <symwin.h>

#include "nccl.h"

int main(void)
{
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    symwin_mem_info info;
    symwin_unique_id id;
    void *memory = NULL;

    printf("alloc: %d\n", ncclMemAlloc(&memory, 100000));
    if (symwin_mem_query(memory, &info) != SYMWIN_OK || symwin_unique_id_create(&id) != SYMWIN_OK ||
        symwin_comm_create(&id, 1, 0, 0, NULL, &comm) != SYMWIN_OK ||
        symwin_window_register(comm, memory, 100000, 0, &window) != SYMWIN_OK) {
        printf("%s\n", symwin_last_error());
        return 1;
    }
    printf("owned %d\n", info.owned);
    printf("free under a window: %d\n", ncclMemFree(memory));
    if (symwin_window_deregister(comm, window) != SYMWIN_OK)
        printf("%s\n", symwin_last_error());
    printf("free: %d\n", ncclMemFree(memory));
    symwin_comm_destroy(comm);
    return 0;
}
