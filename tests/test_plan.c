/* test_plan.c: where the storages of a list of launches lie: never two in one place at a time, in
   little more than what lives at once; results over operands where that is allowed and nowhere
   else. */
#define MPTRAIN_NO_SIMD
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_RECURRENT
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE
#include "harness.h"

enum { MOST = 400 };

static uint32_t state = 1;
static int64_t draw(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % below;
}

/* The most that lives at one time. */
static int64_t live_at_once(const mpt__stay *stays, int64_t count, int64_t launches) {
    int64_t most = 0;
    for (int64_t l = 0; l < launches; l++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < count; i++)
            if (stays[i].bytes && stays[i].first <= l && l <= stays[i].last) sum += stays[i].bytes;
        if (sum > most) most = sum;
    }
    return most;
}

static void check_apart(const mpt__stay *stays, int64_t count, int64_t total) {
    for (int64_t i = 0; i < count; i++) {
        const mpt__stay *a = &stays[i];
        if (!a->bytes) continue;
        CHECK(a->offset >= 0 && a->offset + a->bytes <= total);
        for (int64_t k = 0; k < i; k++) {
            const mpt__stay *b = &stays[k];
            const bool meet = b->bytes && a->first <= b->last && b->first <= a->last;
            if (meet && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
                TEST_FAIL_("stays %lld and %lld lie in one place", (long long)i, (long long)k);
        }
    }
}

/* Stays as training has them: a tree that backward walks back, and short ones between. */
TEST(places_are_apart) {
    static mpt__stay stays[MOST];
    static int64_t room[2 * MOST];
    int64_t of_all = 0, of_bounds = 0;
    for (int round = 0; round < 300; round++) {
        const int64_t count = 1 + draw(MOST), launches = 2 * count;
        for (int64_t i = 0; i < count; i++) {
            mpt__stay *s = &stays[i];
            const int64_t kind = draw(3), length = draw(4);
            s->first = kind ? i : draw(launches);
            s->last = kind == 1 ? launches - 1 - i : s->first + length;
            if (s->last < s->first) s->last = s->first;
            s->bytes = draw(10) ? 256 * (1 + draw(round % 2 ? 3 : 1000)) : 0;
            s->root = i;
            s->offset = -1;
        }
        const int64_t total = mpt__stays_place(stays, count, room);
        const int64_t bound = live_at_once(stays, count, launches);
        for (int64_t i = 0; i < count; i++)
            if (!stays[i].bytes) stays[i].offset = 0;
        check_apart(stays, count, total);
        CHECK(total >= bound);
        of_all += total, of_bounds += bound;
    }
    printf("%.3f of what lives at once ", (double)of_all / (double)of_bounds);
    CHECK(of_all <= of_bounds + of_bounds / 20);
}

/* ---- launches ---- */

static mpt_context *c;
static mpt__launch launches[3];

static void name(mpt__launch *launch, uint32_t storage, int64_t numel, mpt__access access) {
    mpt__operand *o = &launch->operand[launch->n_operands++];
    memset(o, 0, sizeof *o);
    o->storage = storage, o->dtype = MPT_F32, o->access = (uint8_t)access;
    o->rank = 1, o->shape[0] = numel, o->stride[0] = 1;
}

/* Storage 1 is filled, an op makes 2 of it, something reads 2. */
static void make_launches(mpt__kernel kernel) {
    memset(launches, 0, sizeof launches);
    launches[0].kernel = MPT__K_FILL;
    name(&launches[0], 1, 64, MPT__WRITE);
    launches[1].kernel = (uint16_t)kernel;
    name(&launches[1], 1, 64, MPT__READ);
    if (kernel == MPT__K_BINARY) name(&launches[1], 1, 64, MPT__READ);
    name(&launches[1], 2, 64, MPT__WRITE);
    launches[2].kernel = MPT__K_COPY;
    name(&launches[2], 2, 64, MPT__READ);
    name(&launches[2], 3, 64, MPT__WRITE);
}

static bool overwrites(void) {
    static const uint32_t where[4] = {0, 1, 2, 0}; /* 3 is not of the list */
    mpt__stay stays[2];
    int64_t room[4];
    memset(stays, 0, sizeof stays);
    stays[1].root = 1;
    mpt__stays_find(c, launches, 3, where, stays);
    const int64_t total = mpt__stays_place(stays, 2, room);
    const bool over = stays[1].root == 0;
    CHECK_EQ_INT(stays[1].first, 1);
    CHECK_EQ_INT(total, over ? 256 : 512);
    CHECK_EQ_INT(stays[0].offset == stays[1].offset, over);
    return over;
}

TEST(results_over_operands) {
    c = mpt_create(NULL);
    for (int i = 0; i < 3; i++) mpt_keep(mpt_zeros(c, MPT_F32, MPT_SHAPE(64)));
    for (uint32_t id = 1; id < 4; id++) c->storages[id].bytes = 256;
    make_launches(MPT__K_UNARY);
    CHECK(overwrites());
    make_launches(MPT__K_BINARY);
    CHECK(overwrites());
    make_launches(MPT__K_SOFTMAX); /* not elementwise */
    CHECK(!overwrites());
    make_launches(MPT__K_UNARY);
    launches[1].operand[1].access = MPT__ACCUMULATE;
    CHECK(!overwrites());
    make_launches(MPT__K_UNARY);
    launches[1].operand[1].dtype = MPT_I32; /* of one width, but not of one dtype */
    CHECK(!overwrites());
    make_launches(MPT__K_UNARY);
    launches[1].operand[0].stride[0] = 0; /* one element for all */
    CHECK(!overwrites());
    make_launches(MPT__K_BINARY);
    launches[1].operand[0].shape[0] = 32; /* half of it, beside all of it */
    CHECK(!overwrites());
    make_launches(MPT__K_UNARY);
    launches[2].operand[0].storage = 1; /* read again behind it */
    name(&launches[2], 2, 64, MPT__READ);
    CHECK(!overwrites());
    make_launches(MPT__K_UNARY);
    name(&launches[0], 2, 64, MPT__WRITE); /* the result was there before */
    mpt__stay stays[2];
    static const uint32_t where[4] = {0, 1, 2, 0};
    memset(stays, 0, sizeof stays);
    stays[1].root = 1;
    mpt__stays_find(c, launches, 3, where, stays);
    CHECK_EQ_INT(stays[1].root, 1);
    CHECK_EQ_INT(stays[1].first, 0);
    mpt_destroy(c);
}

TEST_TABLE = {T(places_are_apart), T(results_over_operands)};
TEST_MAIN
