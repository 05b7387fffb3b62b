/* ----
 * tools/numbers.c: numbers as text: the same digits on every platform and in every locale.
 * ---- */
#ifndef MPT__NUMBERS_INCLUDED
#define MPT__NUMBERS_INCLUDED

#include "files.c"

/* A natural number below 2^1280, least word first: room for all that an fp64 is scaled to, which
   stays below 2^1140. */
enum { MPT__TOOLS_BIG_WORDS = 40 };
typedef struct {
    uint32_t word[MPT__TOOLS_BIG_WORDS];
} mpt__tools_big;

static void mpt__tools_big_shifted(mpt__tools_big *big, uint64_t value, int shift) {
    memset(big, 0, sizeof *big);
    const int at = shift / 32, bits = shift % 32;
    big->word[at] = (uint32_t)(value << bits);
    big->word[at + 1] = (uint32_t)(value >> 1 >> (31 - bits));
    big->word[at + 2] = (uint32_t)(value >> 33 >> (31 - bits));
}

static void mpt__tools_big_times_ten(mpt__tools_big *big) {
    uint64_t carry = 0;
    for (int i = 0; i < MPT__TOOLS_BIG_WORDS; i++) {
        carry += (uint64_t)big->word[i] * 10;
        big->word[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

static void mpt__tools_big_add(mpt__tools_big *big, const mpt__tools_big *other) {
    uint64_t carry = 0;
    for (int i = 0; i < MPT__TOOLS_BIG_WORDS; i++) {
        carry += (uint64_t)big->word[i] + other->word[i];
        big->word[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

static void mpt__tools_big_subtract(mpt__tools_big *big, const mpt__tools_big *other) {
    uint64_t borrow = 0;
    for (int i = 0; i < MPT__TOOLS_BIG_WORDS; i++) {
        const uint64_t difference = (uint64_t)big->word[i] - other->word[i] - borrow;
        big->word[i] = (uint32_t)difference;
        borrow = difference >> 63;
    }
}

/* -1, 0 or 1 as a is less than, equal to or greater than b. */
static int mpt__tools_big_compare(const mpt__tools_big *a, const mpt__tools_big *b) {
    for (int i = MPT__TOOLS_BIG_WORDS; i-- > 0;)
        if (a->word[i] != b->word[i]) return a->word[i] < b->word[i] ? -1 : 1;
    return 0;
}

/* -1, 0 or 1 as a + b is to c. */
static int mpt__tools_big_compare_sum(
    const mpt__tools_big *a, const mpt__tools_big *b, const mpt__tools_big *c) {
    mpt__tools_big sum = *a;
    mpt__tools_big_add(&sum, b);
    return mpt__tools_big_compare(&sum, c);
}

/* The fewest digits that are read back as the number with these bits, which is positive and finite;
   0.DIGITS times ten to the result. Steele and White 1990, with Burger and Dybvig's margins. */
static int mpt__tools_shortest_digits(uint64_t bits, char *digits, int *count) {
    const int field = (int)(bits >> 52 & 0x7FF);
    const uint64_t fraction = bits & 0xFFFFFFFFFFFFFull;
    const uint64_t mantissa = field ? fraction | 1ull << 52 : fraction;
    const int exponent = (field ? field : 1) - 1075, up = exponent > 0 ? exponent : 0;
    const int uneven = field > 1 && fraction == 0, even = (mantissa & 1) == 0;
    mpt__tools_big rest, scale, above, below;
    mpt__tools_big_shifted(&rest, mantissa, up + 1 + uneven);
    mpt__tools_big_shifted(&scale, 1, up - exponent + 1 + uneven);
    mpt__tools_big_shifted(&above, 1, up + uneven);
    mpt__tools_big_shifted(&below, 1, up);
    int power = 0;
    while (mpt__tools_big_compare_sum(&rest, &above, &scale) > -even) {
        mpt__tools_big_times_ten(&scale);
        power++;
    }
    for (;;) {
        mpt__tools_big_times_ten(&rest), mpt__tools_big_times_ten(&above),
            mpt__tools_big_times_ten(&below);
        if (mpt__tools_big_compare_sum(&rest, &above, &scale) > -even) break;
        power--;
    }
    for (*count = 0;;) {
        int digit = 0;
        while (mpt__tools_big_compare(&rest, &scale) >= 0)
            mpt__tools_big_subtract(&rest, &scale), digit++;
        const bool low = mpt__tools_big_compare(&rest, &below) < even;
        const bool high = mpt__tools_big_compare_sum(&rest, &above, &scale) > -even;
        if (high && (!low || mpt__tools_big_compare_sum(&rest, &rest, &scale) >= 0)) digit++;
        digits[(*count)++] = (char)('0' + digit);
        if (low || high) return power;
        mpt__tools_big_times_ten(&rest), mpt__tools_big_times_ten(&above),
            mpt__tools_big_times_ten(&below);
    }
}

static void mpt__tools_put_integer(mpt__tools_bytes *to, int64_t value) {
    char digits[24];
    int n = 24;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do digits[--n] = (char)('0' + (int)(left % 10));
    while ((left /= 10) != 0);
    if (value < 0) digits[--n] = '-';
    mpt__tools_bytes_put(to, digits + n, (size_t)(24 - n));
}

static uint64_t mpt__tools_bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool mpt__tools_is_finite(double value) {
    return (mpt__tools_bits_of(value) >> 52 & 0x7FF) != 0x7FF;
}

/* As Python's repr writes it, but for whole numbers, which are without ".0": 0.1, 1e-07, 65536. */
static void mpt__tools_put_number(mpt__tools_bytes *to, double value) {
    const uint64_t bits = mpt__tools_bits_of(value);
    char digits[24];
    int count;
    if (!mpt__tools_is_finite(value)) {
        mpt__tools_bytes_put_text(to, bits << 12 ? "nan" : bits >> 63 ? "-inf" : "inf");
        return;
    }
    if (bits << 1 == 0) {
        mpt__tools_bytes_put_text(to, bits ? "-0.0" : "0"); /* a whole -0 is read as 0 */
        return;
    }
    if (bits >> 63) mpt__tools_bytes_put(to, "-", 1);
    const int point = mpt__tools_shortest_digits(bits & ~(1ull << 63), digits, &count);
    if (point > 16 || point < -3) {
        mpt__tools_bytes_put(to, digits, 1);
        if (count > 1) mpt__tools_bytes_put(to, ".", 1);
        mpt__tools_bytes_put(to, digits + 1, (size_t)count - 1);
        mpt__tools_bytes_put_text(to, point < 1 ? "e-" : "e+");
        const int power = point < 1 ? 1 - point : point - 1;
        if (power < 10) mpt__tools_bytes_put(to, "0", 1);
        mpt__tools_put_integer(to, power);
        return;
    }
    if (point <= 0) mpt__tools_bytes_put(to, "0.000", (size_t)(2 - point));
    for (int i = 0; i < count || i < point; i++) {
        if (i == point && i > 0) mpt__tools_bytes_put(to, ".", 1);
        mpt__tools_bytes_put(to, i < count ? &digits[i] : "0", 1);
    }
}

#endif
