/* ----
 * tools/text.c: text for people, formatted alike on every platform and in every locale.
 * ---- */
#ifndef MPT__TEXT_INCLUDED
#define MPT__TEXT_INCLUDED

#include "journal.c"

#include <math.h>
#include <stdarg.h>

/* Text that grows until its room is full, and then only counts. */
typedef struct {
    char *text;
    size_t capacity, length; /* length: of all that was written, whether it found room or not */
} mpt__tools_note;

static mpt__tools_note mpt__tools_note_begin(char *text, size_t capacity) {
    mpt__tools_note note;
    note.text = text, note.capacity = text ? capacity : 0, note.length = 0;
    if (note.capacity > 0) *text = '\0';
    return note;
}

static void mpt__tools_note_char(mpt__tools_note *note, char c) {
    if (note->length + 1 < note->capacity)
        note->text[note->length] = c, note->text[note->length + 1] = '\0';
    note->length++;
}

/* Digits of a number below 2^64, the last one at `end`; where they begin. */
static char *mpt__tools_digits(char *end, uint64_t value, int least) {
    *end = '\0';
    do *--end = (char)('0' + value % 10), least--;
    while ((value /= 10) > 0 || least > 0);
    return end;
}

/* With so many digits behind the point, of a magnitude below 2^63 times that. */
static void mpt__tools_put_fixed(mpt__tools_note *to, double value, int digits) {
    char text[32];
    uint64_t unit = 1;
    for (int i = 0; i < digits; i++) unit *= 10;
    const uint64_t all = (uint64_t)(value * (double)unit + 0.5);
    for (const char *c = mpt__tools_digits(text + 31, all / unit, 1); *c; c++)
        mpt__tools_note_char(to, *c);
    if (digits == 0) return;
    mpt__tools_note_char(to, '.');
    for (const char *c = mpt__tools_digits(text + 31, all % unit, digits); *c; c++)
        mpt__tools_note_char(to, *c);
}

/* With so many digits in all, without zeros at the end, as %g: 0.0025, 1500, 6.554e+04. */
static void mpt__tools_put_short(mpt__tools_note *to, double value, int digits) {
    char all[32], text[32];
    int exponent = 0, n = digits;
    uint64_t unit = 1;
    for (int i = 1; i < digits; i++) unit *= 10;
    for (; value >= 10; value /= 10) exponent++;
    for (; value > 0 && value < 1; value *= 10) exponent--;
    uint64_t number = (uint64_t)(value * (double)unit + 0.5);
    if (number >= 10 * unit) number /= 10, exponent++; /* 9.9996 */
    const char *digit = mpt__tools_digits(all + 31, number, digits);
    while (n > 1 && digit[n - 1] == '0') n--;
    const bool plain = exponent >= -4 && exponent < digits;
    const int whole = !plain ? 1 : exponent < 0 ? 0 : exponent + 1; /* digits before the point */
    if (whole == 0) mpt__tools_note_char(to, '0');
    for (int i = 0; i < whole; i++) mpt__tools_note_char(to, i < n ? digit[i] : '0');
    if (n > whole) mpt__tools_note_char(to, '.');
    for (int i = exponent + 1; plain && i < 0; i++) mpt__tools_note_char(to, '0');
    for (int i = whole; i < n; i++) mpt__tools_note_char(to, digit[i]);
    if (plain) return;
    mpt__tools_note_char(to, 'e');
    mpt__tools_note_char(to, exponent < 0 ? '-' : '+');
    const uint64_t size = (uint64_t)(exponent < 0 ? -exponent : exponent);
    for (const char *c = mpt__tools_digits(text + 31, size, 2); *c; c++)
        mpt__tools_note_char(to, *c);
}

static void mpt__tools_put_double(mpt__tools_note *to, char kind, double value, int digits) {
    if (!mpt__tools_is_finite(value)) {
        const uint64_t bits = mpt__tools_bits_of(value);
        const char *word = bits << 12 ? "nan" : bits >> 63 ? "-inf" : "inf";
        for (; *word; word++) mpt__tools_note_char(to, *word);
        return;
    }
    if (value < 0) mpt__tools_note_char(to, '-');
    const double size = value < 0 ? -value : value;
    if (kind == 'f' && size < 1e12)
        mpt__tools_put_fixed(to, size, digits);
    else
        mpt__tools_put_short(to, size, digits > 0 ? digits : 1);
}

/* Of printf: %s, %lld, %f, %g, with '-', width and precision, and %%. */
static void mpt__tools_note_list(mpt__tools_note *note, const char *format, va_list *arguments) {
    for (; *format; format++) {
        char field[640];
        mpt__tools_note one = mpt__tools_note_begin(field, sizeof field);
        int width = 0, digits = 6;
        if (*format != '%' || *++format == '%') {
            mpt__tools_note_char(note, *format);
            continue;
        }
        const bool left = *format == '-';
        for (format += left; *format >= '0' && *format <= '9'; format++)
            width = 10 * width + (*format - '0');
        if (*format == '.')
            for (digits = 0, format++; *format >= '0' && *format <= '9'; format++)
                digits = 10 * digits + (*format - '0');
        if (*format == 's') {
            for (const char *c = va_arg(*arguments, const char *); *c; c++)
                mpt__tools_note_char(&one, *c);
        } else if (*format == 'l') { /* lld */
            const int64_t value = va_arg(*arguments, long long);
            char text[32];
            if (value < 0) mpt__tools_note_char(&one, '-');
            const uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
            for (const char *c = mpt__tools_digits(text + 31, size, 1); *c; c++)
                mpt__tools_note_char(&one, *c);
            format += 2;
        } else {
            mpt__tools_put_double(&one, *format, va_arg(*arguments, double), digits);
        }
        for (int64_t i = (int64_t)one.length; !left && i < width; i++)
            mpt__tools_note_char(note, ' ');
        for (size_t i = 0; i < one.length && i + 1 < sizeof field; i++)
            mpt__tools_note_char(note, field[i]);
        for (int64_t i = (int64_t)one.length; left && i < width; i++)
            mpt__tools_note_char(note, ' ');
    }
}

#if defined(__GNUC__) && !defined(_WIN32)
#define MPT__TOOLS_FORMAT(n) __attribute__((format(printf, n, n + 1)))
#else
#define MPT__TOOLS_FORMAT(n)
#endif

MPT__TOOLS_FORMAT(2)
static void mpt__tools_note_add(mpt__tools_note *note, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mpt__tools_note_list(note, format, &arguments);
    va_end(arguments);
}

#endif
