/* Debugging: a part of symwin.h, which includes this.
 */
#ifndef SYMWIN_API_INSPECT_H
#define SYMWIN_API_INSPECT_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the state of symwin in this process to a descriptor: memory pools, and communicators with
 * their windows. The output is lines of text. Each begins with its kind; most continue with a name,
 * and then have key=value pairs in the order below. Addresses are hexadecimal, other numbers
 * decimal. Flags are words with commas between them, or "-". Later versions may add lines, and
 * pairs at line ends.
 *
 *   symwin-dump 1 pid= version=        the first line; 1 is the version of the format
 *   device D ...                       each device whose pools ever held memory: the members of
 *                                      symwin_mem_usage, by their names
 *   arena N device= flags= thread= keep= unit= allocations= used=
 *                                      a thread's pool for a device and kind of memory. flags:
 *                                      peers, nccl. thread: alive or ended. Imported memory has an
 *                                      arena with device=-1 and flags=imported
 *   chunk ADDRESS arena= device= bytes= use= allocations= kept=
 *                                      physical memory. use: suballocated, own or imported.
 *                                      kept=1: all of it is free
 *   alloc ADDRESS chunk= offset= asked= bytes= windows=
 *                                      a result of symwin_mem_alloc() or symwin_mem_import(), in
 *                                      its chunk. windows: what keeps it from being freed, which
 *                                      are windows, registered ranges, channels and graphs
 *   comm N rank= nranks= device= base= stride= multicast= allocations= windows= name=
 *                                      name: of symwin_comm_set_name(), or -
 *   domain N comm= domains= rank= ranks= rails=
 *                                      of a communicator over several domains: this rank's, and its
 *                                      rank there. Windows are listed with the communicator of the
 *                                      domain, which comes too
 *   window ADDRESS comm= bytes= offset= transports= allocations=
 *                                      offset: in the flat range. transports: peer, multicast.
 *                                      allocations: this rank's physical allocations under it
 *   range ADDRESS comm= bytes= local= graph= nccl= transports=
 *                                      a range of symwin_register(), with its references. nccl=1:
 *                                      registered with an attached NCCL. transports: as a window's,
 *                                      none before the first call, or refused
 *   channel ADDRESS comm= peer= bytes= lanes= state= memory=
 *                                      this rank's end of a channel. state: offered, connected or
 *                                      failed. memory: window, other or none
 *   end lines=                         number of lines before this one; without it the output is
 *                                      incomplete
 *
 * Chunks follow their arena, and allocations their chunk; domain, windows, ranges and channels
 * follow their communicator. Lines of one arena, or of one communicator, are from one moment; the
 * whole output is not, if other threads go on.
 *
 * Any thread, at any time; makes no driver call. It waits for the reader of the descriptor, but
 * meanwhile blocks no other call. A pipe or socket without a reader gives a status, no SIGPIPE.
 *
 *   SYMWIN_INVALID    fd is no descriptor that can be written to
 *   SYMWIN_NO_MEMORY  no host memory for the text, or no space at the destination; a part may have
 *                     been written
 *   SYMWIN_DENIED     the write failed for another reason, which the text names; a part may have
 *                     been written
 *   SYMWIN_FORKED     in a forked child of a process that used symwin */
SYMWIN_API symwin_status symwin_dump(int fd);

/* Sets the name of a communicator in symwin_dump() and symwin-info, on this rank alone. The first
 * 63 characters count, and all but ASCII letters, digits and _-.:/# become _. Any thread, before
 * symwin_comm_destroy() begins.
 *
 *   SYMWIN_INVALID    comm or name is NULL
 *   SYMWIN_FORKED     as above */
SYMWIN_API symwin_status symwin_comm_set_name(symwin_comm *comm, const char *name);

#ifdef __cplusplus
}
#endif
#endif
