/* misuse_recurrent.h: the cases of test_misuse.c for recurrent layers. */

static mpt_cell_config recurrence_of(int64_t gates, int64_t in, int64_t hidden) {
    mpt_cell_config how = mpt_cell_config_default();
    how.weight_ih = mpt_ones(f.context, MPT_F32, MPT_SHAPE(gates * hidden, in));
    how.weight_hh = mpt_ones(f.context, MPT_F32, MPT_SHAPE(gates * hidden, hidden));
    return how;
}

TEST(recurrent_ops) {
    mpt_context *c = f.context;
    mpt_cell_config how = recurrence_of(1, 3, 2), bad = how, wide = recurrence_of(4, 3, 2);
    mpt_cell_config three = recurrence_of(3, 3, 2);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 5, 3)), h = f.nil;
    mpt_tensor empty = mpt_ones(c, MPT_F32, MPT_SHAPE(0, 5, 3));
    QUIET(mpt_cell_config_default, !how.batch_first);
    TENSOR(mpt_rnn, mpt_rnn(t_, &how, NULL));
    TENSOR(mpt_lstm, mpt_lstm(t_, &wide, NULL, NULL));
    TENSOR(mpt_gru, mpt_gru(t_, &three, NULL));
    CASE(mpt_rnn, BAD_HANDLE, "argument 2 is a null", mpt_rnn(x, NULL, NULL));
    bad.weight_hh = f.nil;
    CASE(mpt_rnn, BAD_HANDLE, "argument 3 is a null", mpt_rnn(x, &bad, NULL));
    CASE(mpt_rnn, SHAPE, "input [4, 8]", mpt_rnn(f.x, &how, NULL));
    CASE(mpt_rnn, SHAPE, "of a step or more", mpt_rnn(empty, &how, NULL));
    CASE(mpt_lstm, SHAPE, "expected [4 hidden, 3]", mpt_lstm(x, &how, NULL, NULL));
    CASE(mpt_gru, SHAPE, "expected [3 hidden, 3]", mpt_gru(x, &how, NULL));
    bad = how, bad.weight_ih = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 4));
    CASE(mpt_rnn, SHAPE, "as many as x has features", mpt_rnn(x, &bad, NULL));
    bad = how, bad.weight_hh = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3));
    CASE(mpt_rnn, SHAPE, "weight_hh [2, 3]", mpt_rnn(x, &bad, NULL));
    bad = how, bad.weight_hr = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 2));
    CASE(mpt_rnn, SHAPE, "weight_hr [1, 2]", mpt_rnn(x, &bad, NULL));
    bad = wide, bad.weight_hr = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 2));
    CASE(mpt_lstm, SHAPE, "weight_hr [1, 2]", mpt_lstm(x, &bad, NULL, NULL));
    bad = how, bad.bias_ih = mpt_ones(c, MPT_F32, MPT_SHAPE(3));
    CASE(mpt_rnn, SHAPE, "bias_ih [3]", mpt_rnn(x, &bad, NULL));
    bad = how, bad.bias_hh = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 1));
    CASE(mpt_rnn, SHAPE, "bias_hh [2, 1]", mpt_rnn(x, &bad, NULL));
    h = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 2));
    CASE(mpt_rnn, SHAPE, "state h [4, 2]", mpt_rnn(x, &how, &h));
    h = mpt_ones(c, MPT_F32, MPT_SHAPE(5, 3));
    CASE(mpt_lstm, SHAPE, "state c [5, 3]", mpt_lstm(x, &wide, NULL, &h));
    h = mpt_ones(c, MPT_F16, MPT_SHAPE(5, 2));
    CASE(mpt_rnn, DTYPE, "mpt_autocast_begin", mpt_rnn(x, &how, &h));
    bad = how, bad.lengths = mpt_ones(c, MPT_F32, MPT_SHAPE(5));
    CASE(mpt_rnn, DTYPE, "lengths are float32", mpt_rnn(x, &bad, NULL));
    bad.lengths = mpt_ones(c, MPT_I64, MPT_SHAPE(4));
    CASE(mpt_rnn, SHAPE, "lengths [4]", mpt_rnn(x, &bad, NULL));
}

TEST(recurrent_layers) {
    mpt_context *c = f.context;
    mpt_recurrent_config config = mpt_recurrent_config_default(), bad = config;
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 5, 3)), in[4], out[4];
    QUIET(mpt_recurrent_config_default, config.layers == 1);
    NOWHERE(mpt_nn_rnn, mpt_nn_rnn(NULL, 3, 2, NULL).slot == 0);
    NOWHERE(mpt_nn_lstm, mpt_nn_lstm(NULL, 3, 2, NULL).slot == 0);
    NOWHERE(mpt_nn_gru, mpt_nn_gru(NULL, 3, 2, NULL).slot == 0);
    NOWHERE(mpt_nn_rnn_cell, mpt_nn_rnn_cell(NULL, 3, 2, NULL).slot == 0);
    NOWHERE(mpt_nn_lstm_cell, mpt_nn_lstm_cell(NULL, 3, 2, NULL).slot == 0);
    NOWHERE(mpt_nn_gru_cell, mpt_nn_gru_cell(NULL, 3, 2, NULL).slot == 0);
    CASE(mpt_nn_rnn, ARGUMENT, "0 -> 2 features", mpt_nn_rnn(c, 0, 2, NULL));
    bad.layers = 65;
    CASE(mpt_nn_gru, ARGUMENT, "65 layers", mpt_nn_gru(c, 3, 2, &bad));
    bad = config, bad.dropout = 2;
    CASE(mpt_nn_lstm, ARGUMENT, "dropout 2", mpt_nn_lstm(c, 3, 2, &bad));
    bad = config, bad.projection = 2;
    CASE(mpt_nn_lstm, ARGUMENT, "projection 2", mpt_nn_lstm(c, 3, 2, &bad));
    bad.projection = 1;
    CASE(mpt_nn_gru, ARGUMENT, "of an LSTM", mpt_nn_gru(c, 3, 2, &bad));
    CASE(mpt_nn_lstm_cell, ARGUMENT, "of an LSTM", mpt_nn_lstm_cell(c, 3, 2, &bad));
    bad = config, bad.relu = true;
    CASE(mpt_nn_gru_cell, ARGUMENT, "relu is for an RNN", mpt_nn_gru_cell(c, 3, 2, &bad));
    bad = config, bad.bidirectional = true;
    CASE(mpt_nn_rnn_cell, ARGUMENT, "one step of one layer", mpt_nn_rnn_cell(c, 3, 2, &bad));
    mpt_module lstm = mpt_nn_lstm(c, 3, 2, NULL), cell = mpt_nn_gru_cell(c, 3, 2, NULL);
    in[0] = in[1] = in[2] = in[3] = x;
    CASE(mpt_nn_lstm, ARGUMENT, "then h and c or nothing", mpt_forward_n(lstm, in, 2, out, 1);
         case_function = "mpt_forward");
    CASE(mpt_nn_lstm, ARGUMENT, "at most 3 outputs", mpt_forward_n(lstm, in, 3, out, 4);
         case_function = "mpt_forward");
    CASE(mpt_nn_lstm, SHAPE, "state h [4, 5, 3]: expected [1, 5, 2]",
         mpt_forward_n(lstm, in, 3, out, 1);
         case_function = "mpt_forward");
    CASE(mpt_nn_lstm, SHAPE, "input []", mpt_forward(lstm, f.scalar);
         case_function = "mpt_forward");
    CASE(mpt_nn_gru_cell, ARGUMENT, "at most 1 outputs", mpt_forward_n(cell, in, 1, out, 2);
         case_function = "mpt_forward");
    CASE(mpt_nn_gru_cell, SHAPE, "or [features]", mpt_forward(cell, x);
         case_function = "mpt_forward");
}
