/* The room collective. */
#ifndef SYMWIN_COLLECTIVE_H
#define SYMWIN_COLLECTIVE_H

#include "src/collective/calls.h"
#include "src/collective/copies.h"
#include "src/collective/grouped.h"
#include "src/collective/kernel_table.h"
#include "src/collective/order.h"
#include "src/collective/pairs.h"
#include "src/collective/select.h"
#include "src/collective/table.h"

#endif
