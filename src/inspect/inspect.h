/* What a process has, as text: dump.c writes it, info_socket.c sends it to symwin-info --pid. */
#ifndef SYMWIN_INSPECT_H
#define SYMWIN_INSPECT_H

#include <sys/types.h>
#include <sys/un.h>

#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

/* Makes the text of symwin_dump(). `call`: the name for error texts. The caller frees *bytes. */
symwin_status sw_dump_text(const char *call, char **bytes, size_t *count);

/* The address of a process's socket, in number `which` of the SW_TEMP_FOLDERS. `make`: creates its
 * private folder there. 0: there is none, or its name is too long or not absolute. */
int sw_info_socket_address(int which, int make, pid_t pid, struct sockaddr_un *address);

#endif
