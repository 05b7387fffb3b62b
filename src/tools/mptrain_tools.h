/* The spine of the tools: what only looks at a training and writes files about it. It stands on the
   public API of mptrain.h alone. tools/amalgamate.c makes ../../tools/mptrain_tools.h from it. */
#include "face/manual.h"
#include "face/journal.h"
#include "face/machine.h"
#include "face/diagnose.h"
#include "face/precisions.h"
#include "face/zeroth.h"
#include "face/trace.h"
#include "face/graph.h"
#include "face/report.h"

#if defined(MPTRAIN_TOOLS_IMPLEMENTATION) && !defined(MPT__TOOLS_IMPLEMENTED)
#define MPT__TOOLS_IMPLEMENTED
#include "files.c"
#include "numbers.c"
#include "records.c"
#include "events.c"
#include "journal.c"
#include "text.c"
#include "machine.c"
#include "diagnose.c"
#include "precisions.c"
#include "zeroth.c"
#include "trace.c"
#include "graph.c"
#include "graph_event.c"
#include "drawing.c"
#include "charts.c"
#include "report.c"
#endif
