/* ----
 * waist/arithmetic.inl: what every backend computes with the same bits: hashes, random words, the
 * numbers of a loss scaler, of an optimizer's step and of fp8's scales. MPT__COMMON is the storage
 * class that a backend gives to such functions; words of launches are those of waist/launch.h.
 * ---- */
#ifdef MPT__COMMON

/* ==== Hashes ==== */

#define MPT__HASH_GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio */

/* The finaliser of SplitMix64: a bijection in which every input bit reaches every output bit. */
MPT__COMMON uint64_t mpt__hash_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Hashes an ordered pair; with one of the two fixed it is a bijection of the other. */
MPT__COMMON uint64_t mpt__hash_u64(uint64_t a, uint64_t b) {
    return mpt__hash_mix(mpt__hash_mix(a + MPT__HASH_GOLDEN) + b);
}

/* ==== Philox 4x32-10 ==== */

#define MPT__PHILOX_ROUNDS 10
#define MPT__PHILOX_M0 0xd2511f53u
#define MPT__PHILOX_M1 0xcd9e8d57u
#define MPT__PHILOX_W0 0x9e3779b9u /* added to the key after each round */
#define MPT__PHILOX_W1 0xbb67ae85u

/* The bare generator, word by word as in the paper. */
MPT__COMMON void mpt__philox_block(
    const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < MPT__PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)MPT__PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)MPT__PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += MPT__PHILOX_W0;
        k1 += MPT__PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Block `block` of a sequence. The mapping gives seeds their meaning and may not change: the Philox
 * key is the seed; counter words 0 and 1 are the block index, 2 and 3 the sequence, which is
 * mpt__hash_u64(stream, call); low words first. */
MPT__COMMON void mpt__philox(uint64_t seed, uint64_t sequence, uint64_t block, uint32_t out[4]) {
    uint32_t counter[4], key[2];
    counter[0] = (uint32_t)block;
    counter[1] = (uint32_t)(block >> 32);
    counter[2] = (uint32_t)sequence;
    counter[3] = (uint32_t)(sequence >> 32);
    key[0] = (uint32_t)seed;
    key[1] = (uint32_t)(seed >> 32);
    mpt__philox_block(counter, key, out);
}

/* ==== Optimizers ==== */

/* base^exponent by repeated squaring; 0^0 = 1. The relative error grows as |exponent| roundings. */
MPT__COMMON double mpt__power(double base, int64_t exponent) {
    uint64_t left = exponent < 0 ? 0 - (uint64_t)exponent : (uint64_t)exponent;
    double result = 1.0;
    for (; left > 0; left >>= 1) {
        if (left & 1) result *= base;
        base *= base;
    }
    return exponent < 0 ? 1.0 / result : result;
}

/* What a launch of SGD, ADAM or MOMENTS asks for, the same for all its segments. Truths are ints:
   a kernel of a GPU gets all bytes of this, and between bools there would be some that nobody wrote. */
typedef struct mpt__law {
    int function;
    int corrects;  /* means that began with 0 are divided by 1 - beta^t */
    int decays;    /* the gradient has a part that takes weights towards 0; */
    int decoupled; /* or the weight itself is made smaller */
    int slows;     /* the rate is divided by 1 + imm[0] t */
    int dampens;   /* of SGD: 1 - imm[1] of a gradient comes in */
    int nesterov;
    int moment[3];  /* which there are */
    int eps, decay; /* where they stand in imm; -1: none */
    double imm[4];
} mpt__law;

static inline mpt__law mpt__law_of(const mpt__launch *launch) {
    static const int rows[][3] = {
        {-1, 0, 0},
#define MPT__ROW(id, name, ns, eps, decay, ways) {eps, decay, ways},
        MPT__UPDATES(MPT__ROW)
#undef MPT__ROW
            {2, 3, MPT__CORRECTS}, /* ADAM */
        {-1, 2, 0}                 /* SGD */
    };
    const bool sgd = launch->kernel == MPT__K_SGD, adam = launch->kernel == MPT__K_ADAM;
    const int count = (int)(sizeof rows / sizeof rows[0]), moment[3] = {3, 6, 8};
    const int *row = rows[sgd ? count - 1 : adam ? count - 2 : launch->function - MPT__FN_NO_UPDATE];
    mpt__law law;
    law.function = launch->function;
    law.eps = row[0], law.decay = row[1];
    law.corrects = (row[2] & MPT__CORRECTS) != 0, law.slows = (row[2] & MPT__SLOWS) != 0;
    law.decoupled = (row[2] & MPT__DECOUPLES) != 0 || (law.corrects && launch->index[0] == 1);
    law.dampens = sgd, law.nesterov = sgd && launch->index[0] != 0;
    for (int k = 0; k < 3; k++)
        law.moment[k] = moment[k] < launch->n_operands && launch->operand[moment[k]].storage != 0;
    memcpy(law.imm, launch->imm, sizeof law.imm);
    law.decays = law.imm[law.decay] != 0;
    return law;
}

/* And what depends on a segment's step count. keep1 and keep2: how much of their moments stays,
   add1 and add2 how much of what is new comes in. */
typedef struct mpt__pace {
    double lr, decay, shrink, keep1, add1, keep2, add2, eps, root;
    bool fresh; /* no update before this one */
} mpt__pace;

/* `first` is imm[0], or what a table of rates has in its place, as it has `lr`. */
MPT__COMMON mpt__pace mpt__pace_of(const mpt__law *law, double lr, double first, int64_t step) {
    mpt__pace pace;
    pace.fresh = step == 0;
    pace.eps = law->eps < 0 ? 0 : law->imm[law->eps];
    pace.decay = law->imm[law->decay];
    pace.shrink = lr * pace.decay;
    pace.keep1 = first;
    pace.add1 = 1 - (law->dampens ? law->imm[1] : first);
    pace.keep2 = law->imm[1];
    pace.add2 = 1 - law->imm[1];
    pace.root = 1;
    if (law->corrects) {
        lr /= 1 - mpt__power(first, step + 1);
        pace.root = 1 / sqrt(1 - mpt__power(pace.keep2, step + 1));
    }
    if (law->slows) lr /= 1 + (double)step * law->imm[0];
    pace.lr = lr;
    return pace;
}

/* ==== Codes of moments ====
 *
 * The table has a codebook of signed moments, then one of the others: values of 256 codes; cells;
 * what vectors use (cpu/template/codes.c). A cell is for the numbers y of [2^-23, 1] with the same
 * upper 16 bits, of which no two middles between magnitudes lie in one: that of the least, counted
 * from 0, times 2^16 + the lower 16 bits of the last y that is no nearer to the next. */
enum {
    MPT__CODE_BLOCK = 256,
    MPT__CODE_ZERO = 127,
    MPT__CODE_LEAST = 0x3400, /* upper bits of 2^-23 */
    MPT__CODE_LIMIT = 256 + 0x3f80 - MPT__CODE_LEAST + 1,
    MPT__CODE_BOOK = MPT__CODE_LIMIT + 5 * 16
};
#define MPT__CODE_LINES(book) ((const float *)(const void *)((book) + MPT__CODE_LIMIT))
#define MPT__CODE_DOUBT (1 / 16384.0f) /* of 1 between two codes: more than twice the error */
/* Whether moment k has no sign. */
MPT__COMMON int mpt__law_unsigned(const mpt__law *law, int k) {
    return law->corrects ? k > 0 : law->function == MPT__FN_RMSPROP && k == 0;
}
/* The code of a moment with bits x, y those of its magnitude over the largest. What is not 0 has
   not that of 0: it keeps its sign, and a mean of squares what a step is divided by. */
MPT__COMMON uint32_t mpt__code_of(const int32_t *book, uint32_t x, uint32_t y, int is_unsigned) {
    const uint32_t least = (uint32_t)MPT__CODE_LEAST << 16;
    if (y < least) y = least;
    const uint32_t cell = (uint32_t)book[256 + (y >> 16) - MPT__CODE_LEAST];
    uint32_t code = (cell >> 16) + ((y & 0xffff) > (cell & 0xffff));
    if (code == 0 && (x & 0x7fffffff) >= 0x00800000) code = 1;
    if (is_unsigned) return code;
    if (!(x >> 31)) return MPT__CODE_ZERO + code;
    return code > MPT__CODE_ZERO ? 0 : MPT__CODE_ZERO - code;
}
/* What is kept of a block's largest magnitude: 0 for what is below fp32's normal numbers, NaN for
   what is not finite. Of neither there are codes but that of 0. */
MPT__COMMON uint32_t mpt__code_most(uint32_t bits) {
    return bits >= 0x7f800000 ? 0x7fc00000 : bits < 0x00800000 ? 0 : bits;
}
MPT__COMMON int mpt__code_is_number(uint32_t most) { return most != 0 && most < 0x7f800000; }
/* Where a parameter's largest magnitudes stand behind its n codes. */
MPT__COMMON int64_t mpt__code_peaks(int64_t n) { return (n + 3) / 4 * 4; }

/* ==== Loss scaler ==== */

/* The scale after an overflow. The floor stops the way down; it never lifts a scale that a user has
   set below it. */
MPT__COMMON double mpt__backed_off(double scale, double backoff, double floor_scale) {
    double next = (double)(float)(scale * backoff);
    if (next < floor_scale) next = floor_scale < scale ? floor_scale : scale;
    return next;
}

/* The scale after an interval of clean steps, unless it is no number of fp32; likewise with the
   ceiling. */
MPT__COMMON double mpt__grown(double scale, double growth, double ceiling) {
    double next = (double)(float)(scale * growth);
    if (!(next <= 3.4028234663852886e38)) return scale;
    if (ceiling > 0 && next > ceiling) next = ceiling > scale ? ceiling : scale;
    return next;
}

/* SCALER_UPDATE on the scalars s. */
MPT__COMMON void mpt__scaler_ends_update(
    mpt__scalar *s, const uint16_t *slot, const double *imm, int64_t interval, bool fixed) {
    s[slot[3]].i++;
    if (s[slot[2]].i != 0) {
        if (!fixed) s[slot[0]].f = mpt__backed_off(s[slot[0]].f, imm[1], imm[2]);
        s[slot[1]].i = 0;
        s[slot[4]].i++;
        s[slot[5]].i++;
        s[slot[6]].i = s[slot[3]].i;
        s[slot[7]].i = MPT_OUTCOME_SKIPPED;
        return;
    }
    s[slot[1]].i++;
    if (!fixed && s[slot[1]].i >= interval) {
        s[slot[0]].f = mpt__grown(s[slot[0]].f, imm[0], imm[3]);
        s[slot[1]].i = 0;
    }
    s[slot[5]].i = 0;
    s[slot[7]].i = MPT_OUTCOME_APPLIED;
}

/* The weight of a new value in an average, after n updates. */
MPT__COMMON double mpt__average_weight(int64_t form, double decay, double n) {
    double early = (1 + n) / (10 + n);
    if (n == 0) return 1;
    if (form == 2) return 1 / (n + 1);
    return 1 - (form == 1 && early < decay ? early : decay);
}

#ifndef MPTRAIN_NO_FP8
/* ==== Scales of fp8 ==== */

/* The power of two that takes `most` to the limit of a format at the most, where that is 7/4 of
   2^limit_exponent. */
MPT__COMMON float mpt__fp8_power(float most, int limit_exponent, int margin) {
    uint32_t bits;
    memcpy(&bits, &most, sizeof bits);
    int power = limit_exponent - ((int)(bits >> 23) - 127) - margin;
    if ((bits & 0x7fffffu) > 0x600000u) power--;
    if (power > MPT__FP8_POWERS) power = MPT__FP8_POWERS;
    if (power < -MPT__FP8_POWERS) power = -MPT__FP8_POWERS;
    bits = (uint32_t)(power + 127) << 23;
    memcpy(&most, &bits, sizeof most);
    return most;
}

/* FP8_UPDATE of row `row`, which has `width` floats. */
MPT__COMMON void mpt__fp8_ends_step(
    float *state, int64_t width, int64_t row, bool commit, int margin) {
    float most = 0;
    for (int64_t i = width - 1; i > MPT__FP8_HISTORY && commit; i--) state[i] = state[i - 1];
    if (commit) state[MPT__FP8_HISTORY] = state[MPT__FP8_AMAX];
    state[MPT__FP8_AMAX] = 0;
    for (int64_t i = MPT__FP8_HISTORY; i < width; i++)
        if (state[i] > most) most = state[i];
    if (commit && most > 0)
        state[MPT__FP8_SCALE_NOW] = mpt__fp8_power(most, row < 2 ? 8 : 15, margin);
}
#endif

#endif
