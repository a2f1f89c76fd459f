/* Graphs, as capture.c builds them. */
#ifndef SYMWIN_EMU_GRAPH_H
#define SYMWIN_EMU_GRAPH_H

#include "exec.h"

struct CUgraph_st *emu_graph_create(void); /* NULL: no memory */
void emu_graph_free(struct CUgraph_st *graph);

/* Makes it a handle. */
CUresult emu_graph_publish(struct CUgraph_st *graph);

/* Adds a node with the op (moved) behind `deps`. NULL: no memory, and the op is the caller's. */
CUgraphNode emu_graph_add(struct CUgraph_st *graph, struct emu_op *op, const CUgraphNode *deps,
                          size_t count);

/* References of the graph, and of what is instantiated of it. -1: no memory. */
int emu_graph_hold(struct CUgraph_st *graph, CUuserObject object, unsigned count);

/* user_object.c */
void emu_user_object_ref(CUuserObject object, unsigned count);
void emu_user_object_unref(CUuserObject object, unsigned count);

/* Whether each of its nodes is one of `ends` or comes before one of them. */
int emu_graph_leads_to(struct CUgraph_st *graph, const CUgraphNode *ends, size_t count);

#endif
