/* The room window: memory of all ranks at one offset, and registered buffers. */
#ifndef SYMWIN_WINDOW_H
#define SYMWIN_WINDOW_H

#include "src/window/multicast.h"
#include "src/window/register.h"
#include "src/window/window_register.h"

#endif
