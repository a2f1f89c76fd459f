/* Graphs as capture.c builds them. While a graph is being captured, the capture lock guards it. */
#ifndef SYMWIN_EMU_GRAPH_H
#define SYMWIN_EMU_GRAPH_H

#include "exec.h"

struct CUgraph_st *emu_graph_create(void); /* NULL: no memory */
void emu_graph_free(struct CUgraph_st *graph);

/* Registers the graph as a handle. */
CUresult emu_graph_publish(struct CUgraph_st *graph);

/* Adds a node with the op (moved) that depends on `deps`. NULL: no memory; the caller keeps the
 * op. */
CUgraphNode emu_graph_add(struct CUgraph_st *graph, struct emu_op *op, const CUgraphNode *deps,
                          size_t count);

/* Adds references that the graph and its instantiations hold. -1: no memory. */
int emu_graph_hold(struct CUgraph_st *graph, CUuserObject object, unsigned count);

/* user_object.c */
void emu_user_object_ref(CUuserObject object, unsigned count);
void emu_user_object_unref(CUuserObject object, unsigned count);

/* Whether every node of the graph is one of `ends` or precedes one of them. */
int emu_graph_leads_to(struct CUgraph_st *graph, const CUgraphNode *ends, size_t count);

#endif
