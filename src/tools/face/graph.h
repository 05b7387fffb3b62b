/* ----
 * tools/face/graph.h: a net in a table and in pictures.
 * ---- */
#ifndef MPT__FACE_GRAPH_INCLUDED
#define MPT__FACE_GRAPH_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== The net seen ====
 *
 * What mpt_trace has seen of a net, for people. */

/* The modules of the net that was traced, nested ones indented, with what they gave and how many
   parameters they have; then totals: trainable, frozen, bytes, FLOP of a forward pass. Writes at
   most `capacity` bytes, the last one 0, and returns the length of the whole text; 0 on error. */
MPTRAIN_TOOLS_API size_t mpt_graph_summary(
    mpt_graph graph, mpt_module net, char *text, size_t capacity);
/* A file for Graphviz: `dot -Tpdf net.dot`. Boxes are ops, with shapes, dtypes and numbers of
   parameters, in frames of their modules. MPT_ERROR_IO where the file cannot be written. */
MPTRAIN_TOOLS_API mpt_status mpt_graph_dot(mpt_graph graph, const char *path);
/* The same as a picture that browsers show, light or dark as they are; without Graphviz. */
MPTRAIN_TOOLS_API mpt_status mpt_graph_svg(mpt_graph graph, const char *path);

#ifdef __cplusplus
}
#endif
#endif
