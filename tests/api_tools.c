/* api_tools.c: mptrain_tools.h, which is made of public functions alone. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

#include "harness.h"

static mpt_context *context;

static bool begin(void) {
    mpt_config config = mpt_config_default();
    config.threads = 2;
    return (context = mpt_create(&config)) != NULL;
}
static void end(void) { mpt_destroy(context); }

/* Every capacity gets the beginning of the text and a 0, and nothing behind it. */
static bool fits_every_room(const mpt_machine *machine, const char *whole, size_t length) {
    char text[4096];
    for (size_t room = 0; room <= length + 2; room++) {
        memset(text, '#', sizeof text);
        if (mpt_machine_report(context, machine, text, room) != length) return false;
        const size_t there = room > length ? length : room ? room - 1 : 0;
        if (memcmp(text, whole, there) != 0 || text[room] != '#') return false;
        if (room > 0 && text[there] != '\0') return false;
    }
    return mpt_machine_report(context, machine, NULL, 7) == length;
}

TEST(the_machine_is_measured_and_told) {
    char text[4096];
    CHECK(begin());
    const mpt_machine machine = mpt_machine_measure(context, 0.02);
    for (int i = 0; i < 3; i++) CHECK(machine.product[i] > 1e6 && machine.step[i] > 1e-6);
    CHECK(machine.copy > 1e6);
    CHECK(mpt_memory(context).current[MPT_MEMORY_PARAMETER] +
            mpt_memory(context).current[MPT_MEMORY_ACTIVATION] ==
        0);
    mpt_machine made = machine;
    made.product[0] = 1.5e9, made.product[2] = 30e9, made.copy = 2e9;
    made.step[0] = 0.02, made.step[1] = 0.021, made.step[2] = 0.01;
    size_t length = mpt_machine_report(context, &made, text, sizeof text);
    CHECK(length == strlen(text) && length > 200);
    CHECK(strstr(text, "threads: ") && strstr(text, mpt_device_name(context)));
    if (mpt_get_device(context) == MPT_DEVICE_CPU)
        CHECK(strstr(text, "threads: 2\n") && strstr(text, mpt_isa_name(mpt_get_isa(context))));
    CHECK(strstr(text, "products: fp32 1.5 GFLOP/s, ") && strstr(text, ", bf16 30.0 GFLOP/s\n"));
    CHECK(strstr(text, "copies: 2.0 GB/s\ntraining step: fp32 20.00 ms, fp16 21.00 ms, bf16 10"));
    CHECK(strstr(text, "mixed precision: bf16 makes a step of this size 2.00 times as fast\n"));
    CHECK(fits_every_room(&made, text, length));
    made.step[2] = 0.0195;
    mpt_machine_report(context, &made, text, sizeof text);
    CHECK(strstr(text, "mixed precision: saves memory here, and no time\n"));
    length = mpt_machine_report(context, NULL, text, sizeof text);
    CHECK(length == strlen(text) && !strstr(text, "GFLOP/s") && strstr(text, "MPT_PRECISION_AUTO"));
    end();
}

TEST(shapes_are_measured_where_padding_is_possible) {
    char text[2048];
    CHECK(begin());
    mpt_module even = mpt_nn_linear(context, 64, 128), odd = mpt_nn_linear(context, 65, 129);
    CHECK_EQ_INT((int)mpt_machine_shapes(even, 8, MPT_F32, text, sizeof text), 0);
    CHECK_EQ_STR(text, "");
    /* Whether these are faster when they are padded is this machine's to say. */
    const size_t length = mpt_machine_shapes(odd, 8, MPT_F32, text, sizeof text);
    CHECK(length == strlen(text));
    CHECK(length == 0 || strncmp(text, "weight [129, 65]: as [", 22) == 0);
    CHECK(!mpt_failed(context));
    end();
}

TEST(mistakes_with_tools_are_errors_and_nothing_else) {
    char text[64] = "as it was";
    CHECK(begin());
    CHECK_EQ_INT((int)mpt_machine_report(NULL, NULL, text, sizeof text), 0);
    CHECK_EQ_STR(text, "");
    CHECK(mpt_machine_measure(NULL, 1).copy == 0);
    mpt_module none;
    memset(&none, 0, sizeof none);
    CHECK_EQ_INT((int)mpt_machine_shapes(none, 8, MPT_F32, text, sizeof text), 0);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_HANDLE); /* the thread's last context */
    mpt_clear_error(context);
    mpt_module net = mpt_nn_linear(context, 3, 2);
    CHECK_EQ_INT((int)mpt_machine_shapes(net, -1, MPT_F32, text, sizeof text), 0);
    CHECK_CONTAINS(mpt_error(context), "mpt_randn");
    CHECK_EQ_STR(text, "");
    CHECK_EQ_INT((int)mpt_machine_report(context, NULL, text, sizeof text), 0); /* it has failed */
    mpt_clear_error(context);
    CHECK(mpt_machine_report(context, NULL, text, sizeof text) > sizeof text);
    end();
}

/* The text of the tools is that of printf in the C locale, but that halves go up. */
TEST(numbers_are_written_as_printf_does) {
    static const double values[] = {0, 1, 9.9996, 1.2345e-4, 9.9996e-5, 12345.6, 1e-300, 1e300,
        65504, 0.5, 99.95, 1e5, 123456789, 5e-324, 1000, -9999.5, -0.001, 1.0 / 3, 2e9 / 3};
    char got[128], want[128];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const double x = values[i];
        mpt__tools_note note = mpt__tools_note_begin(got, sizeof got);
        mpt__tools_note_add(&note, "%g %12.4g|%-9.3g|%.1g", x, x, x, x);
        snprintf(want, sizeof want, "%g %12.4g|%-9.3g|%.1g", x, x, x, x);
        CHECK_EQ_STR(got, want);
        if (!(fabs(x) < 1e6)) continue;
        note = mpt__tools_note_begin(got, sizeof got);
        mpt__tools_note_add(&note, "%f %8.3f%%", x, x);
        snprintf(want, sizeof want, "%f %8.3f%%", x, x);
        CHECK_EQ_STR(got, want);
    }
    mpt__tools_note note = mpt__tools_note_begin(got, sizeof got);
    mpt__tools_note_add(&note, "%-5s|%5s|%lld|%4lld|%f %g", "ab", "cd", -(long long)INT64_MAX - 1,
        42LL, (double)INFINITY, -(double)INFINITY);
    CHECK_EQ_STR(got, "ab   |   cd|-9223372036854775808|  42|inf -inf");
}

TEST_TABLE = {T(the_machine_is_measured_and_told), T(shapes_are_measured_where_padding_is_possible),
    T(mistakes_with_tools_are_errors_and_nothing_else), T(numbers_are_written_as_printf_does)};
TEST_MAIN
