/* mptrain_tools.h - what looks at a training: logs for TensorBoard, spreadsheets and scripts; what
   is wrong with it, where, and what to do; what the machine does and how fast; nets as ONNX.

   One header beside mptrain.h, of which it needs the declarations alone. In one file of a program:

       #define MPTRAIN_TOOLS_IMPLEMENTATION
       #include "mptrain_tools.h"

   and in all others the include alone. C11 and C++17; nothing but libc. The licence is that of
   mptrain.h.

       mpt_journal_config jc = mpt_journal_config_default();
       jc.tensorboard = "runs/first";             // tensorboard --logdir runs
       jc.csv = "first.csv";
       mpt_journal *journal = mpt_journal_open(&jc);
       mpt_fit_config config = mpt_fit_config_default();
       config.progress = mpt_journal_fit;         // loss, rate, scale, norm, speed, memory
       config.user = journal;
       mpt_fit(net, optimizer, train, &config);
       if (mpt_journal_close(journal) != MPT_OK) ...

   A loop of yours calls mpt_journal_scalar and its like by itself. Opened again, a journal goes on
   where it was: a record that a killed process left half written is cut off, and mpt_journal_rewind
   takes back what was logged behind the checkpoint that training goes on from, so that in the end
   the files are those of a training that was never interrupted, but for the times in them.
   mpt_journal_fit does that by itself.

   Where a net does not learn, look at some steps of it from inside:

       char text[8192];
       mpt_diagnose(net, optimizer, loader, NULL, text, sizeof text, NULL);
       puts(text);

   names the layer whose outputs fp16 does not hold, gradients that vanish, a rate that is too
   large, inputs that are not normalised, and other faults, twenty-two kinds in all, and leaves the
   training as it was.
   mpt_compare_precisions trains it in five precisions side by side; mpt_machine_measure and
   mpt_machine_report tell what this machine does, which `make doctor` prints.

   mpt_trace_write makes a file for ui.perfetto.dev of what mpt_profile_begin has kept.

   mpt_trace of mptrain.h sees what a net computes; here that becomes a table with shapes and
   parameters (mpt_graph_summary), a picture (mpt_graph_svg, or mpt_graph_dot for Graphviz), and
   what TensorBoard draws (mpt_journal_graph). A report is a training as one page of HTML:

       mpt_report *report = mpt_report_open("report.html", NULL);
       config.progress = mpt_report_fit, config.user = report;
       mpt_fit(net, optimizer, train, &config);
       mpt_report_net(report, net, mpt_trace(net, &x, 1)); // drawn, weights, gradients, filters
       mpt_report_close(report);

   which a browser shows while the training runs, too.

   mpt_onnx_export writes a net as a file that other runtimes run, for batches of any size, with the
   names of its weights:

       char why[256];
       mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(1, 784)); // what the net takes
       if (mpt_onnx_export(net, &x, 1, "net.onnx", NULL, why, sizeof why) != MPT_OK) puts(why);

   examples/onnx.c is a whole program that does so.

   mpt_zeroth_step fine-tunes a net by forwards alone, in the memory of inference; `loss` is yours:

       mpt_eval(net);
       for (int64_t step = 0; step < 10000; step++)
           if (mpt_zeroth_step(net, loss, &batch, NULL, step).status != MPT_OK) break;

   MPTRAIN_TOOLS_STATIC keeps all functions to one file. */
