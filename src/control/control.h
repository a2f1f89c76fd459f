/* The room control: communication between processes, and the list of communicators. */
#ifndef SYMWIN_CONTROL_H
#define SYMWIN_CONTROL_H

#include "src/control/comm.h"
#include "src/control/connection.h"
#include "src/control/exchange.h"
#include "src/control/frame.h"
#include "src/control/group.h"
#include "src/control/host_link.h"
#include "src/control/mailbox.h"
#include "src/control/outbox.h"
#include "src/control/rank_table.h"

#endif
