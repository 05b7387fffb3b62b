/* ----
 * data/numbers.c: numbers as texts write them, what stands for no value, and what people take for
 * numbers though it is none here.
 * ---- */
#ifndef MPT__DATA_NUMBERS_INCLUDED
#define MPT__DATA_NUMBERS_INCLUDED

#include "core/context.h"

#ifndef MPTRAIN_NO_TABLES

/* ==== Numbers ==== */

/* Digits as written, d1d2d3.. * 10^(point - count). More of them matter only for whether they are
   zeros. */
typedef struct {
    char digits[800];
    int count, point;
    bool negative;
} mpt__decimal;

/* Reads [+-]digits[.digits][e[+-]digits], with `mark` for the point; false if it is anything else.
   U+2212, the minus sign of typesetters, is one, too. */
static bool mpt__decimal_read(mpt__decimal *d, const char *p, size_t n, char mark) {
    const char *const end = p + n;
    bool any = false, fraction = false;
    int exponent = 0;
    d->count = d->point = 0;
    bool minus = n > 3 && memcmp(p, "\xe2\x88\x92", 3) == 0;
    d->negative = minus || (p < end && *p == '-');
    if (p < end && (minus || *p == '-' || *p == '+')) p += minus ? 3 : 1;
    for (; p < end && ((*p >= '0' && *p <= '9') || (*p == mark && !fraction)); p++) {
        if (*p == mark) {
            fraction = true;
            continue;
        }
        any = true;
        if (*p == '0' && d->count == 0) {
            if (d->point > -1000000000) d->point -= fraction;
            continue;
        }
        if (d->count < 799)
            d->digits[d->count++] = *p;
        else if (*p != '0')
            d->digits[798] = '1'; /* far behind all digits of what it is compared with */
        if (d->point < 1000000000) d->point += !fraction;
    }
    if (!any) return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        bool below = ++p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        if (p == end) return false;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (exponent < 100000000) exponent = exponent * 10 + (*p - '0');
        d->point += below ? -exponent : exponent;
    }
    return p == end;
}

/* Whether the decimal is less than (-1), equal to or more than (1) mantissa * 2^exponent. */
static int mpt__decimal_compare(const mpt__decimal *d, uint64_t mantissa, int exponent) {
    char digits[800];
    int point;
    int count = mpt__exact_digits(mantissa, exponent, digits, &point);
    if (d->point != point) return d->point < point ? -1 : 1;
    for (int i = 0; i < d->count || i < count; i++) {
        const char a = i < d->count ? d->digits[i] : '0', b = i < count ? digits[i] : '0';
        if (a != b) return a < b ? -1 : 1;
    }
    return 0;
}

/* Whether the decimal, above the double of these bits, is nearer to the next: half to even. */
static bool mpt__decimal_passes(const mpt__decimal *d, uint64_t bits) {
    int exponent;
    uint64_t mantissa = mpt__mantissa_of(bits, &exponent);
    int order = mpt__decimal_compare(d, 2 * mantissa + 1, exponent - 1);
    return order > 0 || (order == 0 && (bits & 1));
}

/* The nearest double, infinity beyond the largest; false if the text is no number. In the state of
   MPT__PLAIN_FLOATS. */
static bool mpt__parse_number(const char *p, size_t n, char mark, double *value) {
    static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    mpt__decimal d;
    uint64_t whole = 0, bits;
    if (!mpt__decimal_read(&d, p, n, mark)) return false;
    int taken = d.count < 19 ? d.count : 19;
    int exponent = d.point - taken;
    for (int i = 0; i < taken; i++) whole = whole * 10 + (uint64_t)(d.digits[i] - '0');
    double guess = (double)whole;
    if (d.count == 0 || d.point < -330) {
        guess = 0.0;
    } else if (d.point > 310) {
        guess = mpt__f64_from_bits(UINT64_C(0x7ff) << 52);
    } else {
        /* One exact factor by another is rounded once. */
        bool exact = d.count == taken && whole >> 53 == 0 && exponent >= -22 && exponent <= 22;
        for (int step; exponent > 0; exponent -= step)
            step = exponent < 22 ? exponent : 22, guess *= powers[step];
        for (int step; exponent < 0; exponent += step)
            step = exponent > -22 ? -exponent : 22, guess /= powers[step];
        memcpy(&bits, &guess, sizeof bits);
        if (bits >= UINT64_C(0x7ff) << 52) bits = (UINT64_C(0x7ff) << 52) - 1;
        while (!exact && bits < UINT64_C(0x7ff) << 52 && mpt__decimal_passes(&d, bits)) bits++;
        while (!exact && bits > 0 && !mpt__decimal_passes(&d, bits - 1)) bits--;
        memcpy(&guess, &bits, sizeof guess);
    }
    *value = d.negative ? -guess : guess;
    return true;
}

static bool mpt__parse_double(const char *p, size_t n, double *value) {
    return mpt__parse_number(p, n, '.', value);
}

MPT__BEGIN_COLD
/* ==== Words ==== */

/* The length of the word with which a text begins or ends; else 0. */
static size_t mpt__affix(
    const char *const *words, size_t count, const char *p, size_t n, bool at_end) {
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(words[i]);
        if (length <= n && memcmp(at_end ? p + n - length : p, words[i], length) == 0)
            return length;
    }
    return 0;
}

/* Whether a text is the word, given in small letters, in any letters. */
static bool mpt__word_is(const char *p, size_t n, const char *word) {
    size_t i = 0;
    for (; i < n && word[i]; i++)
        if ((p[i] >= 'A' && p[i] <= 'Z' ? (char)(p[i] + 32) : p[i]) != word[i]) break;
    return i == n && !word[i];
}

/* No value: what pandas takes for it, but for an upper-case NAN and a ? . */
static bool mpt__field_missing(const char *p, size_t n) {
    static const char *const words[] = {
        "", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "NULL", "null", "None", "?"};
    if (n > 0 && p[n - 1] >= '0' && p[n - 1] <= '9') return false; /* as most fields end */
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && memcmp(words[i], p, n) == 0) return true;
    if (*p == '-' || *p == '+') p++, n--;
    return mpt__word_is(p, n, "nan") || mpt__word_is(p, n, "1.#ind") ||
        mpt__word_is(p, n, "1.#qnan");
}

/* Of a character or more, as what is empty is missing. */
static bool mpt__word_infinite(const char *p, size_t n) {
    if (*p == '-' || *p == '+') p++, n--;
    return mpt__word_is(p, n, "inf") || mpt__word_is(p, n, "infinity") ||
        mpt__word_is(p, n, "1.#inf") || mpt__word_is(p, n, "\xe2\x88\x9e");
}

/* Whether digits stand in groups: 1,234,567.8, 1.234,5, 1'234, 1_000, 12 345. The last separator
   may be a decimal point; two or three digits follow all others. */
static bool mpt__digit_groups(const char *p, size_t n) {
    static const char *const separators[] = {
        ",", ".", "'", "_", " ", "\xc2\xa0", "\xe2\x80\xaf", "\xe2\x80\x89", "\xe2\x80\x99"};
    size_t run = 0, skip;
    char last = 0;
    for (; n > 0; p += skip, n -= skip) {
        skip = 1;
        if (*p >= '0' && *p <= '9') {
            run++;
            continue;
        }
        skip = mpt__affix(separators, sizeof separators / sizeof *separators, p, n, false);
        if (skip == 0 || run == 0 || (last && last != '_' && run != 2 && run != 3)) return false;
        last = *p, run = 0;
    }
    return run > 0 && (run == 3 || strchr(",._", last));
}

/* Whether people read a text as a number, also with what they put around it and between its digits:
   a currency, a percent sign, a unit of up to three letters, thousands separators. */
static bool mpt__number_like(const char *p, size_t n) {
    static const char *const around[] = {"$", "%", "(", ")", "+", "-", " ", "\xc2\xa3", "\xc2\xa5",
        "\xc2\xa0", "\xe2\x82\xac", "\xe2\x88\x92"};
    enum { AROUND = sizeof around / sizeof *around };
    size_t cut, letters = 0;
    double value;
    if (mpt__word_infinite(p, n)) return true;
    while ((cut = mpt__affix(around, AROUND, p, n, false)) > 0) p += cut, n -= cut;
    while ((cut = mpt__affix(around, AROUND, p, n, true)) > 0) n -= cut;
    if (n > 4 && p[3] == ' ' && p[0] >= 'A' && p[0] <= 'Z' && p[2] >= 'A' && p[2] <= 'Z')
        p += 4, n -= 4; /* EUR 5 */
    while (letters < n && letters < 4 && (p[n - 1 - letters] | 32) >= 'a' &&
        (p[n - 1 - letters] | 32) <= 'z')
        letters++;
    if (letters > 0 && letters < 4 && n > letters + 1 && p[n - 1 - letters] == ' ')
        n -= letters + 1; /* 5 kg */
    if (n > 2 && p[0] == '0' && (p[1] | 32) == 'x') {
        for (cut = 2; cut < n &&
             ((p[cut] >= '0' && p[cut] <= '9') || ((p[cut] | 32) >= 'a' && (p[cut] | 32) <= 'f'));)
            cut++;
        return cut == n;
    }
    return mpt__parse_number(p, n, '.', &value) || mpt__parse_number(p, n, ',', &value) ||
        mpt__digit_groups(p, n);
}
MPT__END_REGION

#endif /* MPTRAIN_NO_TABLES */

#endif
