/* generated from src/ by tools/amalgamate.c: edit there */
/* The spine of the tools: what only looks at a training and writes files about it. It stands on the
   public API of mptrain.h alone. tools/amalgamate.c makes ../../tools/mptrain_tools.h from it. */
/* mptrain_tools.h - files about a training: logs for TensorBoard, spreadsheets and scripts.

   One header beside mptrain.h, of which it needs the declarations alone. In one file of a program:

	   #define MPTRAIN_TOOLS_IMPLEMENTATION
	   #include "mptrain_tools.h"

   and in all others the include alone. C11 and C++17; nothing but libc. The licence is that of
   mptrain.h.

	   mpt_journal_config jc = mpt_journal_config_default();
	   jc.tensorboard = "runs/first";             // tensorboard --logdir runs
	   jc.csv = "first.csv";
	   mpt_journal *journal = mpt_journal_open(&jc);
	   mpt_fit_config config = mpt_fit_config_default();
	   config.progress = mpt_journal_fit;         // loss, rate, scale, norm, speed, memory
	   config.user = journal;
	   mpt_fit(net, optimizer, train, &config);
	   if (mpt_journal_close(journal) != MPT_OK) ...

   A loop of yours calls mpt_journal_scalar and its like by itself. Opened again, a journal goes on
   where it was: a record that a killed process left half written is cut off, and mpt_journal_rewind
   takes back what was logged behind the checkpoint that training goes on from, so that in the end
   the files are those of a training that was never interrupted, but for the times in them.
   mpt_journal_fit does that by itself.

   MPTRAIN_TOOLS_STATIC keeps all functions to one file. */
/* ----
 * tools/face/journal.h: what a journal is, and how it is written.
 * ---- */
#ifndef MPTRAIN_TOOLS_H
#define MPTRAIN_TOOLS_H

#include "mptrain.h"

#ifndef MPTRAIN_TOOLS_API
#ifdef MPTRAIN_TOOLS_STATIC
#if defined(__GNUC__) || defined(__clang__)
#define MPTRAIN_TOOLS_API static __attribute__((unused))
#else
#define MPTRAIN_TOOLS_API static
#endif
#else
#define MPTRAIN_TOOLS_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Journals =============================================================================== */

typedef struct mpt_journal mpt_journal;

/* What a journal is told: one number, a text, a distribution of numbers, a picture. */
typedef enum mpt_journal_kind {
	MPT_JOURNAL_SCALAR = 0,
	MPT_JOURNAL_TEXT,
	MPT_JOURNAL_HISTOGRAM,
	MPT_JOURNAL_IMAGE
} mpt_journal_kind;

/* How numbers are spread: counts[i] of `bins` are between limits[i - 1], or min, and limits[i]. */
typedef struct mpt_journal_bins {
	int64_t count; /* of the finite ones */
	double min, max, sum, squares;
	int bins;
	const double *limits, *counts;
} mpt_journal_bins;

typedef struct mpt_journal_entry {
	mpt_journal_kind kind;
	const char *tag; /* "loss", "weights/0.weight" */
	int64_t step;
	double time;                  /* seconds since 1970 began */
	double value;                 /* of a scalar, else 0 */
	const char *text;             /* of a text, else NULL */
	const mpt_journal_bins *bins; /* of a histogram, else NULL */
	const unsigned char *png;     /* of an image: a file of that format; else NULL */
	size_t png_bytes;             /* of that file */
	int width, height, channels;  /* of an image, else 0 */
} mpt_journal_entry;

typedef struct mpt_journal_config {
	const char *tensorboard; /* NULL; a folder for an event file, one for each training */
	const char *csv;         /* NULL; a file of rows "step,time,tag,value", scalars alone */
	const char *jsonl;       /* NULL; a file with one JSON object per line, images without pixels */
	/* NULL; called for each entry, which lives until it returns: other services hang here. */
	void (*entry)(void *user, const mpt_journal_entry *entry);
	void *user;
	double (*now)(void *user); /* NULL: the system's time, in seconds since 1970 began */
	bool resume;               /* true: goes on with files that are there; else begins anew */
	double flush_seconds;      /* 2; what is older is in the files, of a killed process, too */
	int64_t every;             /* 1; of how many steps mpt_journal_fit logs one */
} mpt_journal_config;
MPTRAIN_TOOLS_API mpt_journal_config mpt_journal_config_default(void);

/* Opens files, and makes folders that are missing. NULL config: no files. Paths are UTF-8. Returns
   NULL only without memory; a journal that could not be opened says why by mpt_journal_error, does
   nothing in later calls and is to be closed as any other. One thread uses a journal at a time. */
MPTRAIN_TOOLS_API mpt_journal *mpt_journal_open(const mpt_journal_config *config);
/* Writes what is left and closes the files; NULL is allowed. Where something could not be written,
   the status is MPT_ERROR_IO, and that is lost with the journal. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_close(mpt_journal *journal);
/* Writes all so far to the files. What a full disk refuses stays in memory, is not written twice,
   and is tried again by this call and every later entry; the status is MPT_ERROR_IO until all is
   written. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_flush(mpt_journal *journal);
/* What is wrong, with the file and the system's words; empty if all is well. */
MPTRAIN_TOOLS_API const char *mpt_journal_error(const mpt_journal *journal);
/* Bytes that opening and rewinding cut off: what was torn, damaged or behind a checkpoint. */
MPTRAIN_TOOLS_API int64_t mpt_journal_dropped(const mpt_journal *journal);
/* Takes back all entries of steps after `step`, from which a training goes on; -1: all. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_rewind(mpt_journal *journal, int64_t step);

/* One entry each, under a tag of 1 to 255 bytes, at a step of 0 or more. Tags and texts are UTF-8;
   a '/' in a tag makes groups. A value that is not finite is logged as such. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_scalar(
	mpt_journal *journal, const char *tag, int64_t step, double value);
MPTRAIN_TOOLS_API mpt_status mpt_journal_text(
	mpt_journal *journal, const char *tag, int64_t step, const char *text);
/* The finite elements of a floating-point tensor in 64 equal parts of their range. Waits for the
   device. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_histogram(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor tensor);
/* The same for every parameter, as "weights/0.weight", or every gradient that there is, as
   "gradients/0.weight". */
MPTRAIN_TOOLS_API mpt_status mpt_journal_module(
	mpt_journal *journal, int64_t step, mpt_module module, bool gradients);
/* A tensor [H, W] or [C, H, W] of 1 (grey), 3 (RGB) or 4 channels (RGBA) as a picture: u8 as it is,
   floating point from 0 to 1, and what lies outside as the nearer of the two, NaN as 0. Waits for
   the device. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_image(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor image);
/* The same from bytes [height, width, channels]. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_pixels(mpt_journal *journal, const char *tag, int64_t step,
	const unsigned char *pixels, int width, int height, int channels);

/* For mpt_fit_config.progress, with the journal as `user`: logs loss, lr, scale, skipped, grad_norm
   (where there is one), steps_per_second, waiting (seconds) and memory (bytes) of each step, and
   epoch/loss, validation/loss and validation/accuracy behind each epoch. Its first call rewinds
   what is there to the step before; if that call is for the end of an epoch, the epoch's entries
   may be there twice. A second fit goes on counting steps. Returns true, so a training goes on
   where its log cannot be written; mpt_journal_close tells. */
MPTRAIN_TOOLS_API bool mpt_journal_fit(void *journal, const mpt_progress *progress);

#ifdef __cplusplus
}
#endif
#endif

#if defined(MPTRAIN_TOOLS_IMPLEMENTATION) && !defined(MPT__TOOLS_IMPLEMENTED)
#define MPT__TOOLS_IMPLEMENTED
/* ----
 * tools/files.c: memory, time and paths: what the tools ask of the system.
 *
 * Beside it only records.c does.
 * ---- */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <direct.h>
#include <sys/timeb.h>
#include <wchar.h>
#else
#include <sys/stat.h>
#include <sys/types.h>
#endif

/* Bytes that grow at their end. */
typedef struct {
	unsigned char *data;
	size_t size, capacity;
	bool failed; /* without memory; what comes then is left out */
} mpt__tools_bytes;

static bool mpt__tools_bytes_reserve(mpt__tools_bytes *bytes, size_t more) {
	if (bytes->capacity - bytes->size >= more) return true;
	size_t wanted = bytes->capacity ? bytes->capacity : 256;
	while (wanted - bytes->size < more && wanted <= SIZE_MAX / 2) wanted *= 2;
	unsigned char *data =
		wanted - bytes->size < more ? NULL : (unsigned char *)realloc(bytes->data, wanted);
	if (!data) {
		bytes->failed = true;
		return false;
	}
	bytes->data = data, bytes->capacity = wanted;
	return true;
}

static void mpt__tools_bytes_put(mpt__tools_bytes *bytes, const void *data, size_t size) {
	if (size == 0 || !mpt__tools_bytes_reserve(bytes, size)) return;
	memcpy(bytes->data + bytes->size, data, size);
	bytes->size += size;
}

static void mpt__tools_bytes_put_text(mpt__tools_bytes *bytes, const char *text) {
	mpt__tools_bytes_put(bytes, text, strlen(text));
}

static void mpt__tools_bytes_free(mpt__tools_bytes *bytes) {
	free(bytes->data);
	memset(bytes, 0, sizeof *bytes);
}

static void *mpt__tools_allocate(size_t bytes) { return calloc(1, bytes ? bytes : 1); }
static void mpt__tools_release(void *memory) { free(memory); }

#ifdef _WIN32

/* The system's form of a path: UTF-16. NULL without memory or where the path is no UTF-8. */
static wchar_t *mpt__tools_wide_path(const char *path) {
	const size_t length = strlen(path);
	wchar_t *wide = (wchar_t *)malloc((length + 1) * sizeof *wide);
	size_t n = 0, i = 0;
	while (wide && i < length) {
		const unsigned char first = (unsigned char)path[i++];
		const int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
		uint32_t code = more == 0 ? first : first & (0x3Fu >> more);
		for (int k = 0; k < more && i < length; k++)
			code = code << 6 | ((unsigned char)path[i++] & 0x3Fu);
		if (code >= 0x10000) {
			code -= 0x10000;
			wide[n++] = (wchar_t)(0xD800 + (code >> 10));
			code = 0xDC00 + (code & 0x3FF);
		}
		wide[n++] = (wchar_t)code;
	}
	if (wide) wide[n] = 0;
	return wide;
}

static FILE *mpt__tools_file_open(const char *path, const char *mode) {
	wchar_t *wide = mpt__tools_wide_path(path), how[8];
	size_t n = 0;
	for (; mode[n] && n < 7; n++) how[n] = (wchar_t)mode[n];
	how[n] = 0;
	FILE *file = wide ? _wfopen(wide, how) : NULL;
	free(wide);
	return file;
}

static int mpt__tools_folder_make(const char *path) {
	wchar_t *wide = mpt__tools_wide_path(path);
	int result = wide ? _wmkdir(wide) : -1;
	free(wide);
	return result;
}

/* Windows moves no file to a name that is taken. */
static int mpt__tools_file_move(const char *from, const char *to) {
	wchar_t *a = mpt__tools_wide_path(from), *b = mpt__tools_wide_path(to);
	int result = -1;
	if (a && b) {
		_wremove(b);
		result = _wrename(a, b);
	}
	free(a), free(b);
	return result;
}

static void mpt__tools_file_remove(const char *path) {
	wchar_t *wide = mpt__tools_wide_path(path);
	if (wide) _wremove(wide);
	free(wide);
}

static double mpt__tools_system_now(void) {
	struct __timeb64 now;
	_ftime64(&now);
	return (double)now.time + 1e-3 * (double)now.millitm;
}

#else

static FILE *mpt__tools_file_open(const char *path, const char *mode) { return fopen(path, mode); }
static int mpt__tools_folder_make(const char *path) { return mkdir(path, 0777); }
static int mpt__tools_file_move(const char *from, const char *to) { return rename(from, to); }
static void mpt__tools_file_remove(const char *path) { remove(path); }

static double mpt__tools_system_now(void) {
	struct timespec now;
	if (timespec_get(&now, TIME_UTC) != TIME_UTC) return (double)time(NULL);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif

static bool mpt__tools_is_separator(char c) {
#ifdef _WIN32
	if (c == '\\') return true;
#endif
	return c == '/';
}

/* Makes a folder and those above it, as far as they are missing. Whether it is there in the end,
   opening a file in it tells. `path` is changed meanwhile. */
static void mpt__tools_folders_make(char *path) {
	for (size_t i = 1; path[i]; i++) {
		const char c = path[i];
		if (!mpt__tools_is_separator(c)) continue;
		path[i] = 0;
		mpt__tools_folder_make(path);
		path[i] = c;
	}
	mpt__tools_folder_make(path);
}

/* ----
 * tools/numbers.c: numbers as text: the same digits on every platform and in every locale.
 * ---- */

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

/* ----
 * tools/records.c: files that grow by records: opened again, mended, written, cut back.
 *
 * A record is a line of text, or, in an event file, a length, data and two checks (TensorFlow's
 * TFRecord): so a file that ends in the middle of one is known for what it is.
 * ---- */

/* A file of records. What is to be written waits in `pending`. */
typedef struct mpt__tools_stream {
	const struct mpt__tools_format *format;
	char *path;
	FILE *file; /* at its end, without a buffer of its own, so that what is written is known */
	mpt__tools_bytes pending;
	int error;         /* the system's number; 0: all is well */
	const char *fault; /* what could not be done: "opened" */
	int64_t dropped;   /* bytes */
	bool fresh;        /* nothing is in it yet */
} mpt__tools_stream;

/* What a record that was read is. */
typedef enum {
	MPT__TOOLS_RECORD_NONE,    /* the file ends */
	MPT__TOOLS_RECORD_WHOLE,   /* and its step is known */
	MPT__TOOLS_RECORD_HEAD,    /* it has no step and stays */
	MPT__TOOLS_RECORD_BAD,     /* it is damaged, what is behind it is not */
	MPT__TOOLS_RECORD_TORN,    /* it ends too early, or nobody knows where it ends */
	MPT__TOOLS_RECORD_FOREIGN, /* nothing that a journal wrote */
	MPT__TOOLS_RECORD_FAILED   /* it could not be read, by errno */
} mpt__tools_record;

/* A kind of file: how the record that begins at the place of `file` is read, and what the first
   line is, if it is one of text. */
typedef struct mpt__tools_format {
	const char *name, *first;
	mpt__tools_record (*read)(FILE *file, mpt__tools_bytes *record, int64_t *step);
} mpt__tools_format;

/* Adds up to `size` bytes of the file to a record; returns how many. */
static size_t mpt__tools_record_add(FILE *file, mpt__tools_bytes *record, size_t size) {
	if (!mpt__tools_bytes_reserve(record, size)) return 0;
	const size_t got = fread(record->data + record->size, 1, size, file);
	record->size += got;
	return got;
}

/* ==== Lines ==== */

/* Whether a line begins as `head` does, as far as both go. */
static bool mpt__tools_begins(const mpt__tools_bytes *line, const char *head) {
	const size_t length = strlen(head);
	return memcmp(line->data, head, line->size < length ? line->size : length) == 0;
}

/* Reads a line with its end; RECORD_TORN where that is missing. */
static mpt__tools_record mpt__tools_line_read(FILE *file, mpt__tools_bytes *line) {
	int c = 0;
	line->size = 0;
	while (c != '\n' && (c = getc(file)) != EOF) {
		const unsigned char byte = (unsigned char)c;
		mpt__tools_bytes_put(line, &byte, 1);
	}
	if (ferror(file) || line->failed) return MPT__TOOLS_RECORD_FAILED;
	return c == '\n' ? MPT__TOOLS_RECORD_WHOLE
		: line->size ? MPT__TOOLS_RECORD_TORN
					 : MPT__TOOLS_RECORD_NONE;
}

/* The number that stands at text[at..size); false where there is none. */
static bool mpt__tools_number_at(const mpt__tools_bytes *text, size_t at, int64_t *number) {
	const size_t begin = at;
	*number = 0;
	for (; at < text->size && text->data[at] >= '0' && text->data[at] <= '9'; at++) {
		if (*number > (INT64_MAX - 9) / 10) return false;
		*number = *number * 10 + (text->data[at] - '0');
	}
	return at > begin;
}

#define MPT__TOOLS_CSV_HEAD "step,time,tag,value\n"
#define MPT__TOOLS_JSON_HEAD "{\"step\":"

static mpt__tools_record mpt__tools_csv_read(FILE *file, mpt__tools_bytes *line, int64_t *step) {
	const bool first = ftell(file) == 0;
	const mpt__tools_record found = mpt__tools_line_read(file, line);
	if (found != MPT__TOOLS_RECORD_WHOLE && found != MPT__TOOLS_RECORD_TORN) return found;
	if (first &&
		(!mpt__tools_begins(line, MPT__TOOLS_CSV_HEAD) || line->size > strlen(MPT__TOOLS_CSV_HEAD)))
		return MPT__TOOLS_RECORD_FOREIGN;
	if (found == MPT__TOOLS_RECORD_TORN) return found;
	if (first) return MPT__TOOLS_RECORD_HEAD;
	return mpt__tools_number_at(line, 0, step) ? found : MPT__TOOLS_RECORD_BAD;
}

static mpt__tools_record mpt__tools_json_read(FILE *file, mpt__tools_bytes *line, int64_t *step) {
	const bool first = ftell(file) == 0;
	const mpt__tools_record found = mpt__tools_line_read(file, line);
	if (found != MPT__TOOLS_RECORD_WHOLE && found != MPT__TOOLS_RECORD_TORN) return found;
	if (first && !mpt__tools_begins(line, MPT__TOOLS_JSON_HEAD)) return MPT__TOOLS_RECORD_FOREIGN;
	if (found == MPT__TOOLS_RECORD_TORN) return found;
	return mpt__tools_begins(line, MPT__TOOLS_JSON_HEAD) &&
			mpt__tools_number_at(line, strlen(MPT__TOOLS_JSON_HEAD), step)
		? found
		: MPT__TOOLS_RECORD_BAD;
}

/* ==== Files ==== */

static bool mpt__tools_stream_fails(mpt__tools_stream *stream, const char *fault) {
	stream->error = errno ? errno : EIO;
	stream->fault = fault;
	return false;
}

/* Reads all records from where `from` begins. Those of steps up to `last` go to `to`, where that is
   a file. *dropped becomes the bytes of the others. False: it failed. */
static bool mpt__tools_stream_sift(
	mpt__tools_stream *stream, FILE *from, FILE *to, int64_t last, int64_t *dropped) {
	mpt__tools_bytes record = {NULL, 0, 0, false};
	bool fine = true;
	*dropped = 0;
	while (fine) {
		int64_t step = 0;
		errno = 0;
		const mpt__tools_record found = stream->format->read(from, &record, &step);
		if (found == MPT__TOOLS_RECORD_NONE) break;
		if (found == MPT__TOOLS_RECORD_FOREIGN) {
			errno = 0;
			stream->fault = "gone on with, as no journal wrote it";
			fine = false;
		} else if (found == MPT__TOOLS_RECORD_FAILED) {
			fine = mpt__tools_stream_fails(stream, "read");
		} else if (found == MPT__TOOLS_RECORD_HEAD ||
			(found == MPT__TOOLS_RECORD_WHOLE && step <= last)) {
			if (to && fwrite(record.data, 1, record.size, to) != record.size)
				fine = mpt__tools_stream_fails(stream, "written anew");
		} else {
			*dropped += (int64_t)record.size;
		}
		if (found == MPT__TOOLS_RECORD_TORN) {
			while (getc(from) != EOF) ++*dropped;
			break;
		}
	}
	mpt__tools_bytes_free(&record);
	return fine;
}

/* Leaves in a closed file what is whole and of steps up to `last`. It is replaced as a whole, so
   that a kill leaves the old one or the new one. */
static bool mpt__tools_stream_mend(mpt__tools_stream *stream, int64_t last) {
	int64_t dropped;
	errno = 0;
	FILE *from = mpt__tools_file_open(stream->path, "rb");
	if (!from) return errno == ENOENT ? true : mpt__tools_stream_fails(stream, "opened");
	bool fine = mpt__tools_stream_sift(stream, from, NULL, last, &dropped);
	if (!fine || dropped == 0) {
		fclose(from);
		return fine;
	}
	mpt__tools_bytes name = {NULL, 0, 0, false};
	mpt__tools_bytes_put_text(&name, stream->path);
	mpt__tools_bytes_put(&name, ".new", 5);
	const char *path = (const char *)name.data;
	errno = 0;
	FILE *to = name.failed ? NULL : mpt__tools_file_open(path, "wb");
	rewind(from);
	fine = to ? mpt__tools_stream_sift(stream, from, to, last, &dropped)
			  : mpt__tools_stream_fails(stream, "written anew");
	fclose(from);
	if (to && fclose(to) != 0 && fine) fine = mpt__tools_stream_fails(stream, "written anew");
	if (fine && mpt__tools_file_move(path, stream->path) != 0)
		fine = mpt__tools_stream_fails(stream, "replaced");
	if (!fine && to) mpt__tools_file_remove(path);
	if (fine) stream->dropped += dropped;
	mpt__tools_bytes_free(&name);
	return fine;
}

/* Opens the file for what is added to it. */
static bool mpt__tools_stream_open(mpt__tools_stream *stream, bool anew) {
	errno = 0;
	stream->file = mpt__tools_file_open(stream->path, anew ? "wb" : "ab");
	if (!stream->file) return mpt__tools_stream_fails(stream, "opened");
	setvbuf(stream->file, NULL, _IONBF, 0);
	if (fseek(stream->file, 0, SEEK_END) != 0) errno = 0; /* a pipe or a device has no end */
	stream->fresh = ftell(stream->file) <= 0;
	if (stream->fresh && stream->format->first)
		mpt__tools_bytes_put_text(&stream->pending, stream->format->first);
	return true;
}

/* Writes what waits. What is written leaves `pending`, the rest stays. */
static bool mpt__tools_stream_flush(mpt__tools_stream *stream) {
	mpt__tools_bytes *pending = &stream->pending;
	if (!stream->file || pending->size == 0) return stream->error == 0;
	errno = 0;
	const size_t written = fwrite(pending->data, 1, pending->size, stream->file);
	if (written < pending->size)
		mpt__tools_stream_fails(stream, "written");
	else
		stream->error = 0;
	clearerr(stream->file);
	memmove(pending->data, pending->data + written, pending->size - written);
	pending->size -= written;
	return stream->error == 0;
}

/* False where the last bytes could not be written. */
static bool mpt__tools_stream_close(mpt__tools_stream *stream) {
	bool fine = mpt__tools_stream_flush(stream);
	errno = 0;
	if (stream->file && fclose(stream->file) != 0) fine = mpt__tools_stream_fails(stream, "closed");
	stream->file = NULL;
	return fine;
}

/* ----
 * tools/events.c: TensorBoard's event files, and pictures as PNG.
 *
 * An event file is a row of records: length, data, and a masked CRC-32C of each; the data is a
 * protocol buffer, tensorflow.Event. PNG is that of RFC 2083, of stored blocks (RFC 1951), which
 * need no compressor.
 * ---- */

/* ==== Checksums ==== */

/* The CRC of one kind: its polynomial with the lowest power in the highest bit. */
enum { MPT__TOOLS_CRC32_PNG, MPT__TOOLS_CRC32C };
static uint32_t mpt__tools_crc_update(
	int kind, uint32_t crc, const unsigned char *data, size_t size) {
	const uint32_t polynomial = kind == MPT__TOOLS_CRC32C ? 0x82F63B78u : 0xEDB88320u;
	uint32_t nibble[16]; /* what four bits add; small enough to be made each time */
	for (uint32_t i = 0; i < 16; i++) {
		nibble[i] = i;
		for (int bit = 0; bit < 4; bit++)
			nibble[i] = nibble[i] >> 1 ^ (nibble[i] & 1 ? polynomial : 0);
	}
	crc = ~crc;
	for (size_t i = 0; i < size; i++) {
		crc ^= data[i];
		crc = crc >> 4 ^ nibble[crc & 15];
		crc = crc >> 4 ^ nibble[crc & 15];
	}
	return ~crc;
}

/* TensorFlow's mask, so that a CRC of data with CRCs in it stays a good one. */
static uint32_t mpt__tools_crc_masked(const unsigned char *data, size_t size) {
	const uint32_t crc = mpt__tools_crc_update(MPT__TOOLS_CRC32C, 0, data, size);
	return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ==== Protocol buffers ==== */

enum { MPT__TOOLS_WIRE_VARINT, MPT__TOOLS_WIRE_64, MPT__TOOLS_WIRE_BYTES, MPT__TOOLS_WIRE_32 = 5 };

static void mpt__tools_put_little(mpt__tools_bytes *to, uint64_t value, int bytes) {
	unsigned char data[8];
	for (int i = 0; i < bytes; i++) data[i] = (unsigned char)(value >> 8 * i);
	mpt__tools_bytes_put(to, data, (size_t)bytes);
}

static void mpt__tools_put_varint(mpt__tools_bytes *to, uint64_t value) {
	unsigned char data[10];
	size_t n = 0;
	for (; value >= 0x80; value >>= 7) data[n++] = (unsigned char)(value | 0x80);
	data[n++] = (unsigned char)value;
	mpt__tools_bytes_put(to, data, n);
}

static void mpt__tools_put_field(mpt__tools_bytes *to, int field, int wire) {
	mpt__tools_put_varint(to, (uint64_t)field << 3 | (uint64_t)wire);
}

static void mpt__tools_put_int_field(mpt__tools_bytes *to, int field, int64_t value) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_VARINT);
	mpt__tools_put_varint(to, (uint64_t)value);
}

static void mpt__tools_put_double_field(mpt__tools_bytes *to, int field, double value) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_64);
	mpt__tools_put_little(to, mpt__tools_bits_of(value), 8);
}

static void mpt__tools_put_bytes_field(
	mpt__tools_bytes *to, int field, const void *data, size_t size) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_put_varint(to, size);
	mpt__tools_bytes_put(to, data, size);
}

static void mpt__tools_put_text_field(mpt__tools_bytes *to, int field, const char *text) {
	mpt__tools_put_bytes_field(to, field, text, strlen(text));
}

static void mpt__tools_put_doubles_field(
	mpt__tools_bytes *to, int field, const double *values, int count) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_put_varint(to, (uint64_t)count * 8);
	for (int i = 0; i < count; i++) mpt__tools_put_little(to, mpt__tools_bits_of(values[i]), 8);
}

/* A message in a message: its length stands before it, in five bytes whatever it is, as it is known
   only behind it. */
enum { MPT__TOOLS_LENGTH_BYTES = 5 };
static size_t mpt__tools_message_begin(mpt__tools_bytes *to, int field) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_bytes_put(to, "\0\0\0\0", MPT__TOOLS_LENGTH_BYTES);
	return to->size;
}

static void mpt__tools_message_end(mpt__tools_bytes *to, size_t begin) {
	if (to->failed) return;
	const size_t length = to->size - begin;
	for (int i = 0; i < MPT__TOOLS_LENGTH_BYTES; i++)
		to->data[begin - MPT__TOOLS_LENGTH_BYTES + (size_t)i] =
			(unsigned char)((length >> 7 * i & 0x7F) |
				(i + 1 < MPT__TOOLS_LENGTH_BYTES ? 0x80 : 0));
}

/* ==== Events ==== */

/* The field numbers of tensorflow.Event and what is in it. */
enum {
	MPT__TOOLS_EVENT_TIME = 1,
	MPT__TOOLS_EVENT_STEP = 2,
	MPT__TOOLS_EVENT_VERSION = 3,
	MPT__TOOLS_EVENT_SUMMARY = 5,
	MPT__TOOLS_SUMMARY_VALUE = 1,
	MPT__TOOLS_VALUE_TAG = 1,
	MPT__TOOLS_VALUE_SIMPLE = 2,
	MPT__TOOLS_VALUE_IMAGE = 4,
	MPT__TOOLS_VALUE_HISTOGRAM = 5,
	MPT__TOOLS_VALUE_TENSOR = 8,
	MPT__TOOLS_VALUE_METADATA = 9,
	MPT__TOOLS_TENSOR_DTYPE = 1,
	MPT__TOOLS_TENSOR_SHAPE = 2,
	MPT__TOOLS_TENSOR_STRING = 8,
	MPT__TOOLS_DTYPE_STRING = 7
};

static void mpt__tools_put_histogram_value(mpt__tools_bytes *to, const mpt_journal_bins *bins) {
	const double numbers[] = {bins->min, bins->max, (double)bins->count, bins->sum, bins->squares};
	const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_HISTOGRAM);
	for (int i = 0; i < 5; i++) mpt__tools_put_double_field(to, i + 1, numbers[i]);
	mpt__tools_put_doubles_field(to, 6, bins->limits, bins->bins);
	mpt__tools_put_doubles_field(to, 7, bins->counts, bins->bins);
	mpt__tools_message_end(to, message);
}

static void mpt__tools_put_image_value(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
	const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_IMAGE);
	mpt__tools_put_int_field(to, 1, entry->height);
	mpt__tools_put_int_field(to, 2, entry->width);
	mpt__tools_put_int_field(to, 3, entry->channels);
	mpt__tools_put_bytes_field(to, 4, entry->png, entry->png_bytes);
	mpt__tools_message_end(to, message);
}

/* A text is a tensor of one string that belongs to the plugin "text". */
static void mpt__tools_put_text_value(mpt__tools_bytes *to, const char *text) {
	size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_TENSOR);
	mpt__tools_put_int_field(to, MPT__TOOLS_TENSOR_DTYPE, MPT__TOOLS_DTYPE_STRING);
	mpt__tools_put_bytes_field(
		to, MPT__TOOLS_TENSOR_SHAPE, "\x12\x02\x08\x01", 4); /* one dimension of 1 */
	mpt__tools_put_text_field(to, MPT__TOOLS_TENSOR_STRING, text);
	mpt__tools_message_end(to, message);
	message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_METADATA);
	const size_t plugin = mpt__tools_message_begin(to, 1);
	mpt__tools_put_text_field(to, 1, "text");
	mpt__tools_message_end(to, plugin);
	mpt__tools_message_end(to, message);
}

/* The event of an entry; of NULL the one that every file begins with. */
static void mpt__tools_put_event(
	mpt__tools_bytes *to, const mpt_journal_entry *entry, double time) {
	mpt__tools_put_double_field(to, MPT__TOOLS_EVENT_TIME, time);
	if (!entry) {
		mpt__tools_put_text_field(to, MPT__TOOLS_EVENT_VERSION, "brain.Event:2");
		return;
	}
	mpt__tools_put_int_field(to, MPT__TOOLS_EVENT_STEP, entry->step);
	const size_t summary = mpt__tools_message_begin(to, MPT__TOOLS_EVENT_SUMMARY);
	const size_t value = mpt__tools_message_begin(to, MPT__TOOLS_SUMMARY_VALUE);
	mpt__tools_put_text_field(to, MPT__TOOLS_VALUE_TAG, entry->tag);
	if (entry->kind == MPT_JOURNAL_SCALAR) {
		const float rounded = (float)entry->value;
		uint32_t bits;
		memcpy(&bits, &rounded, sizeof bits);
		mpt__tools_put_field(to, MPT__TOOLS_VALUE_SIMPLE, MPT__TOOLS_WIRE_32);
		mpt__tools_put_little(to, bits, 4);
	} else if (entry->kind == MPT_JOURNAL_HISTOGRAM) {
		mpt__tools_put_histogram_value(to, entry->bins);
	} else if (entry->kind == MPT_JOURNAL_IMAGE) {
		mpt__tools_put_image_value(to, entry);
	} else {
		mpt__tools_put_text_value(to, entry->text);
	}
	mpt__tools_message_end(to, value);
	mpt__tools_message_end(to, summary);
}

/* An event as a record. */
static void mpt__tools_put_event_record(
	mpt__tools_bytes *to, const mpt_journal_entry *entry, double time) {
	const size_t begin = to->size;
	mpt__tools_bytes_put(to, "\0\0\0\0\0\0\0\0\0\0\0", 12);
	mpt__tools_put_event(to, entry, time);
	if (to->failed) return;
	const size_t length = to->size - begin - 12;
	for (int i = 0; i < 8; i++)
		to->data[begin + (size_t)i] = (unsigned char)((uint64_t)length >> 8 * i);
	const uint32_t check = mpt__tools_crc_masked(to->data + begin, 8);
	for (int i = 0; i < 4; i++) to->data[begin + 8 + (size_t)i] = (unsigned char)(check >> 8 * i);
	mpt__tools_put_little(to, mpt__tools_crc_masked(to->data + begin + 12, length), 4);
}

/* ==== Reading them ==== */

static uint64_t mpt__tools_little(const unsigned char *data, int bytes) {
	uint64_t value = 0;
	for (int i = 0; i < bytes; i++) value |= (uint64_t)data[i] << 8 * i;
	return value;
}

/* Moves *at behind a varint; false where there is none. */
static bool mpt__tools_varint_at(
	const unsigned char *data, size_t size, size_t *at, uint64_t *value) {
	*value = 0;
	for (int shift = 0; shift < 64 && *at < size; shift += 7) {
		const unsigned char byte = data[(*at)++];
		*value |= (uint64_t)(byte & 0x7F) << shift;
		if (byte < 0x80) return true;
	}
	return false;
}

/* What an event is, and its step. */
static mpt__tools_record mpt__tools_event_look(
	const unsigned char *data, size_t size, int64_t *step) {
	mpt__tools_record found = MPT__TOOLS_RECORD_WHOLE;
	uint64_t key, value;
	size_t at = 0;
	while (at < size) {
		if (!mpt__tools_varint_at(data, size, &at, &key)) return MPT__TOOLS_RECORD_BAD;
		const int wire = (int)(key & 7);
		if (wire == MPT__TOOLS_WIRE_VARINT || wire == MPT__TOOLS_WIRE_BYTES) {
			if (!mpt__tools_varint_at(data, size, &at, &value)) return MPT__TOOLS_RECORD_BAD;
			if (key >> 3 == MPT__TOOLS_EVENT_STEP && wire == MPT__TOOLS_WIRE_VARINT)
				*step = (int64_t)value;
			if (key >> 3 == MPT__TOOLS_EVENT_VERSION) found = MPT__TOOLS_RECORD_HEAD;
			if (wire == MPT__TOOLS_WIRE_VARINT) value = 0;
		} else {
			value = wire == MPT__TOOLS_WIRE_64 ? 8 : wire == MPT__TOOLS_WIRE_32 ? 4 : UINT64_MAX;
		}
		if (value > size - at) return MPT__TOOLS_RECORD_BAD;
		at += (size_t)value;
	}
	return found;
}

/* Reads the record at the place of `file`. Memory grows by what is there, not by what it claims. */
static mpt__tools_record mpt__tools_event_read(
	FILE *file, mpt__tools_bytes *record, int64_t *step) {
	enum { HEAD = 12, CHECK = 4, PIECE = 65536 };
	uint64_t left = HEAD, length = 0;
	record->size = 0;
	while (left > 0) {
		const size_t piece = left < PIECE ? (size_t)left : (size_t)PIECE;
		const size_t got = mpt__tools_record_add(file, record, piece);
		if (ferror(file) || record->failed) return MPT__TOOLS_RECORD_FAILED;
		if (got < piece) return record->size ? MPT__TOOLS_RECORD_TORN : MPT__TOOLS_RECORD_NONE;
		left -= piece;
		if (record->size != HEAD || length > 0) continue;
		length = mpt__tools_little(record->data, 8);
		if (mpt__tools_little(record->data + 8, 4) != mpt__tools_crc_masked(record->data, 8) ||
			length > INT64_MAX || length == 0)
			return MPT__TOOLS_RECORD_TORN;
		left = length + CHECK;
	}
	const unsigned char *data = record->data + HEAD;
	if (mpt__tools_little(data + length, CHECK) != mpt__tools_crc_masked(data, (size_t)length))
		return MPT__TOOLS_RECORD_BAD;
	return mpt__tools_event_look(data, (size_t)length, step);
}

/* ==== PNG ==== */

static void mpt__tools_put_big(mpt__tools_bytes *to, uint32_t value) {
	for (int shift = 24; shift >= 0; shift -= 8) {
		const unsigned char byte = (unsigned char)(value >> shift);
		mpt__tools_bytes_put(to, &byte, 1);
	}
}

/* Ends the chunk whose length stands at `begin`: the length and the check. */
static void mpt__tools_png_end(mpt__tools_bytes *to, size_t begin) {
	if (to->failed) return;
	const size_t length = to->size - begin - 8;
	for (int i = 0; i < 4; i++)
		to->data[begin + (size_t)i] = (unsigned char)(length >> (24 - 8 * i));
	mpt__tools_put_big(
		to, mpt__tools_crc_update(MPT__TOOLS_CRC32_PNG, 0, to->data + begin + 4, length + 4));
}

static size_t mpt__tools_png_begin(mpt__tools_bytes *to, const char *type) {
	const size_t begin = to->size;
	mpt__tools_put_big(to, 0);
	mpt__tools_bytes_put(to, type, 4);
	return begin;
}

/* The pixels' rows, each behind a byte that says it is as it is, in blocks of at most 65,535. */
static void mpt__tools_put_stored(
	mpt__tools_bytes *to, const unsigned char *rows, size_t height, size_t width) {
	const size_t total = height * (width + 1);
	uint32_t a = 1, b = 0; /* Adler-32 */
	for (size_t at = 0; at < total; at++) {
		if (at % 65535 == 0) {
			const size_t left = total - at, length = left < 65535 ? left : 65535;
			const unsigned char last = length == left;
			mpt__tools_bytes_put(to, &last, 1);
			mpt__tools_put_little(to, length, 2);
			mpt__tools_put_little(to, length ^ 0xFFFF, 2);
		}
		const size_t row = at / (width + 1), column = at % (width + 1);
		const unsigned char byte = column ? rows[row * width + column - 1] : 0;
		mpt__tools_bytes_put(to, &byte, 1);
		a = (a + byte) % 65521, b = (b + a) % 65521;
	}
	mpt__tools_put_big(to, b << 16 | a);
}

/* A PNG file of `channels` bytes per pixel: 1 grey, 3 RGB, 4 RGBA. */
static void mpt__tools_put_png(
	mpt__tools_bytes *to, const unsigned char *pixels, int width, int height, int channels) {
	const unsigned char format[5] = {8,
		(unsigned char)(channels == 1 ? 0
				: channels == 3       ? 2
									  : 6),
		0, 0, 0};
	mpt__tools_bytes_put(to, "\x89PNG\r\n\x1a\n", 8);
	size_t chunk = mpt__tools_png_begin(to, "IHDR");
	mpt__tools_put_big(to, (uint32_t)width);
	mpt__tools_put_big(to, (uint32_t)height);
	mpt__tools_bytes_put(to, format, sizeof format);
	mpt__tools_png_end(to, chunk);
	chunk = mpt__tools_png_begin(to, "IDAT");
	mpt__tools_bytes_put(to, "\x78\x01", 2);
	mpt__tools_put_stored(to, pixels, (size_t)height, (size_t)width * (size_t)channels);
	mpt__tools_png_end(to, chunk);
	chunk = mpt__tools_png_begin(to, "IEND");
	mpt__tools_png_end(to, chunk);
}

/* ----
 * tools/journal.c: the journal: entries, and the files that they go to.
 * ---- */

enum { MPT__TOOLS_EVENT_FILE, MPT__TOOLS_CSV_FILE, MPT__TOOLS_JSON_FILE, MPT__TOOLS_JOURNAL_FILES };
enum { MPT__TOOLS_TAG_BYTES = 255, MPT__TOOLS_BINS = 64, MPT__TOOLS_FLUSH_BYTES = 1 << 16 };

/* There is one event file in a folder, so that a training that goes on finds its own. */
#define MPT__TOOLS_EVENT_NAME "/events.out.tfevents.0000000000.mptrain"

static const mpt__tools_format mpt__tools_journal_formats[MPT__TOOLS_JOURNAL_FILES] = {
	{"event file", NULL, mpt__tools_event_read},
	{"CSV file", MPT__TOOLS_CSV_HEAD, mpt__tools_csv_read},
	{"JSON file", NULL, mpt__tools_json_read},
};

struct mpt_journal {
	mpt_journal_config config;
	mpt__tools_stream streams[MPT__TOOLS_JOURNAL_FILES];
	mpt__tools_bytes record;    /* that is being made */
	mpt_status status;          /* of opening it and of what is lost */
	double flushed;             /* when */
	int64_t fit_base, fit_last; /* steps before this fit; the last one logged */
	bool fit_began;
	char error[768];
};

mpt_journal_config mpt_journal_config_default(void) {
	mpt_journal_config config;
	memset(&config, 0, sizeof config);
	config.resume = true;
	config.flush_seconds = 2;
	config.every = 1;
	return config;
}

/* ==== Errors ==== */

/* Puts texts side by side into the journal's error, up to a NULL, and cuts what does not fit. */
static void mpt__tools_journal_say(mpt_journal *journal, const char *const *texts) {
	size_t n = 0;
	for (; *texts; texts++)
		for (const char *c = *texts; *c && n + 1 < sizeof journal->error; c++)
			journal->error[n++] = *c;
	journal->error[n] = 0;
}

/* Says what is wrong with the first file of which something is. */
static mpt_status mpt__tools_journal_look(mpt_journal *journal) {
	if (journal->status != MPT_OK) return journal->status;
	journal->error[0] = 0;
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		const mpt__tools_stream *stream = &journal->streams[i];
		mpt__tools_bytes number = {NULL, 0, 0, false};
		if (!stream->fault || (stream->file && stream->error == 0)) continue;
		mpt__tools_put_integer(&number, stream->error);
		mpt__tools_bytes_put(&number, "", 1);
		const char *const system[] = {stream->format->name, " ", stream->path, ": cannot be ",
			stream->fault, ": ", strerror(stream->error), " (errno ",
			number.failed ? "?" : (const char *)number.data, ")", NULL};
		const char *const plain[] = {
			stream->format->name, " ", stream->path, ": cannot be ", stream->fault, NULL};
		mpt__tools_journal_say(journal, stream->error ? system : plain);
		mpt__tools_bytes_free(&number);
		return stream->error ? MPT_ERROR_IO : MPT_ERROR_FORMAT;
	}
	return MPT_OK;
}

/* An error that stays. */
static mpt_status mpt__tools_journal_fail(
	mpt_journal *journal, mpt_status status, const char *what, const char *name) {
	const char *const texts[] = {what, name, NULL};
	mpt__tools_journal_say(journal, texts);
	return journal->status = status;
}

/* An error of one call, which the next one that is right takes back. */
static mpt_status mpt__tools_journal_refuse(mpt_journal *journal, const char *what) {
	const char *const texts[] = {what, NULL};
	mpt__tools_journal_say(journal, texts);
	return MPT_ERROR_ARGUMENT;
}

const char *mpt_journal_error(const mpt_journal *journal) {
	return journal ? journal->error : "there is no journal, or no memory for one";
}

/* ==== Opening and closing ==== */

static double mpt__tools_journal_now(const mpt_journal *journal) {
	return journal->config.now ? journal->config.now(journal->config.user)
							   : mpt__tools_system_now();
}

/* The path of a file, with the folders that it needs made; NULL without memory. */
static char *mpt__tools_journal_path(int file, const char *given) {
	mpt__tools_bytes path = {NULL, 0, 0, false};
	mpt__tools_bytes_put_text(&path, given);
	const size_t before = path.size;
	if (file == MPT__TOOLS_EVENT_FILE) mpt__tools_bytes_put_text(&path, MPT__TOOLS_EVENT_NAME);
	mpt__tools_bytes_put(&path, "", 1);
	if (path.failed) {
		mpt__tools_bytes_free(&path);
		return NULL;
	}
	char *text = (char *)path.data;
	size_t folder = file == MPT__TOOLS_EVENT_FILE ? before : strlen(text);
	while (file != MPT__TOOLS_EVENT_FILE && folder > 0 && !mpt__tools_is_separator(text[folder]))
		folder--;
	const char at = text[folder];
	text[folder] = 0;
	if (folder > 0) mpt__tools_folders_make(text);
	text[folder] = at;
	return text;
}

static bool mpt__tools_journal_open_file(mpt_journal *journal, int file, const char *path) {
	mpt__tools_stream *stream = &journal->streams[file];
	const bool anew = !journal->config.resume;
	if (!path) return true;
	stream->format = &mpt__tools_journal_formats[file];
	stream->path = mpt__tools_journal_path(file, path);
	if (!stream->path) {
		mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the path ", path);
		return false;
	}
	if ((anew || mpt__tools_stream_mend(stream, INT64_MAX)) &&
		mpt__tools_stream_open(stream, anew)) {
		if (file == MPT__TOOLS_EVENT_FILE && stream->fresh)
			mpt__tools_put_event_record(&stream->pending, NULL, mpt__tools_journal_now(journal));
		return true;
	}
	journal->status = mpt__tools_journal_look(journal);
	return false;
}

mpt_journal *mpt_journal_open(const mpt_journal_config *config) {
	mpt_journal *journal = (mpt_journal *)mpt__tools_allocate(sizeof *journal);
	if (!journal) return NULL;
	journal->config = config ? *config : mpt_journal_config_default();
	const mpt_journal_config *c = &journal->config;
	const char *const paths[MPT__TOOLS_JOURNAL_FILES] = {c->tensorboard, c->csv, c->jsonl};
	bool fine = true;
	if (c->every < 1)
		mpt__tools_journal_fail(journal, MPT_ERROR_ARGUMENT, "every is less than 1", "");
	else if (!(c->flush_seconds >= 0))
		mpt__tools_journal_fail(journal, MPT_ERROR_ARGUMENT, "flush_seconds is less than 0", "");
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES && fine && journal->status == MPT_OK; i++)
		fine = mpt__tools_journal_open_file(journal, i, paths[i]);
	journal->flushed = mpt__tools_journal_now(journal);
	return journal;
}

mpt_status mpt_journal_flush(mpt_journal *journal) {
	if (!journal) return MPT_ERROR_HANDLE;
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++)
		mpt__tools_stream_flush(&journal->streams[i]);
	journal->flushed = mpt__tools_journal_now(journal);
	return mpt__tools_journal_look(journal);
}

mpt_status mpt_journal_close(mpt_journal *journal) {
	if (!journal) return MPT_OK;
	mpt_status status = journal->status;
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		mpt__tools_stream *stream = &journal->streams[i];
		if (!mpt__tools_stream_close(stream) && status == MPT_OK) status = MPT_ERROR_IO;
		mpt__tools_bytes_free(&stream->pending);
		mpt__tools_release(stream->path);
	}
	mpt__tools_bytes_free(&journal->record);
	mpt__tools_release(journal);
	return status;
}

int64_t mpt_journal_dropped(const mpt_journal *journal) {
	int64_t dropped = 0;
	for (int i = 0; journal && i < MPT__TOOLS_JOURNAL_FILES; i++)
		dropped += journal->streams[i].dropped;
	return dropped;
}

/* What waits is written first, so that it is taken back, too, where it is of later steps. */
mpt_status mpt_journal_rewind(mpt_journal *journal, int64_t step) {
	mpt_status status = mpt_journal_flush(journal);
	if (status != MPT_OK) return status;
	if (step < -1)
		return mpt__tools_journal_refuse(journal, "mpt_journal_rewind: step is less than -1");
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		mpt__tools_stream *stream = &journal->streams[i];
		if (!stream->path) continue;
		bool fine = mpt__tools_stream_close(stream) && mpt__tools_stream_mend(stream, step);
		if (!fine || !mpt__tools_stream_open(stream, false)) {
			status = mpt__tools_journal_look(journal);
			journal->status = status;
		}
	}
	return journal->status;
}

/* ==== Entries ==== */

/* A tag or a text as JSON: in quotes, with control characters by number. */
static void mpt__tools_put_json_text(mpt__tools_bytes *to, const char *text) {
	static const char digits[] = "0123456789abcdef";
	mpt__tools_bytes_put(to, "\"", 1);
	for (; *text; text++) {
		const unsigned char c = (unsigned char)*text;
		if (c < 0x20) {
			const char code[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
			mpt__tools_bytes_put(to, code, 6);
			continue;
		}
		if (c == '"' || c == '\\') mpt__tools_bytes_put(to, "\\", 1);
		mpt__tools_bytes_put(to, text, 1);
	}
	mpt__tools_bytes_put(to, "\"", 1);
}

/* JSON has no number for what is not finite: a string, by the names that Python's float takes. */
static void mpt__tools_put_json_number(mpt__tools_bytes *to, double value) {
	const bool finite = mpt__tools_is_finite(value);
	if (!finite) mpt__tools_bytes_put(to, "\"", 1);
	mpt__tools_put_number(to, value);
	if (!finite) mpt__tools_bytes_put(to, "\"", 1);
}

static void mpt__tools_put_json_numbers(
	mpt__tools_bytes *to, const char *name, const double *values, int count) {
	mpt__tools_bytes_put_text(to, name);
	for (int i = 0; i < count; i++) {
		mpt__tools_bytes_put(to, i ? "," : "[", 1);
		mpt__tools_put_json_number(to, values[i]);
	}
	mpt__tools_bytes_put_text(to, count ? "]" : "[]");
}

static void mpt__tools_put_json(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
	mpt__tools_bytes_put_text(to, MPT__TOOLS_JSON_HEAD);
	mpt__tools_put_integer(to, entry->step);
	mpt__tools_bytes_put_text(to, ",\"time\":");
	mpt__tools_put_json_number(to, entry->time);
	mpt__tools_bytes_put_text(to, ",\"tag\":");
	mpt__tools_put_json_text(to, entry->tag);
	if (entry->kind == MPT_JOURNAL_SCALAR) {
		mpt__tools_bytes_put_text(to, ",\"value\":");
		mpt__tools_put_json_number(to, entry->value);
	} else if (entry->kind == MPT_JOURNAL_TEXT) {
		mpt__tools_bytes_put_text(to, ",\"text\":");
		mpt__tools_put_json_text(to, entry->text);
	} else if (entry->kind == MPT_JOURNAL_HISTOGRAM) {
		const mpt_journal_bins *bins = entry->bins;
		static const char *const names[] = {",\"min\":", ",\"max\":", ",\"sum\":", ",\"squares\":"};
		const double numbers[] = {bins->min, bins->max, bins->sum, bins->squares};
		mpt__tools_bytes_put_text(to, ",\"count\":");
		mpt__tools_put_integer(to, bins->count);
		for (int i = 0; i < 4; i++) {
			mpt__tools_bytes_put_text(to, names[i]);
			mpt__tools_put_json_number(to, numbers[i]);
		}
		mpt__tools_put_json_numbers(to, ",\"limits\":", bins->limits, bins->bins);
		mpt__tools_put_json_numbers(to, ",\"counts\":", bins->counts, bins->bins);
	} else {
		static const char *const names[] = {",\"width\":", ",\"height\":", ",\"channels\":"};
		const int numbers[] = {entry->width, entry->height, entry->channels};
		for (int i = 0; i < 3; i++) {
			mpt__tools_bytes_put_text(to, names[i]);
			mpt__tools_put_integer(to, numbers[i]);
		}
	}
	mpt__tools_bytes_put_text(to, "}\n");
}

/* A row of the CSV file; a tag with a comma, a quote or a line's end stands in quotes (RFC 4180),
   the ends of lines in it as blanks, so that a row is a line. */
static void mpt__tools_put_csv(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
	const char *quote = strpbrk(entry->tag, ",\"\r\n") ? "\"" : "";
	mpt__tools_put_integer(to, entry->step);
	mpt__tools_bytes_put(to, ",", 1);
	mpt__tools_put_number(to, entry->time);
	mpt__tools_bytes_put(to, ",", 1);
	mpt__tools_bytes_put_text(to, quote);
	for (const char *c = entry->tag; *c; c++) {
		if (*c == '"') mpt__tools_bytes_put(to, "\"", 1);
		mpt__tools_bytes_put(to, *c == '\n' || *c == '\r' ? " " : c, 1);
	}
	mpt__tools_bytes_put_text(to, quote);
	mpt__tools_bytes_put(to, ",", 1);
	mpt__tools_put_number(to, entry->value);
	mpt__tools_bytes_put(to, "\n", 1);
}

/* Hands an entry to all files and to who listens. A record goes as a whole or not at all. */
static mpt_status mpt__tools_journal_enter(mpt_journal *journal, mpt_journal_entry *entry) {
	bool full = false;
	entry->time = mpt__tools_journal_now(journal);
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		mpt__tools_stream *stream = &journal->streams[i];
		mpt__tools_bytes *record = &journal->record;
		if (!stream->file || (i == MPT__TOOLS_CSV_FILE && entry->kind != MPT_JOURNAL_SCALAR))
			continue;
		record->size = 0;
		if (i == MPT__TOOLS_EVENT_FILE) mpt__tools_put_event_record(record, entry, entry->time);
		if (i == MPT__TOOLS_CSV_FILE) mpt__tools_put_csv(record, entry);
		if (i == MPT__TOOLS_JSON_FILE) mpt__tools_put_json(record, entry);
		if (!record->failed) mpt__tools_bytes_put(&stream->pending, record->data, record->size);
		if (record->failed || stream->pending.failed) {
			record->failed = stream->pending.failed = false;
			return mpt__tools_journal_fail(
				journal, MPT_ERROR_MEMORY, "out of memory: an entry is lost: ", entry->tag);
		}
		full = full || stream->pending.size >= MPT__TOOLS_FLUSH_BYTES || stream->error != 0;
	}
	if (journal->config.entry) journal->config.entry(journal->config.user, entry);
	if (full || entry->time - journal->flushed >= journal->config.flush_seconds ||
		entry->time < journal->flushed)
		return mpt_journal_flush(journal);
	return mpt__tools_journal_look(journal);
}

/* An entry as far as all kinds have it; false where there is something wrong, and *status says
   what. */
static bool mpt__tools_journal_begin(mpt_journal *journal, mpt_journal_entry *entry,
	mpt_journal_kind kind, const char *tag, int64_t step, mpt_status *status) {
	memset(entry, 0, sizeof *entry);
	entry->kind = kind;
	entry->tag = tag;
	entry->step = step;
	*status = journal ? journal->status : MPT_ERROR_HANDLE;
	if (*status != MPT_OK) return false;
	if (!tag || !*tag || strlen(tag) > MPT__TOOLS_TAG_BYTES)
		*status = mpt__tools_journal_refuse(journal, "a tag has 1 to 255 bytes");
	else if (step < 0)
		*status = mpt__tools_journal_refuse(journal, "a step is 0 or more");
	return *status == MPT_OK;
}

mpt_status mpt_journal_scalar(mpt_journal *journal, const char *tag, int64_t step, double value) {
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_SCALAR, tag, step, &status))
		return status;
	entry.value = value;
	return mpt__tools_journal_enter(journal, &entry);
}

mpt_status mpt_journal_text(mpt_journal *journal, const char *tag, int64_t step, const char *text) {
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_TEXT, tag, step, &status))
		return status;
	if (!text) return mpt__tools_journal_refuse(journal, "text is NULL");
	entry.text = text;
	return mpt__tools_journal_enter(journal, &entry);
}

/* ==== Tensors ==== */

/* The status of a call on a tensor that failed: the context has the words, if there is one. */
static mpt_status mpt__tools_journal_tensor_failed(mpt_journal *journal, mpt_context *ctx) {
	const char *const texts[] = {
		ctx ? mpt_error(ctx) : "a null handle in the place of a tensor or module", NULL};
	mpt__tools_journal_say(journal, texts);
	return ctx ? mpt_error_code(ctx) : MPT_ERROR_HANDLE;
}

mpt_status mpt_journal_histogram(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor tensor) {
	mpt_journal_entry entry;
	mpt_status status;
	int64_t found[MPT__TOOLS_BINS];
	double limits[MPT__TOOLS_BINS], counts[MPT__TOOLS_BINS];
	mpt_journal_bins bins;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_HISTOGRAM, tag, step, &status))
		return status;
	if (!tensor.context || mpt_failed(tensor.context))
		return mpt__tools_journal_tensor_failed(journal, tensor.context);
	const mpt_tensor_stats s = mpt_statistics(tensor);
	memset(&bins, 0, sizeof bins);
	bins.count = s.count - s.nans - s.infinities;
	bins.limits = limits, bins.counts = counts;
	if (bins.count > 0 && !mpt_failed(tensor.context)) {
		const double n = (double)bins.count, part = (s.max - s.min) / (double)MPT__TOOLS_BINS;
		bins.min = s.min, bins.max = s.max, bins.sum = s.mean * n;
		bins.squares = (s.deviation * s.deviation + s.mean * s.mean) * n;
		bins.bins = s.min < s.max ? MPT__TOOLS_BINS : 1;
		found[0] = bins.count;
		if (s.min < s.max) mpt_histogram(tensor, s.min, s.max, found, MPT__TOOLS_BINS);
		for (int i = 0; i < bins.bins && !mpt_failed(tensor.context); i++) {
			limits[i] = i + 1 < bins.bins ? (double)(float)(s.min + (i + 1) * part) : s.max;
			counts[i] = (double)found[i];
		}
	}
	if (mpt_failed(tensor.context))
		return mpt__tools_journal_tensor_failed(journal, tensor.context);
	entry.bins = &bins;
	return mpt__tools_journal_enter(journal, &entry);
}

mpt_status mpt_journal_module(
	mpt_journal *journal, int64_t step, mpt_module module, bool gradients) {
	enum { HEAD = 16, PATH = 1280 };
	char tag[HEAD + PATH];
	mpt_journal_entry entry;
	mpt_status status;
	const char *head = gradients ? "gradients/" : "weights/";
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_HISTOGRAM, head, step, &status))
		return status;
	if (!module.context || mpt_failed(module.context))
		return mpt__tools_journal_tensor_failed(journal, module.context);
	const int count = mpt_parameter_count(module);
	const size_t length = strlen(head);
	memcpy(tag, head, length);
	for (int i = 0; i < count && status == MPT_OK; i++) {
		mpt_tensor tensor = mpt_parameter_at(module, i, tag + length, PATH);
		if (gradients && !mpt_has_grad(tensor)) continue;
		if (gradients) tensor = mpt_grad(tensor);
		tag[MPT__TOOLS_TAG_BYTES] = 0;
		status = mpt_journal_histogram(journal, tag, step, tensor);
	}
	if (mpt_failed(module.context))
		return mpt__tools_journal_tensor_failed(journal, module.context);
	return status;
}

/* ==== Pictures ==== */

mpt_status mpt_journal_pixels(mpt_journal *journal, const char *tag, int64_t step,
	const unsigned char *pixels, int width, int height, int channels) {
	enum { MOST = 1 << 28 }; /* bytes; a chunk of PNG ends at 2^31 */
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_IMAGE, tag, step, &status))
		return status;
	if (!pixels) return mpt__tools_journal_refuse(journal, "pixels is NULL");
	if (width < 1 || height < 1 || width > MOST / 4 / height)
		return mpt__tools_journal_refuse(journal, "an image has 1 to 2^26 pixels");
	if (channels != 1 && channels != 3 && channels != 4)
		return mpt__tools_journal_refuse(journal, "an image has 1, 3 or 4 channels");
	mpt__tools_bytes png = {NULL, 0, 0, false};
	mpt__tools_put_png(&png, pixels, width, height, channels);
	if (png.failed) {
		mpt__tools_bytes_free(&png);
		return mpt__tools_journal_fail(
			journal, MPT_ERROR_MEMORY, "out of memory for the image ", tag);
	}
	entry.png = png.data, entry.png_bytes = png.size;
	entry.width = width, entry.height = height, entry.channels = channels;
	status = mpt__tools_journal_enter(journal, &entry);
	mpt__tools_bytes_free(&png);
	return status;
}

/* A value from 0 to 1 as a byte, to nearest. */
static unsigned char mpt__tools_pixel_of(float value) {
	if (!(value > 0.0f)) return 0;
	return value < 1.0f ? (unsigned char)(value * 255.0f + 0.5f) : 255;
}

/* Rows of channels side by side from channels behind one another. */
static bool mpt__tools_image_read(
	mpt_tensor image, int channels, int64_t area, unsigned char *pixels) {
	const int64_t count = channels * area;
	const bool bytes = mpt_get_dtype(image) == MPT_U8;
	void *values = mpt__tools_allocate((size_t)count * (bytes ? 1 : sizeof(float)));
	bool fine = values != NULL;
	if (fine && bytes) fine = mpt_read(image, values, (size_t)count) == MPT_OK;
	if (fine && !bytes) fine = mpt_read_f32(image, (float *)values, count) == MPT_OK;
	for (int64_t i = 0; fine && i < count; i++)
		pixels[i % area * channels + i / area] =
			bytes ? ((unsigned char *)values)[i] : mpt__tools_pixel_of(((float *)values)[i]);
	mpt__tools_release(values);
	return fine;
}

mpt_status mpt_journal_image(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor image) {
	enum { MOST = 1 << 26 };
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_IMAGE, tag, step, &status))
		return status;
	if (!image.context || mpt_failed(image.context))
		return mpt__tools_journal_tensor_failed(journal, image.context);
	const mpt_shape shape = mpt_get_shape(image);
	if (mpt_failed(image.context)) return mpt__tools_journal_tensor_failed(journal, image.context);
	const mpt_dtype dtype = mpt_get_dtype(image);
	if (dtype != MPT_U8 && dtype != MPT_F32 && dtype != MPT_F16 && dtype != MPT_BF16)
		return mpt__tools_journal_refuse(journal, "an image is of u8, fp32, fp16 or bf16");
	if (shape.rank != 2 && shape.rank != 3)
		return mpt__tools_journal_refuse(journal, "an image has the shape [H, W] or [C, H, W]");
	const int first = shape.rank - 2;
	const int64_t height = shape.dim[first], width = shape.dim[first + 1];
	const int64_t channels = first ? shape.dim[0] : 1;
	if (width < 1 || height < 1 || width > MOST / height)
		return mpt__tools_journal_refuse(journal, "an image has 1 to 2^26 pixels");
	if (channels != 1 && channels != 3 && channels != 4)
		return mpt__tools_journal_refuse(journal, "an image has 1, 3 or 4 channels");
	unsigned char *pixels =
		(unsigned char *)mpt__tools_allocate((size_t)(channels * width * height));
	if (pixels && mpt__tools_image_read(image, (int)channels, width * height, pixels))
		status =
			mpt_journal_pixels(journal, tag, step, pixels, (int)width, (int)height, (int)channels);
	else if (mpt_failed(image.context))
		status = mpt__tools_journal_tensor_failed(journal, image.context);
	else
		status =
			mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the image ", tag);
	mpt__tools_release(pixels);
	return status;
}

/* ==== Fit ==== */

/* What a fit says of an epoch: a value that is not there is left out. */
static void mpt__tools_journal_if_known(
	mpt_journal *journal, const char *tag, int64_t step, double value) {
	if (mpt__tools_bits_of(value) << 1 <= 0x7FFull << 53)
		mpt_journal_scalar(journal, tag, step, value);
}

bool mpt_journal_fit(void *user, const mpt_progress *p) {
	mpt_journal *journal = (mpt_journal *)user;
	if (!journal || !p) return true;
	if (!journal->fit_began) mpt_journal_rewind(journal, p->step ? p->step - 1 : 0);
	if (journal->fit_began && p->step < journal->fit_last)
		journal->fit_base += journal->fit_last; /* another fit */
	journal->fit_began = true;
	journal->fit_last = p->step;
	const int64_t step = journal->fit_base + p->step;
	if (p->epoch_end) {
		mpt_journal_scalar(journal, "epoch/loss", step, p->loss);
		mpt__tools_journal_if_known(journal, "validation/loss", step, p->validation_loss);
		mpt__tools_journal_if_known(journal, "validation/accuracy", step, p->validation_accuracy);
		mpt_journal_flush(journal);
		return true;
	}
	if (p->step % journal->config.every != 0) return true;
	mpt_journal_scalar(journal, "loss", step, p->loss);
	mpt__tools_journal_if_known(journal, "lr", step, p->lr);
	mpt_journal_scalar(journal, "scale", step, p->scale);
	mpt_journal_scalar(journal, "skipped", step, (double)p->skipped_steps);
	mpt__tools_journal_if_known(journal, "grad_norm", step, p->grad_norm);
	mpt_journal_scalar(journal, "steps_per_second", step, p->steps_per_second);
	mpt_journal_scalar(journal, "waiting", step, p->seconds_waited);
	mpt_journal_scalar(journal, "memory", step, (double)p->memory);
	return true;
}

#endif
