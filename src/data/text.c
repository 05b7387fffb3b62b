/* ----
 * data/text.c: tokenizers (characters, byte-level BPE) and windows of tokens as samples.
 *
 * Files are checked while they are read; what they take is a few times their size.
 * ---- */
#ifndef MPT__DATA_TEXT_INCLUDED
#define MPT__DATA_TEXT_INCLUDED

#include "face/data.h"
#include "data/dataset.c"

#define MPT__MAX_BPE_FILE (INT64_C(1) << 26)        /* bytes; GPT-2's have one million and less */
#define MPT__WINDOW_STREAM UINT64_C(0x77696e646f77) /* "window" */

/* ==== Tokens ==== */

/* Where tokens go: counted, and written while there is room, as int32 or in `width` bytes. */
typedef struct {
    int32_t *tokens;
    uint8_t *packed;
    int width;
    int64_t count, capacity;
} mpt__token_sink;

static void mpt__token_put(mpt__token_sink *sink, int32_t token) {
    int64_t i = sink->count++;
    if (i >= sink->capacity) return;
    if (sink->tokens) sink->tokens[i] = token;
    for (int k = 0; sink->packed && k < sink->width; k++)
        sink->packed[i * sink->width + k] = (uint8_t)((uint32_t)token >> 8 * k);
}

#ifdef MPTRAIN_NO_TEXT

MPT__BEGIN_ABSENT
static void mpt__tokenizer_free(mpt_context *ctx, void *object) {}

static mpt_tokenizer mpt__no_tokenizer(mpt_context *ctx, const char *call) {
    mpt_tokenizer none = {ctx, 0, 0};
    mpt__absent(ctx, call, "tokenizers (MPTRAIN_NO_TEXT)");
    return none;
}

mpt_tokenizer mpt_char_tokenizer(mpt_context *ctx, const char *path) {
    return mpt__no_tokenizer(ctx, "mpt_char_tokenizer");
}

mpt_tokenizer mpt_bpe_tokenizer(
    mpt_context *ctx, const char *vocabulary_path, const char *merges_path) {
    return mpt__no_tokenizer(ctx, "mpt_bpe_tokenizer");
}

int64_t mpt_vocabulary_size(mpt_tokenizer tokenizer) {
    mpt__no_tokenizer(tokenizer.context, "mpt_vocabulary_size");
    return -1;
}

int64_t mpt_token_of(mpt_tokenizer tokenizer, const char *text, size_t bytes) {
    mpt__no_tokenizer(tokenizer.context, "mpt_token_of");
    return -1;
}

int64_t mpt_encode(
    mpt_tokenizer tokenizer, const char *text, size_t bytes, int32_t *tokens, int64_t capacity) {
    mpt__no_tokenizer(tokenizer.context, "mpt_encode");
    return -1;
}

int64_t mpt_decode(
    mpt_tokenizer tokenizer, const int32_t *tokens, int64_t count, char *text, int64_t capacity) {
    mpt__no_tokenizer(tokenizer.context, "mpt_decode");
    return -1;
}

mpt_status mpt_tokenizer_destroy(mpt_tokenizer tokenizer) {
    mpt__no_tokenizer(tokenizer.context, "mpt_tokenizer_destroy");
    return mpt__status_of(tokenizer.context);
}

mpt_dataset mpt_text_file(
    mpt_tokenizer tokenizer, const char *path, const mpt_window_config *config) {
    mpt__no_tokenizer(tokenizer.context, "mpt_text_file");
    return mpt__dataset_handle(tokenizer.context, NULL);
}
MPT__END_ABSENT

#else

/* ==== Characters ==== */

/* Letters, numbers, white space of Unicode 17, all else a mark: made by tools/unicode_classes.py,
   which says how to read it. */
enum { MPT__MARK, MPT__LETTER, MPT__NUMBER, MPT__SPACE };
static const char mpt__unicode_classes[] =
    "J7n$'a$K@]%<]%N'`%'H'A+('1(')/(Q%(q%(wJ4S$\\$7@'('\\.7(+,3('<'(/('(s$([*(U/De1(_&,'<k&Z)a%43|"
    "&s&y$K4+(m+('`$+@-L/,'d$'(m%j%s*P']$Ly%H+4'8{$4'H'0'R%Y%@O8U%(\?d$o&T(q'0'l$'@K5K(c$4C,+,{$("
    "\?('030'd$'X$+(/5L+-;,'D;4+,{$(\?(+(+(+r%3('AK,/d$G(/({$(\?(+(70'l$'`$+5KH'PC,+,{$(\?(+(70'n%"
    "+(/5K();P'(;0/(30+('(+0+0/0S$|$'y$W$l$C(/(Q%(c$0'^%/(+,+5KE\?('4C(/(Q%(K(70'n%/(+5K(+h$G(/(k&"
    ",'d$'8/)@/5o$(;8k$0U%(G(',\?s%Kh$Y'(+T$\?IKd&+('(7(U%('(K(+H',7('IK,3v%'s%s$T$C(W&b%7R-s&t$)K"
    "<;430'0+@/4W$T$')K<_&('8',s&(}\?(3,\?('(3,k&(3,y%(3,\?('(3,_$(}'(3,w(]$s$0c$d$g*,;0{X$,j$(]%8"
    "i)10C@k$X$o$\\$k$\\$W$(/`$i'T&'4'1K=K}$K<s*@7,}%('8U)Lq%e&Lm%,7Pw&4]%=O\\&Q%Hm'u&K=KX$'V+U'h$"
    "C1Kl&m%X$-Lw&^%W&g%K01LW&,O8s&,/l&3(;(+0'8q3l(Y;,;,_&,;,C('('('(q%,m'(\?('0/(\?03,;4W$8/(\?2O"
    "l%+:'X''e$('-;8)K<W$v+'4',K('07<'('('(3(O,3874')f'-7Yb$[(w){$wY$m%fW%{6<30+I',_&('8',y'@'d$Q%"
    "H\?(\?(\?(\?(\?(\?(\?(\?~)'dK'4-'[%G@7-0+4g*</(w*(38s&(Y+13Lu%Z'c$w%Ko%C)_$w%Ke&_$x>[f/l(qyLx"
    "(Q',c:0e$L+t$U'd$q%,W)Kd&G,}+,W*t$g$(/(3(Q%Y$;Li'\\$a'g%KV%;0'(+)Le%LQ%Z%i%@U'f%)K<7(ML7(k&R%"
    "/(C5K<Q%0'0a'('0+,7,'('V%/,O@/T$;,;,;H\?(\?(s&([$<Q-Y$K<gV8T$Q%4]'~}2wB,[,`&\?T$78'(K(W$(7('("
    "+(+(c,z%kBl$k(,q'h&S$V-7(s.q$K@]%<]%Ps*0;,;,;,/T&S$(]%(o$(+(_$,[$~%q-U${&U$}'i$+\\8i%0]'e$a%4"
    "w%3Hu$(E'8_&Lm%,W&4C)7p&s0-K<W&4W&4g&Di'T$O(_$(\?(+(O(_$(\?(+0i'T$S>H{$LCV%;(o&(GR);,'(w&(+0'"
    ",Q%-DQ%-@q%EGZ'o$(+98}$;4]%<]%`&y'5,-c$-R''`$3(/(i%MGR%k%+(k%/v%C(e%=7d$q'L{$-Do$9Dk$S%\?~)a)"
    "v'e'X$e'A<W&U$K=Le%HQ%Q6q%(o&<+d$;z'k%L'D{$Q$3b%k$R'y$\?t$Q%T$m'_%m%(+,'X${&v%Y%AKHW&a$K4','D"
    "S&0'T$Y'\\$3Q$L'('5s$Pk$(Y%p$+h(\?('(3(_$(K@U'i$KPC,+,{$(\?(+(70'l$'T$7n%K(','(_&('Z%'('x&m'l"
    "$39K8/n%Y't$+('EKf1U'l&3X&Y't$'Q$K`&s&X$'AK=s$f%a%y$S$4\?V3w&V-m(o$T$C,',C(+(U%`$'(']$KV)C,c&"
    "d$'('f%'Lg&@'x$'PQ'p$'l$a)`4y%a$K<G([&h$'a$i%8m%t,\?(+(_&x$'IK<;(+(u%\\$'AK<w&5Kd8o$`$'(W$(}%"
    "g%Kh*'a$w$t&Ys${+o,h$S4\\~'e+`$[R%h$;Z%cj*8qU$z{/m%m$Kv]&gT$@q%)K<y))K<m%l$Y'd$3U$K)\?(w$8o$l"
    "H{&1K\\4m(Q%HY%,Y%x&i)8't(W$l(+('\\$-/H{|0l&u%f+Q-ne33(\?(+(_<`$'j%/,'\\$3DeEra'_,8W$0G@Kqz*K"
    "ku%s$U$s$e,Y%t.c*(Y)(+,',+,3(S$('(\?(o((3,C(\?(e%(3(7('0\?(k@,Y%(Y%(q%(Y%(q%(Y%(q%(Y%(q%(Y%(C"
    "-a'xb&q%<;r9c(r/{&L\?-K4'|>m%l$w&5KzKe%5Kn5m%,)KX4q%(/(+(\?,7H+h6\?(3(+(_$(W4-GZ'{(@'5Kwg$W()"
    "/)3o){&)_$z33(a%(+(','(K(3('('<'4'('('(/(+(','('('('('(+(',3(\?(3(3('(K(g$8/(7(g$gU$W$c](Kl|$"
    "uss$v%S^+,U{-,wV1`$UY$fo'WR$~w%g`,8]S3";

#define MPT__CLASS_RUNS 1627

/* ==== Tokenizers ==== */

typedef struct {
    int32_t left, right, rank, token; /* rank -1: an empty row */
} mpt__merge;

/* Memory with its size. */
typedef struct {
    void *at;
    size_t bytes;
} mpt__memory;

enum {
    MPT__TOKEN_TEXT,
    MPT__TOKEN_PLACE,
    MPT__TOKEN_SIZE,
    MPT__TOKEN_FIND,
    MPT__TOKEN_MERGES,
    MPT__TOKEN_WORK,
    MPT__TOKEN_PARTS
};

typedef struct {
    mpt__id id;
    mpt__memory memory[MPT__TOKEN_PARTS];
    int64_t count;
    uint8_t *text;          /* of all tokens */
    uint32_t *place, *size; /* of each in it */
    uint32_t *find;         /* open addressing by the hash of the text: number + 1, 0 = empty */
    size_t find_mask;
    bool pairs;
    mpt__merge *merges; /* open addressing by the pair */
    size_t merge_mask;
    int32_t of_byte[256];           /* -1: none */
    uint32_t runs[MPT__CLASS_RUNS]; /* 4 * first code point + class; from 0, a mark, on */
} mpt__tokenizer;

MPT__HANDLES(tokenizer, MPT__TOKENIZER)
MPT__HANDLE_AT(tokenizer, MPT__TOKENIZER)

static void mpt__tokenizer_free(mpt_context *ctx, void *object) {
    mpt__tokenizer *tokenizer = (mpt__tokenizer *)object;
    for (int i = 0; i < MPT__TOKEN_PARTS; i++)
        mpt__host_free(ctx, tokenizer->memory[i].at, tokenizer->memory[i].bytes);
}

/* A zeroed part of `count` elements in place of what was there. NULL with an error recorded. */
static void *mpt__tokenizer_part(
    mpt_context *ctx, mpt__tokenizer *tokenizer, int part, int64_t count, size_t size) {
    mpt__memory *memory = &tokenizer->memory[part];
    mpt__host_free(ctx, memory->at, memory->bytes);
    memory->at = NULL, memory->bytes = 0;
    if (count > (int64_t)((size_t)PTRDIFF_MAX / size)) {
        mpt__fail_memory(&ctx->base, PTRDIFF_MAX, MPT_MEMORY_HOST);
        return NULL;
    }
    memory->at = mpt__host_new(ctx, (size_t)count * size);
    if (memory->at) memory->bytes = (size_t)count * size;
    return memory->at;
}

/* The least power of two with a third of it free. */
static size_t mpt__table_size(int64_t count) {
    size_t size = 8;
    while (size * 2 / 3 < (size_t)count) size *= 2;
    return size;
}

/* The row of a token, or the empty one where it would be. */
static uint32_t *mpt__token_row(const mpt__tokenizer *tokenizer, const uint8_t *text, size_t n) {
    size_t at = (size_t)mpt__hash_bytes(0, text, n) & tokenizer->find_mask;
    for (;; at = (at + 1) & tokenizer->find_mask) {
        uint32_t number = tokenizer->find[at];
        if (number == 0 || (tokenizer->size[number - 1] == n &&
                            memcmp(tokenizer->text + tokenizer->place[number - 1], text, n) == 0))
            return &tokenizer->find[at];
    }
}

static int64_t mpt__token_find(const mpt__tokenizer *tokenizer, const uint8_t *text, size_t n) {
    return (int64_t)*mpt__token_row(tokenizer, text, n) - 1;
}

/* Fills `find`. Gives the first token that is there twice; -1: none, -2: error. */
static int64_t mpt__tokenizer_index(mpt_context *ctx, mpt__tokenizer *tokenizer) {
    size_t size = mpt__table_size(tokenizer->count);
    tokenizer->find = (uint32_t *)mpt__tokenizer_part(
        ctx, tokenizer, MPT__TOKEN_FIND, (int64_t)size, sizeof(uint32_t));
    tokenizer->find_mask = size - 1;
    for (int64_t i = 0; tokenizer->find && i < tokenizer->count; i++) {
        uint32_t *row =
            mpt__token_row(tokenizer, tokenizer->text + tokenizer->place[i], tokenizer->size[i]);
        if (*row) return i;
        *row = (uint32_t)i + 1;
    }
    return tokenizer->find ? -1 : -2;
}

/* Places for `count` tokens in `bytes` of text. */
static bool mpt__tokenizer_room(
    mpt_context *ctx, mpt__tokenizer *tokenizer, int64_t count, int64_t bytes) {
    tokenizer->count = count;
    tokenizer->text = (uint8_t *)mpt__tokenizer_part(ctx, tokenizer, MPT__TOKEN_TEXT, bytes, 1);
    tokenizer->place =
        (uint32_t *)mpt__tokenizer_part(ctx, tokenizer, MPT__TOKEN_PLACE, count, sizeof(uint32_t));
    tokenizer->size =
        (uint32_t *)mpt__tokenizer_part(ctx, tokenizer, MPT__TOKEN_SIZE, count, sizeof(uint32_t));
    return mpt__ok(ctx);
}

/* A file of at most `most` bytes, to be freed with *size; NULL with an error recorded. */
static uint8_t *mpt__text_read(mpt_context *ctx, const char *path, int64_t most, size_t *size) {
    mpt__reader file;
    uint8_t *bytes = NULL;
    if (!mpt__reader_open(&file, ctx, path)) return NULL;
    *size = (size_t)file.size;
    if (file.size < 1 || file.size > most)
        mpt__error(ctx, FORMAT, "%s: %lld bytes; expected 1 to %lld", path, file.size, most);
    else
        bytes = mpt__reader_rest(&file, (const uint8_t *)"", 0, MPT_MEMORY_HOST);
    mpt__reader_close(&file);
    /* Text may be that of a web page; a vocabulary is none. */
    const char *wide = bytes ? mpt__what_is_wide(bytes, *size) : NULL;
    if (wide) mpt__error(ctx, FORMAT, "%s: this is %s", path, wide);
    if (!bytes || (!wide && mpt__refuse_known(ctx, path, bytes, *size,
                                              most == MPT__MAX_BPE_FILE ? MPT__KNOWN_ALL : 1)))
        return bytes;
    mpt__host_free(ctx, bytes, *size);
    return NULL;
}

/* ==== Characters as tokens ==== */

static bool mpt__char_fill(mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path,
    const uint8_t *text, size_t n, uint8_t *seen) {
    int64_t count = 0, bytes = 0;
    uint32_t code = 0;
    for (size_t at = 0, size; at < n; at += size) {
        size = mpt__utf8_read(text + at, n - at, &code);
        if (size == 0)
            return mpt__refuse_known(ctx, path, text, n, MPT__KNOWN_ALL) &&
                mpt__reject(
                    ctx, FORMAT, "%s: byte %lld begins no UTF-8 character", path, (int64_t)at);
        count += !(seen[code / 8] >> code % 8 & 1);
        bytes += !(seen[code / 8] >> code % 8 & 1) ? (int64_t)size : 0;
        seen[code / 8] |= (uint8_t)(1 << code % 8);
    }
    if (!mpt__tokenizer_room(ctx, tokenizer, count, bytes)) return false;
    uint32_t place = 0;
    for (code = 0, count = 0; code <= 0x10ffff; code++) {
        uint8_t utf8[4];
        if (!(seen[code / 8] >> code % 8 & 1)) continue;
        size_t size = mpt__utf8_write(code, utf8);
        memcpy(tokenizer->text + place, utf8, size);
        tokenizer->place[count] = place, tokenizer->size[count++] = (uint32_t)size;
        place += (uint32_t)size;
    }
    return mpt__tokenizer_index(ctx, tokenizer) == -1;
}

static bool mpt__char_load(
    mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path, const char *unused) {
    size_t seen_bytes = 0x110000 / 8;
    size_t n = 0;
    (void)unused;
    uint8_t *text = mpt__text_read(ctx, path, PTRDIFF_MAX, &n);
    uint8_t *seen = text ? (uint8_t *)mpt__host_new(ctx, seen_bytes) : NULL;
    bool good = seen && mpt__char_fill(ctx, tokenizer, path, text, n, seen);
    mpt__host_free(ctx, text, n);
    mpt__host_free(ctx, seen, seen_bytes);
    return good;
}

MPT__BEGIN_COLD
/* ==== The files of byte-level BPE ==== */

/* These files write each byte as a visible character: itself, or one from 256 on. -1: no such
   character. */
static int mpt__byte_of(uint32_t code) {
    if ((code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255))
        return (int)code;
    uint32_t k = code - 256;
    if (code < 256 || k > 67) return -1;
    return (int)(k < 33 ? k : k < 67 ? 127 + (k - 33) : 173);
}

/* A string of bytes written as characters, to `out` (or NULL), which has room for all that is
   left. */
static bool mpt__bpe_string(mpt__json *json, uint8_t *out, size_t *size) {
    uint32_t code;
    bool good;
    *size = 0;
    if (!mpt__json_expect(json, '"', "a string expected")) return false;
    while (mpt__json_char(json, &code, &good)) {
        int byte = mpt__byte_of(code);
        if (byte < 0) return mpt__json_refuse(json, "a character that stands for no byte");
        if (out) out[*size] = (uint8_t)byte;
        ++*size;
    }
    return good && (*size > 0 || mpt__json_refuse(json, "an empty token"));
}

/* The object of tokens and numbers: counts them, or fills a tokenizer with room for them. */
static bool mpt__bpe_object(
    mpt__json *json, mpt__tokenizer *tokenizer, int64_t *count, int64_t *bytes) {
    json->at = 0;
    *count = *bytes = 0;
    if (!mpt__json_expect(json, '{', "an object expected")) return false;
    for (bool done = false; !done; ++*count) {
        size_t size;
        int64_t number;
        if (!mpt__bpe_string(json, tokenizer ? tokenizer->text + *bytes : NULL, &size) ||
            !mpt__json_expect(json, ':', "':' expected") || !mpt__json_natural(json, &number))
            return false;
        if (tokenizer) {
            if (number >= tokenizer->count)
                return mpt__json_refuse(json, "numbers are not 0 to the number of tokens - 1");
            if (tokenizer->size[number]) return mpt__json_refuse(json, "a number given twice");
            tokenizer->place[number] = (uint32_t)*bytes;
            tokenizer->size[number] = (uint32_t)size;
        }
        *bytes += (int64_t)size;
        if (!mpt__json_more(json, '}', &done)) return false;
    }
    return mpt__json_end(json);
}

static bool mpt__bpe_vocabulary(
    mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path, uint8_t *text, size_t n) {
    size_t mark = mpt__mark_bytes(text, n);
    mpt__json json = {&ctx->base, path, text + mark, n - mark, 0, mark};
    int64_t count, bytes;
    if (!mpt__bpe_object(&json, NULL, &count, &bytes) ||
        !mpt__tokenizer_room(ctx, tokenizer, count, bytes) ||
        !mpt__bpe_object(&json, tokenizer, &count, &bytes))
        return false;
    int64_t twice = mpt__tokenizer_index(ctx, tokenizer);
    if (twice >= 0)
        return mpt__reject(ctx, FORMAT, "%s: token %lld is spelled as an earlier one", path, twice);
    for (int i = 0; i < 256 && twice == -1; i++) {
        uint8_t byte = (uint8_t)i;
        tokenizer->of_byte[i] = (int32_t)mpt__token_find(tokenizer, &byte, 1);
    }
    return twice == -1;
}

/* The row of a pair, or the empty one where it would be. */
static mpt__merge *mpt__merge_row(const mpt__tokenizer *tokenizer, int32_t left, int32_t right) {
    size_t at = (size_t)mpt__hash_u64((uint64_t)(uint32_t)left, (uint64_t)(uint32_t)right) &
        tokenizer->merge_mask;
    for (;; at = (at + 1) & tokenizer->merge_mask) {
        mpt__merge *row = &tokenizer->merges[at];
        if (row->rank < 0 || (row->left == left && row->right == right)) return row;
    }
}

/* One line "left right" of n bytes, for which `bytes` has room; NULL, or what is wrong. */
static const char *mpt__merge_line(
    const mpt__tokenizer *tokenizer, const uint8_t *line, size_t n, int32_t rank, uint8_t *bytes) {
    size_t length = 0, left = 0;
    for (size_t at = 0, size; at < n; at += size) {
        uint32_t code;
        size = mpt__utf8_read(line + at, n - at, &code);
        if (size && code == ' ' && left == 0 && length > 0) {
            left = length;
            continue;
        }
        int byte = size ? mpt__byte_of(code) : -1;
        if (byte < 0) return "has a character that stands for no byte";
        bytes[length++] = (uint8_t)byte;
    }
    if (left == 0 || left == length) return "is not two tokens with a space between them";
    int64_t a = mpt__token_find(tokenizer, bytes, left);
    int64_t b = mpt__token_find(tokenizer, bytes + left, length - left);
    int64_t both = mpt__token_find(tokenizer, bytes, length);
    if (a < 0 || b < 0 || both < 0) return "makes, or is made of, what is not in the vocabulary";
    mpt__merge *row = mpt__merge_row(tokenizer, (int32_t)a, (int32_t)b);
    if (row->rank >= 0) return "repeats an earlier one";
    row->left = (int32_t)a, row->right = (int32_t)b;
    row->token = (int32_t)both, row->rank = rank;
    return NULL;
}

static bool mpt__bpe_merges(mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path,
    const uint8_t *text, size_t n, uint8_t *bytes) {
    int64_t lines = 1, number = 1;
    int32_t rank = 0;
    size_t mark = mpt__mark_bytes(text, n);
    text += mark, n -= mark;
    for (size_t i = 0, start = 0; i < n; i++) {
        if (text[i] != '\n') continue;
        lines += i - start >= 3; /* shorter ones are no merges */
        start = i + 1;
    }
    size_t size = mpt__table_size(lines);
    tokenizer->merges = (mpt__merge *)mpt__tokenizer_part(
        ctx, tokenizer, MPT__TOKEN_MERGES, (int64_t)size, sizeof(mpt__merge));
    if (!tokenizer->merges) return false;
    tokenizer->merge_mask = size - 1;
    for (size_t i = 0; i < size; i++) tokenizer->merges[i].rank = -1;
    for (size_t at = 0, end; at < n; at = end + 1, number++) {
        size_t length;
        for (end = at; end < n && text[end] != '\n';) end++;
        length = end - at;
        if (length > 0 && text[end - 1] == '\r') length--;
        if (length == 0 || (at == 0 && length >= 8 && memcmp(text, "#version", 8) == 0)) continue;
        const char *fault = mpt__merge_line(tokenizer, text + at, length, rank++, bytes);
        if (fault) return mpt__reject(ctx, FORMAT, "%s: line %lld %s", path, number, fault);
    }
    return true;
}

static void mpt__classes_read(uint32_t runs[MPT__CLASS_RUNS]) {
    const char *p = mpt__unicode_classes;
    for (int run = 1; run < MPT__CLASS_RUNS; run++) {
        uint32_t value = 0, digit, unit = 1;
        do {
            digit = (uint32_t)(*p++ - 35);
            value += digit % 46 * unit;
            unit *= 46;
        } while (digit >= 46);
        /* The class goes where that of the run before was. */
        runs[run] = (runs[run - 1] & ~3u) + value;
    }
}

static bool mpt__bpe_load(
    mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path, const char *merges_path) {
    size_t n = 0, n_merges = 0;
    uint8_t *text = mpt__text_read(ctx, path, MPT__MAX_BPE_FILE, &n);
    bool good = text && mpt__bpe_vocabulary(ctx, tokenizer, path, text, n);
    mpt__host_free(ctx, text, n);
    if (!good) return false;
    text = mpt__text_read(ctx, merges_path, MPT__MAX_BPE_FILE, &n_merges);
    uint8_t *bytes = text ? (uint8_t *)mpt__host_new(ctx, n_merges) : NULL;
    good = bytes && mpt__bpe_merges(ctx, tokenizer, merges_path, text, n_merges, bytes);
    mpt__host_free(ctx, bytes, n_merges);
    mpt__host_free(ctx, text, n_merges);
    tokenizer->pairs = true;
    mpt__classes_read(tokenizer->runs);
    return good;
}

static mpt_tokenizer mpt__tokenizer_make(mpt_context *ctx, const char *path,
    const char *merges_path,
    bool (*load)(
        mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path, const char *merges_path)) {
    mpt__tokenizer *made = NULL;
    if (!path || !merges_path)
        mpt__error(ctx, ARGUMENT, "%s is NULL",
            load == mpt__char_load ? "path"
                : path             ? "merges_path"
                                   : "vocabulary_path");
    else
        made = (mpt__tokenizer *)mpt__object_make(ctx, MPT__TOKENIZER, sizeof *made);
    if (made && !load(ctx, made, path, merges_path)) {
        mpt__object_free(ctx, MPT__TOKENIZER, made->id.slot);
        made = NULL;
    }
    return mpt__tokenizer_handle(ctx, made);
}

mpt_tokenizer mpt_char_tokenizer(mpt_context *ctx, const char *path) {
    if (!mpt__enter_files(ctx, "mpt_char_tokenizer")) return mpt__tokenizer_handle(ctx, NULL);
    return mpt__tokenizer_make(ctx, path, "", mpt__char_load);
}

mpt_tokenizer mpt_bpe_tokenizer(
    mpt_context *ctx, const char *vocabulary_path, const char *merges_path) {
    if (!mpt__enter_files(ctx, "mpt_bpe_tokenizer")) return mpt__tokenizer_handle(ctx, NULL);
    return mpt__tokenizer_make(ctx, vocabulary_path, merges_path, mpt__bpe_load);
}
MPT__END_REGION

/* ==== Encoding ==== */

/* Class and size of the first character; bytes that are no UTF-8 are marks. */
static int mpt__class_of(
    const mpt__tokenizer *tokenizer, const uint8_t *p, size_t n, size_t *size) {
    uint32_t code = 0;
    int low = 0, high = MPT__CLASS_RUNS;
    *size = mpt__utf8_read(p, n, &code);
    if (*size == 0) return *size = 1, MPT__MARK;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (tokenizer->runs[middle] / 4 <= code)
            low = middle;
        else
            high = middle;
    }
    return (int)(tokenizer->runs[low] & 3);
}

/* The first piece of GPT-2's pattern
   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t mpt__piece(const mpt__tokenizer *tokenizer, const uint8_t *p, size_t n) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    size_t at = p[0] == ' ', size, last = 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && p[0] == '\''; i++) {
        size_t length = strlen(endings[i]);
        if (n >= length && memcmp(p, endings[i], length) == 0) return length;
    }
    int kind = at < n ? mpt__class_of(tokenizer, p + at, n - at, &size) : MPT__SPACE;
    if (kind == MPT__SPACE) at = 0;
    while (at < n && mpt__class_of(tokenizer, p + at, n - at, &size) == kind) {
        at += size;
        last = size;
    }
    /* The last of several spaces belongs to what follows. */
    return kind == MPT__SPACE && at < n && at > last ? at - last : at;
}

/* What a piece is cut into while its pairs are merged. */
typedef struct {
    int32_t *token, *next, *before; /* token -1: merged away; next, before: -1 at the ends */
    uint64_t *heap;                 /* rank << 32 | place, the least first */
    size_t heap_size;
} mpt__symbols;

static void mpt__heap_push(mpt__symbols *s, uint64_t key) {
    size_t i = s->heap_size++;
    for (; i > 0 && s->heap[(i - 1) / 2] > key; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = key;
}

static uint64_t mpt__heap_pop(mpt__symbols *s) {
    uint64_t top = s->heap[0], key = s->heap[--s->heap_size];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < s->heap_size) {
        child += child + 1 < s->heap_size && s->heap[child + 1] < s->heap[child];
        if (s->heap[child] >= key) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = key;
    return top;
}

/* The merge of a symbol and the one after it; NULL: none. */
static const mpt__merge *mpt__symbol_merge(
    const mpt__tokenizer *tokenizer, const mpt__symbols *s, int32_t at) {
    if (at < 0 || s->token[at] < 0 || s->next[at] < 0) return NULL;
    const mpt__merge *row = mpt__merge_row(tokenizer, s->token[at], s->token[s->next[at]]);
    return row->rank < 0 ? NULL : row;
}

static void mpt__symbol_offer(const mpt__tokenizer *tokenizer, mpt__symbols *s, int32_t at) {
    const mpt__merge *merge = mpt__symbol_merge(tokenizer, s, at);
    if (merge) mpt__heap_push(s, (uint64_t)(uint32_t)merge->rank << 32 | (uint32_t)at);
}

/* The tokens of a piece: the pair of the least rank, leftmost first, is merged until there is
   none. */
static void mpt__piece_encode(const mpt__tokenizer *tokenizer, mpt__symbols *s, const uint8_t *p,
    int32_t n, mpt__token_sink *sink) {
    for (int32_t i = 0; i < n; i++) {
        s->token[i] = tokenizer->of_byte[p[i]];
        s->next[i] = i + 1 < n ? i + 1 : -1;
        s->before[i] = i - 1;
    }
    s->heap_size = 0;
    for (int32_t i = 0; i + 1 < n; i++) mpt__symbol_offer(tokenizer, s, i);
    while (s->heap_size > 0) {
        uint64_t key = mpt__heap_pop(s);
        int32_t at = (int32_t)(key & 0xffffffffu);
        const mpt__merge *merge = mpt__symbol_merge(tokenizer, s, at);
        if (!merge || (uint64_t)(uint32_t)merge->rank != key >> 32) continue; /* out of date */
        int32_t gone = s->next[at];
        s->token[at] = merge->token;
        s->token[gone] = -1;
        s->next[at] = s->next[gone];
        if (s->next[at] >= 0) s->before[s->next[at]] = at;
        mpt__symbol_offer(tokenizer, s, s->before[at]);
        mpt__symbol_offer(tokenizer, s, at);
    }
    for (int32_t i = 0; i >= 0; i = s->next[i]) mpt__token_put(sink, s->token[i]);
}

/* Room, which the tokenizer keeps, for the symbols of a piece of n bytes. */
static bool mpt__symbols_room(
    mpt_context *ctx, mpt__tokenizer *tokenizer, size_t n, mpt__symbols *s) {
    size_t each = 3 * sizeof(int32_t) + 3 * sizeof(uint64_t);
    mpt__memory *work = &tokenizer->memory[MPT__TOKEN_WORK];
    if (n > INT32_MAX / 2) return mpt__reject(ctx, ARGUMENT, "a word of %lld bytes", (int64_t)n);
    if (work->bytes < n * each &&
        !mpt__tokenizer_part(ctx, tokenizer, MPT__TOKEN_WORK, (int64_t)(n < 64 ? 64 : 2 * n), each))
        return false;
    size_t room = work->bytes / each;
    s->heap = (uint64_t *)work->at;
    s->token = (int32_t *)(void *)(s->heap + 3 * room);
    s->next = s->token + room;
    s->before = s->next + room;
    return true;
}

/* Of a file, or of memory with the path "". */
static bool mpt__text_encode(mpt_context *ctx, mpt__tokenizer *tokenizer, const char *path,
    const uint8_t *text, size_t n, mpt__token_sink *sink) {
    const char *colon = *path ? ": " : "";
    mpt__symbols symbols;
    for (size_t at = 0, size; at < n; at += size) {
        uint32_t code = 0;
        if (!tokenizer->pairs) {
            size = mpt__utf8_read(text + at, n - at, &code);
            int64_t token = size ? mpt__token_find(tokenizer, text + at, size) : -1;
            if (token < 0)
                return mpt__reject(ctx, ARGUMENT,
                    "%s%sbyte %lld begins no character of the vocabulary", path, colon,
                    (int64_t)at);
            mpt__token_put(sink, (int32_t)token);
            continue;
        }
        size = mpt__piece(tokenizer, text + at, n - at);
        for (size_t i = at; i < at + size; i++)
            if (tokenizer->of_byte[text[i]] < 0)
                return mpt__reject(ctx, ARGUMENT, "%s%sbyte %lld, which is %d, has no token", path,
                    colon, (int64_t)i, (int)text[i]);
        if (!mpt__symbols_room(ctx, tokenizer, size, &symbols)) return false;
        mpt__piece_encode(tokenizer, &symbols, text + at, (int32_t)size, sink);
    }
    return true;
}

int64_t mpt_vocabulary_size(mpt_tokenizer tokenizer) {
    const mpt__tokenizer *found = mpt__tokenizer_enter(tokenizer, "mpt_vocabulary_size");
    return found ? found->count : -1;
}

int64_t mpt_token_of(mpt_tokenizer tokenizer, const char *text, size_t bytes) {
    const mpt__tokenizer *found = mpt__tokenizer_enter(tokenizer, "mpt_token_of");
    if (!found || mpt__no_data_files(tokenizer.context)) return -1;
    if (text) return mpt__token_find(found, (const uint8_t *)text, bytes);
    mpt__error(tokenizer.context, ARGUMENT, "text is NULL");
    return -1;
}

int64_t mpt_encode(
    mpt_tokenizer tokenizer, const char *text, size_t bytes, int32_t *tokens, int64_t capacity) {
    mpt_context *ctx = tokenizer.context;
    mpt__token_sink sink = {tokens, NULL, 0, 0, capacity};
    mpt__tokenizer *found = mpt__tokenizer_enter(tokenizer, "mpt_encode");
    if (!found || mpt__no_data_files(ctx)) return -1;
    if ((!text && bytes) || (!tokens && capacity) || capacity < 0)
        mpt__error(ctx, ARGUMENT, "%lld bytes of text%s, room for %lld tokens%s", (int64_t)bytes,
            text ? "" : " at NULL", capacity, tokens ? "" : " at NULL");
    else if (mpt__text_encode(ctx, found, "", (const uint8_t *)text, bytes, &sink))
        return sink.count;
    return -1;
}

int64_t mpt_decode(
    mpt_tokenizer tokenizer, const int32_t *tokens, int64_t count, char *text, int64_t capacity) {
    mpt_context *ctx = tokenizer.context;
    const mpt__tokenizer *found = mpt__tokenizer_enter(tokenizer, "mpt_decode");
    int64_t length = 0;
    if (!found || mpt__no_data_files(ctx)) return -1;
    if (count < 0 || (!tokens && count) || (!text && capacity) || capacity < 0) {
        mpt__error(ctx, ARGUMENT, "%lld tokens%s, room for %lld bytes%s", count,
            tokens ? "" : " at NULL", capacity, text ? "" : " at NULL");
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= found->count) {
            mpt__error(ctx, INDEX, "token %lld is %d; the vocabulary has %lld", i, (int)tokens[i],
                found->count);
            return -1;
        }
        const uint8_t *from = found->text + found->place[tokens[i]];
        int64_t size = found->size[tokens[i]];
        for (int64_t k = 0; k < size && length + k < capacity; k++)
            text[length + k] = (char)from[k];
        length += size;
    }
    return length;
}

MPT__DESTROYS(tokenizer, MPT__TOKENIZER)

#endif /* MPTRAIN_NO_TEXT */

MPT__BEGIN_COLD
/* ==== Windows ==== */

MPT__DEFAULTS(mpt_window_config, config.block = 128;)

/* A row of tokens, in memory (owned[1]) or in a file. */
typedef struct {
    mpt_window_config config;
    int64_t count;
    int width; /* bytes of each, low one first */
    const uint8_t *bytes;
    char path[MPT__PATH_SIZE];
} mpt__tokens;

static bool mpt__window_make(MPT__MAKE_TAKES) {
    const mpt__tokens *tokens = (const mpt__tokens *)dataset->state;
    const mpt_window_config *config = &tokens->config;
    mpt__rng_key key = {mpt__hash_u64(seed, (uint64_t)at), MPT__WINDOW_STREAM, 0};
    int64_t block = config->block;
    int64_t *x = (int64_t *)input, *y = (int64_t *)target;
    int64_t first = at * config->stride;
    if (config->random)
        first = (int64_t)mpt__random_below(key, 0, (uint64_t)(tokens->count - block));
    const uint8_t *bytes = tokens->bytes ? tokens->bytes + first * tokens->width : work;
    if (!tokens->bytes && !mpt__file_part(dataset->base, tokens->path, first * tokens->width,
                                          (size_t)((block + 1) * tokens->width), work, error))
        return false;
    for (int64_t i = 0; i <= block; i++) {
        int64_t token =
            (int64_t)mpt__load_little_endian(bytes + i * tokens->width, (size_t)tokens->width);
        if (config->vocabulary > 0 && token >= config->vocabulary) {
            mpt__format_text(error, MPT__SAMPLE_ERROR,
                "token %lld of the row is %lld; the vocabulary has %lld", first + i, token,
                config->vocabulary);
            return false;
        }
        if (i < block) x[i] = token;
        if (i > 0) y[i - 1] = token;
    }
    return true;
}

/* Checks a config and fills it in; the number of windows, 0 with an error. */
static int64_t mpt__window_count(
    mpt_context *ctx, mpt_window_config *config, const char *path, int64_t count) {
    if (config->block < 1 || config->block > INT32_MAX || config->stride < 0 ||
        config->samples < 0 || config->vocabulary < 0)
        return mpt__reject(ctx, ARGUMENT,
            "block %lld, stride %lld, samples %lld, vocabulary %lld: block is at "
            "least 1, the others at least 0",
            config->block, config->stride, config->samples, config->vocabulary);
    if (count <= config->block)
        return mpt__reject(ctx, ARGUMENT,
            "%s%s%lld tokens; windows of %lld and the token after them need %lld", path,
            *path ? ": " : "", count, config->block, config->block + 1);
    if (config->stride == 0) config->stride = config->block;
    int64_t beside = (count - 1 - config->block) / config->stride + 1;
    return config->random && config->samples > 0 ? config->samples : beside;
}

/* A dataset of windows of `tokens`, whose bytes, if any, go over to it. */
static mpt__dataset *mpt__window_new(mpt_context *ctx, mpt__tokens *tokens, size_t bytes) {
    mpt_user_dataset_config samples;
    mpt__dataset *dataset = NULL;
    mpt__zero(samples);
    samples.count = mpt__window_count(ctx, &tokens->config, tokens->path, tokens->count);
    samples.dtype = samples.target_dtype = MPT_I64;
    samples.shape = samples.target_shape = MPT_SHAPE(tokens->config.block);
    if (samples.count > 0) dataset = mpt__dataset_new(ctx, &samples, false);
    if (dataset) {
        void *own = mpt__dataset_room(ctx, dataset, 0, sizeof *tokens);
        if (own) {
            memcpy(own, tokens, sizeof *tokens);
            mpt__dataset_own(dataset, 1, (void *)(uintptr_t)tokens->bytes, bytes);
            dataset->state = own;
            dataset->make = mpt__window_make;
            if (!tokens->bytes)
                dataset->work_bytes = (size_t)((tokens->config.block + 1) * tokens->width);
            return dataset;
        }
        mpt__dataset_release(ctx, dataset);
    }
    mpt__release(&ctx->base, (void *)(uintptr_t)tokens->bytes, bytes, MPT_MEMORY_DATA);
    return NULL;
}

static void mpt__tokens_begin(mpt__tokens *tokens, const mpt_window_config *config) {
    mpt__zero(*tokens);
    tokens->config = config ? *config : mpt_window_config_default();
}

mpt_dataset mpt_token_memory(
    mpt_context *ctx, const int32_t *values, int64_t count, const mpt_window_config *config) {
    mpt__tokens tokens;
    mpt__dataset *dataset = NULL;
    if (!mpt__enter(ctx, "mpt_token_memory")) return mpt__dataset_handle(ctx, NULL);
    mpt__tokens_begin(&tokens, config);
    tokens.width = (int)sizeof *values;
    tokens.count = count;
    if (!values || count < 1 || count > PTRDIFF_MAX / tokens.width) {
        mpt__error(ctx, ARGUMENT, "%lld tokens%s", count, values ? "" : " at NULL");
    } else if (mpt__window_count(ctx, &tokens.config, "", count) > 0) {
        size_t bytes = (size_t)count * sizeof *values;
        uint8_t *copy = (uint8_t *)mpt__allocate(&ctx->base, bytes, MPT_MEMORY_DATA);
        mpt__token_sink sink = {NULL, copy, tokens.width, 0, count};
        for (int64_t i = 0; copy && i < count; i++) mpt__token_put(&sink, values[i]);
        tokens.bytes = copy;
        if (copy) dataset = mpt__window_new(ctx, &tokens, bytes);
    }
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_token_file(
    mpt_context *ctx, const char *path, int bytes_per_token, const mpt_window_config *config) {
    mpt__tokens tokens;
    mpt__reader file;
    mpt__dataset *dataset = NULL;
    if (!mpt__enter_files(ctx, "mpt_token_file")) return mpt__dataset_handle(ctx, NULL);
    mpt__tokens_begin(&tokens, config);
    tokens.width = bytes_per_token;
    if (!path || strlen(path) >= sizeof tokens.path) {
        mpt__error(ctx, ARGUMENT, "path is %s", path ? "too long" : "NULL");
    } else if (bytes_per_token != 1 && bytes_per_token != 2 && bytes_per_token != 4) {
        mpt__error(ctx, ARGUMENT, "bytes_per_token is %d; 1, 2 or 4", bytes_per_token);
    } else if (mpt__reader_open_up_to(&file, ctx, path, INT64_MAX)) {
        /* A byte per token may well be a web page. */
        bool good = mpt__reader_plain(&file, bytes_per_token == 1 ? 1 : MPT__KNOWN_TEXT);
        mpt__reader_close(&file);
        memcpy(tokens.path, path, strlen(path));
        tokens.count = file.size / bytes_per_token;
        if (!good) return mpt__dataset_publish(ctx, NULL);
        if (file.size % bytes_per_token != 0)
            mpt__error(ctx, FORMAT, "%s: %lld bytes are not tokens of %d", path, file.size,
                bytes_per_token);
        else
            dataset = mpt__window_new(ctx, &tokens, 0);
    }
    return mpt__dataset_publish(ctx, dataset);
}

#ifndef MPTRAIN_NO_TEXT
mpt_dataset mpt_text_file(
    mpt_tokenizer tokenizer, const char *path, const mpt_window_config *config) {
    mpt_context *ctx = tokenizer.context;
    mpt__tokens tokens;
    mpt__dataset *dataset = NULL;
    size_t n = 0;
    mpt__tokenizer *found = mpt__tokenizer_enter(tokenizer, "mpt_text_file");
    if (!found || mpt__no_data_files(ctx)) return mpt__dataset_handle(ctx, NULL);
    mpt__tokens_begin(&tokens, config);
    tokens.width = found->count <= 256 ? 1 : found->count <= 65536 ? 2 : 4;
    if (!path) mpt__error(ctx, ARGUMENT, "path is NULL");
    uint8_t *text = path ? mpt__text_read(ctx, path, PTRDIFF_MAX, &n) : NULL;
    mpt__token_sink sink = {NULL, NULL, tokens.width, 0, 0};
    if (text && mpt__text_encode(ctx, found, path, text, n, &sink) &&
        mpt__window_count(ctx, &tokens.config, path, sink.count) > 0) {
        size_t bytes = (size_t)(sink.count * tokens.width);
        sink.packed = (uint8_t *)mpt__allocate(&ctx->base, bytes, MPT_MEMORY_DATA);
        tokens.count = sink.capacity = sink.count;
        tokens.bytes = sink.packed;
        sink.count = 0;
        if (sink.packed) {
            mpt__text_encode(ctx, found, path, text, n, &sink);
            dataset = mpt__window_new(ctx, &tokens, bytes);
        }
    }
    mpt__host_free(ctx, text, n);
    return mpt__dataset_publish(ctx, dataset);
}
#endif
MPT__END_REGION

#endif
