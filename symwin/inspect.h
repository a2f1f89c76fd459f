/* For searching faults: a part of symwin.h, which includes this.
 */
#ifndef SYMWIN_API_INSPECT_H
#define SYMWIN_API_INSPECT_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes what this process has of symwin to a descriptor: its pools of memory, and its communicators with their
 * windows. Lines of text; each begins with a word that says what it is of, most go on with a name for it, and then have
 * key=value pairs in this order. Addresses are in hexadecimal, all other numbers are decimal; flags are words with commas
 * between them, or "-". Later versions may add lines and, at the end of lines, pairs.
 *
 *   symwin-dump 1 pid= version=        the first line; 1 is the version of the format
 *   device D ...                       one for each device whose pools ever had anything: the members of
 *                                      symwin_mem_usage, by their names
 *   arena N device= flags= thread= keep= unit= allocations= used=
 *                                      a thread's pool for a device and kind of memory. flags: peers, nccl; thread:
 *                                      alive or ended. Imported memory has an arena with device=-1 and flags=imported
 *   chunk ADDRESS arena= device= bytes= use= allocations= kept=
 *                                      physical memory. use: carved, own or imported; kept=1: all of it is free
 *   alloc ADDRESS chunk= offset= asked= bytes= windows=
 *                                      what symwin_mem_alloc() or _import() returned, in its chunk; windows= counts
 *                                      those on it, and registered ranges
 *   comm N rank= nranks= device= base= stride= multicast= allocations= windows=
 *   window ADDRESS comm= bytes= offset= transports= allocations=
 *                                      offset in the flat range; transports: peer, multicast; allocations: physical
 *                                      ones of this rank that it lies on
 *   range ADDRESS comm= bytes= local= graph= nccl= transports=
 *                                      what symwin_register() knows, with its references; nccl=1: an attached NCCL
 *                                      has it; transports: as a window's, none before the first call, or refused
 *   channel ADDRESS comm= peer= bytes= lanes= state= memory=
 *                                      this rank's end of one. state: offered, connected, failed; memory: window, other, none
 *   end lines=                         so many lines before it: what has no such line is not whole
 *
 * Chunks follow their arena, and their allocations follow them; windows, ranges and channels their communicator. Any thread, at any time;
 * calls no driver. Lines of one arena, or of one communicator, are of one moment; the whole is not, where other threads
 * go on. Waits for whoever reads the descriptor, but holds up no other call then. A pipe or socket that nobody reads
 * gives a status and no SIGPIPE.
 *
 *   SYMWIN_INVALID    fd is no descriptor that can be written to
 *   SYMWIN_NO_MEMORY  no host memory for the text, or no room where it goes: a part may have been written
 *   SYMWIN_DENIED     it cannot be written for another reason, which the text names: the same
 *   SYMWIN_FORKED     in a forked child of a process that used symwin */
SYMWIN_API symwin_status symwin_dump(int fd);

#ifdef __cplusplus
}
#endif
#endif
