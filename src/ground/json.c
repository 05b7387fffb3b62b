/* ----
 * ground/json.c: UTF-8, and JSON read value by value. What a file holds its reader asks for; what
 * is anything else is refused with its place. No recursion, and nothing is allocated.
 * ---- */
#ifndef MPT__GROUND_JSON_INCLUDED
#define MPT__GROUND_JSON_INCLUDED

#include "ground/base.c"

/* ==== UTF-8 ==== */

/* The bytes that the first character takes, or 0 if they are no UTF-8. */
static size_t mpt__utf8_read(const uint8_t *p, size_t n, uint32_t *code) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0) return 0;
    size_t size = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (size == 0 || size > n || p[0] > 0xf4) return 0;
    *code = size == 1 ? p[0] : p[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (p[i] & 0x3fu);
    }
    return *code < least[size] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0
                                                                                          : size;
}

/* A code point as UTF-8; returns its 1 to 4 bytes. */
static size_t mpt__utf8_write(uint32_t code, uint8_t out[4]) {
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = size; i-- > 1; code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3f));
    out[0] = (uint8_t)(size == 1 ? code : (0xf00u >> size & 0xf0) | code);
    return size;
}

/* ==== JSON ==== */

/* A text, and the place in it that is being read. */
typedef struct {
    mpt__base *base;  /* is told of faults */
    const char *name; /* of the file, or "memory", for messages */
    uint8_t *text;
    size_t size, at;
    size_t before; /* bytes of the file that stand before the text */
} mpt__json;

/* A string, decoded over its own spelling. */
typedef struct {
    uint8_t *text;
    size_t length;
} mpt__span;

static void mpt__json_tell(const mpt__json *json, const char *what) {
    mpt__fail(json->base, MPT_ERROR_FORMAT, "%s, byte %lld: %s", json->name,
        (int64_t)(json->before + json->at), what);
}
#define mpt__json_refuse(json, what) (mpt__json_tell(json, what), false)

/* The next byte, 0 at the end. */
static uint8_t mpt__json_byte(const mpt__json *json) {
    return json->at < json->size ? json->text[json->at] : 0;
}

/* The next byte that is no white space. */
static uint8_t mpt__json_peek(mpt__json *json) {
    for (;; json->at++) {
        uint8_t c = mpt__json_byte(json);
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
    }
}

/* Goes past `c` if it comes next. */
static bool mpt__json_take(mpt__json *json, uint8_t c) {
    bool here = mpt__json_peek(json) == c;
    if (here) json->at++;
    return here;
}

static bool mpt__json_expect(mpt__json *json, uint8_t c, const char *otherwise) {
    return mpt__json_take(json, c) || mpt__json_refuse(json, otherwise);
}

/* After an element of a list that ends with `close`: whether that was the last. */
static bool mpt__json_more(mpt__json *json, uint8_t close, bool *done) {
    *done = mpt__json_take(json, close);
    return *done || mpt__json_expect(json, ',', "',' or the closing bracket expected");
}

static bool mpt__json_end(mpt__json *json) {
    mpt__json_peek(json);
    return json->at == json->size || mpt__json_refuse(json, "text after the closing bracket");
}

/* A natural number below 2^63, without sign, fraction, exponent or leading zeros. */
static bool mpt__json_natural(mpt__json *json, int64_t *value) {
    uint8_t c = mpt__json_peek(json);
    size_t start = json->at;
    *value = 0;
    for (; c >= '0' && c <= '9'; json->at++, c = mpt__json_byte(json)) {
        if (*value > (INT64_MAX - (c - '0')) / 10)
            return mpt__json_refuse(json, "the number is too large");
        *value = *value * 10 + (c - '0');
        if (*value < 10 && json->at > start)
            return mpt__json_refuse(json, "a number begins with 0");
    }
    if (json->at == start || c == '.' || c == 'e' || c == 'E')
        return mpt__json_refuse(json, "a whole number expected");
    return true;
}

/* What follows "\u": four hexadecimal digits. */
static bool mpt__json_hex(mpt__json *json, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++, json->at++) {
        uint8_t c = mpt__json_byte(json), letter = c | 0x20;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
            : letter >= 'a' && letter <= 'f'  ? (uint32_t)(letter - 'a' + 10)
                                              : 16;
        if (digit > 15) return mpt__json_refuse(json, "four hexadecimal digits expected");
        *value = *value << 4 | digit;
    }
    return true;
}

/* What follows a backslash. */
static bool mpt__json_escape(mpt__json *json, uint32_t *code) {
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    uint8_t c = mpt__json_byte(json);
    const char *found = c ? strchr(escapes, c) : NULL;
    uint32_t low;
    json->at++;
    if (found) *code = (uint32_t)meanings[found - escapes];
    if (found) return true;
    if (c != 'u') return mpt__json_refuse(json, "an unknown escape");
    if (!mpt__json_hex(json, code)) return false;
    if (*code == 0) return mpt__json_refuse(json, "a NUL in a string");
    if (*code < 0xd800 || *code > 0xdfff) return true;
    if (*code > 0xdbff || json->size - json->at < 2 || json->text[json->at] != '\\' ||
        json->text[json->at + 1] != 'u')
        return mpt__json_refuse(json, "half of a surrogate pair");
    json->at += 2;
    if (!mpt__json_hex(json, &low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return mpt__json_refuse(json, "half of a surrogate pair");
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* The next character of a string. False behind its closing quote, with *good set to true, and at a
   fault, which is recorded. */
static bool mpt__json_char(mpt__json *json, uint32_t *code, bool *good) {
    *good = false;
    if (json->at >= json->size) return mpt__json_refuse(json, "a string without end");
    uint8_t c = json->text[json->at];
    if (c == '"') {
        json->at++;
        *good = true;
        return false;
    }
    if (c < 0x20) return mpt__json_refuse(json, "a control character in a string");
    if (c == '\\') {
        json->at++;
        return mpt__json_escape(json, code);
    }
    size_t length = mpt__utf8_read(json->text + json->at, json->size - json->at, code);
    json->at += length;
    return length > 0 || mpt__json_refuse(json, "a string is not valid UTF-8");
}

/* A string, decoded in place: no character is longer than its spelling. */
static bool mpt__json_string(mpt__json *json, mpt__span *string) {
    uint32_t code;
    bool good;
    if (!mpt__json_expect(json, '"', "a string expected")) return false;
    string->text = json->text + json->at;
    string->length = 0;
    while (mpt__json_char(json, &code, &good)) {
        uint8_t out[4];
        size_t length = mpt__utf8_write(code, out);
        memcpy(string->text + string->length, out, length);
        string->length += length;
    }
    return good;
}

/* A key with its colon. */
static bool mpt__json_key(mpt__json *json, mpt__span *key) {
    return mpt__json_string(json, key) && mpt__json_expect(json, ':', "':' expected");
}

/* Names as bytes, the shorter one first where one begins the other. */
static int mpt__span_compare(mpt__span a, mpt__span b) {
    int order = memcmp(a.text, b.text, a.length < b.length ? a.length : b.length);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static bool mpt__span_is(mpt__span span, const char *text) {
    return strlen(text) == span.length && memcmp(text, span.text, span.length) == 0;
}

static mpt__span mpt__span_of(const char *text) {
    mpt__span span = {(uint8_t *)(uintptr_t)text, strlen(text)}; /* only read */
    return span;
}

/* ==== Patterns ====
 *
 * Names in which one '*' at most stands for any text, also none or with dots. */

static bool mpt__pattern_good(const char *pattern) {
    return pattern && *pattern && strchr(pattern, '*') == strrchr(pattern, '*');
}

/* Whether a name fits a pattern, and the text that its '*' stands for. */
static bool mpt__pattern_fits(const char *pattern, mpt__span name, mpt__span *star) {
    const char *at = strchr(pattern, '*');
    size_t length = strlen(pattern), head = at ? (size_t)(at - pattern) : length;
    size_t tail = at ? length - head - 1 : 0;
    if (at ? name.length < head + tail : name.length != length) return false;
    star->text = name.text + head;
    star->length = name.length - head - tail;
    return memcmp(pattern, name.text, head) == 0 &&
        memcmp(pattern + length - tail, star->text + star->length, tail) == 0;
}

#endif
