/* mptrain_tools.h - files about a training: logs for TensorBoard, spreadsheets and scripts.

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

   MPTRAIN_TOOLS_STATIC keeps all functions to one file. */
