/* ----
 * cpu/template/convert.c: bulk conversions of a level, and bulk tests for inf and NaN.
 *
 * They give the bits of the scalar functions in ground/dtype.c for every input, with flush-to-zero
 * and denormals-are-zero on or off: bf16 and the tests use integers only; the fp16 instructions
 * ignore FTZ, and DAZ only turns fp32 denormals into zeros, which fp16 would make of them anyway.
 * (AVX512_BF16's own conversion always flushes denormals, so it is not used.)
 * ---- */
#ifdef MPT__V

MPT__OP void MPT__LEVEL(to_f32)(const uint16_t *from, float *to, size_t n, int dtype) {
    size_t i = 0;
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH) v_store(to + i, v_load_full(from + i, dtype));
    const int64_t left = (int64_t)(n - i);
    if (left > 0) v_store_as(to + i, v_load_as(from + i, left, dtype), left, MPT_F32);
}
MPT__FN void MPT__LEVEL(f16_to_f32)(const uint16_t *from, float *to, size_t n) {
    MPT__LEVEL(to_f32)(from, to, n, MPT_F16);
}
MPT__FN void MPT__LEVEL(bf16_to_f32)(const uint16_t *from, float *to, size_t n) {
    MPT__LEVEL(to_f32)(from, to, n, MPT_BF16);
}

/* The elements from i on. */
MPT__OP void MPT__LEVEL(from_f32)(const float *from, uint16_t *to, size_t n, size_t i, int dtype) {
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH)
        v_store_as(to + i, v_load(from + i), MPT__WIDTH, dtype);
    const int64_t left = (int64_t)(n - i);
    if (left > 0) v_store_as(to + i, v_load_as(from + i, left, MPT_F32), left, dtype);
}
MPT__FN void MPT__LEVEL(f32_to_f16)(const float *from, uint16_t *to, size_t n) {
    MPT__LEVEL(from_f32)(from, to, n, 0, MPT_F16);
}
MPT__FN void MPT__LEVEL(f32_to_bf16)(const float *from, uint16_t *to, size_t n) {
    size_t i = 0;
    for (; i + 2 * MPT__WIDTH <= n; i += 2 * MPT__WIDTH)
        v_store_both(to + i, v_load(from + i), v_load(from + i + MPT__WIDTH), MPT_BF16);
    MPT__LEVEL(from_f32)(from, to, n, i, MPT_BF16);
}

/* An exponent of all ones and `one` in its lowest bit give a carry to the sign, in each half of a
   word for 16-bit formats. Four runs are read side by side: one core gets more out of memory from
   several pages at once. */
#define MPT__FINITE_OF(p) v_iadd(v_iand(v_words(p), mask), carry)
#define MPT__FINITE_FOUR(p, run) \
    v_ior(v_ior(MPT__FINITE_OF(p), MPT__FINITE_OF(p + run)), \
        v_ior(MPT__FINITE_OF(p + 2 * run), MPT__FINITE_OF(p + 3 * run)))
MPT__FN bool MPT__LEVEL(finite)(const void *values, size_t bytes, int32_t exponent, int32_t one) {
    const v_i mask = v_iset(exponent), carry = v_iset(one);
    const size_t step = 4 * MPT__WIDTH;
    const char *at = (const char *)values;
    v_i sum = v_iset(0);
    uint32_t words[4 * MPT__WIDTH] = {0}, all = 0;
    const size_t run = bytes / sizeof words * step, rest = bytes - 4 * run;
    for (size_t i = 0; i < run; i += step, at += step) sum = v_ior(sum, MPT__FINITE_FOUR(at, run));
    if (rest > 0) memcpy(words, at + 3 * run, rest);
    sum = v_ior(sum, MPT__FINITE_FOUR((const char *)words, step));
    memcpy(words, &sum, sizeof sum);
    for (int i = 0; i < MPT__WIDTH; i++) all |= words[i];
    return (all & 0x80008000u) == 0;
}
static bool MPT__LEVEL(finite_f32)(const float *values, size_t n) {
    return MPT__LEVEL(finite)(values, 4 * n, 0x7f800000, 0x00800000);
}
static bool MPT__LEVEL(finite_f16)(const uint16_t *values, size_t n) {
    return MPT__LEVEL(finite)(values, 2 * n, 0x7c007c00, 0x04000400);
}
static bool MPT__LEVEL(finite_bf16)(const uint16_t *values, size_t n) {
    return MPT__LEVEL(finite)(values, 2 * n, 0x7f807f80, 0x00800080);
}

static const mpt__convert_table MPT__LEVEL(convert) = {MPT__LEVEL(f16_to_f32),
    MPT__LEVEL(bf16_to_f32), MPT__LEVEL(f32_to_f16), MPT__LEVEL(f32_to_bf16),
    MPT__LEVEL(finite_f32), MPT__LEVEL(finite_f16), MPT__LEVEL(finite_bf16), MPT__U8_TO_HALF};

#ifndef MPTRAIN_NO_FRUGAL
/* The bits of a group of elements, see GATE_BITS in waist/launch.h: lane j of vector k is bit k of
   word j; and back. */
MPT__FN void MPT__LEVEL(gates)(uint32_t *words, float *x, bool open) {
    for (int j = 0; j < MPT__GATE_WORDS; j += MPT__WIDTH) {
        v_i all = open ? v_words(words + j) : v_iset(0);
        for (int k = 31; k >= 0; k--) {
            float *at = x + MPT__GATE_WORDS * k + j;
            if (open)
                v_store(at, v_select(v_igt(v_iset(0), all), v_set(1), v_zero()));
            v_i bit = v_iset(0);
            if (!open)
                bit = v_bits(
                    v_select(v_equal(v_load(at), v_zero()), v_zero(), v_float(v_iset(1))));
            all = v_ior(v_iadd(all, all), bit);
        }
        if (!open) memcpy(words + j, &all, sizeof all);
    }
}
#endif
#endif
