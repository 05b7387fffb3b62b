/* ----
 * watch/flight.c: the flight recorder: a log of what every step of a training was, small enough to
 * be kept always, and the comparison of a training with such a log.
 *
 * A log is a row of pieces: a mark, the size of what follows, that, and a hash of all of it;
 * numbers are little-endian. The first piece says how the training was made, each other one holds
 * some steps. A step is a sum of what its updates wrote, one of what came from outside, and, at the
 * level of ops, two bytes for each operand that a launch wrote. A file is data: what it claims is
 * checked before it is believed, and a tail that is cut or damaged ends it.
 * ---- */
#ifndef MPT__WATCH_FLIGHT_INCLUDED
#define MPT__WATCH_FLIGHT_INCLUDED

#include "watch/cost.c"
#include "train/resume.c"

enum {
    MPT__FLIGHT_FORMAT = 1,
    MPT__FLIGHT_HEADER = 0x4654504d, /* "MPTF" */
    MPT__FLIGHT_BLOCK = 0x4254504d,  /* "MPTB" */
    MPT__FLIGHT_STATED = 24,         /* bytes before the level's name */
    MPT__FLIGHT_BEFORE = 36,         /* bytes of a block's numbers, before its steps */
    MPT__FLIGHT_STEP = 8,            /* bytes of a step, before its sums */
    MPT__FLIGHT_SUMS = 65535
};

/* Where a step lies in a log. */
typedef struct {
    int64_t step, at;
} mpt__flight_place;

typedef struct mpt__flight {
    mpt_flight_level level;
    int64_t most; /* steps of a block */
    bool open, repeats, replays, failed;
    /* the step under way */
    int64_t step, count, sums_capacity;
    uint64_t state, batch;
    uint16_t *sums;
    int64_t *seen; /* by storage: the step that wrote it, or has read it */
    int64_t seen_capacity;
    /* the file being written, and its block under way */
    void *file;
    int64_t position, length, capacity, first, steps;
    uint8_t *block;
    /* the log that is compared with */
    uint8_t *log;
    size_t log_bytes;
    mpt__flight_place *places;
    int64_t place_count, place_capacity;
    const uint8_t *expected; /* of the step; NULL: the log has none */
    char isa[24];
    uint64_t seed;
    mpt_flight_report report;
    char path[MPT__PATH_SIZE];
} mpt__flight;

/* ==== Sums ==== */

static void mpt__flight_put(uint8_t *to, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
}

/* Each step of a lane is one to one, so that no change of a single word is ever lost in it. */
static uint64_t mpt__flight_words(uint64_t hash, const uint8_t *p, size_t n) {
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t a = hash, b = hash + 1, c = hash + 2, d = hash + 3, w[4];
    for (; n >= sizeof w; n -= sizeof w, p += sizeof w) {
        memcpy(w, p, sizeof w);
        a = (a + w[0]) * odd, b = (b + w[1]) * odd;
        c = (c + w[2]) * odd, d = (d + w[3]) * odd;
    }
    hash = mpt__hash_u64(mpt__hash_u64(mpt__hash_u64(a, b), c), d);
    return n > 0 ? mpt__hash_bytes(hash, p, n) : hash;
}

/* Little-endian elements of which all NaN become one: their sign and rest differ by machine. */
static void mpt__flight_one_nan(uint8_t *p, size_t n, size_t size, int dtype) {
    const uint64_t infinity = dtype == MPT_F32 ? 0x7f800000u
        : dtype == MPT_F16                     ? 0x7c00u
        : dtype == MPT_BF16                    ? 0x7f80u
                                               : UINT64_C(0x7ff0000000000000);
    const uint64_t sign = UINT64_C(1) << (8 * size - 1);
    if (dtype != MPT_F32 && dtype != MPT_F64 && !mpt__is_low(dtype)) return;
    for (; n >= size; n -= size, p += size)
        if ((mpt__load_little_endian(p, size) & ~sign) > infinity)
            mpt__flight_put(p, infinity + 1, size);
}

/* The same of what is first put into the order of a file, with one NaN. */
static uint64_t mpt__flight_words_plain(
    uint64_t hash, const uint8_t *p, size_t n, size_t size, int dtype) {
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t lane[4] = {hash, hash + 1, hash + 2, hash + 3};
    uint8_t some[32];
    for (; n >= sizeof some; n -= sizeof some, p += sizeof some) {
        memcpy(some, p, sizeof some);
        mpt__file_order(some, sizeof some, size);
        mpt__flight_one_nan(some, sizeof some, size, dtype);
        for (int k = 0; k < 4; k++)
            lane[k] = (lane[k] + mpt__load_little_endian(some + 8 * k, 8)) * odd;
    }
    hash = mpt__hash_u64(mpt__hash_u64(mpt__hash_u64(lane[0], lane[1]), lane[2]), lane[3]);
    memcpy(some, p, n);
    mpt__file_order(some, n, size);
    mpt__flight_one_nan(some, n, size, dtype);
    return n > 0 ? mpt__hash_bytes(hash, some, n) : hash;
}

/* Levels whose bits are the same everywhere. */
static bool mpt__flight_portable(const char *isa) {
    return strcmp(isa, "portable") == 0 || strcmp(isa, "ref") == 0;
}

/* Dimensions that move, by the way that they go through memory, the widest first; the innermost
   ones that lie without gaps become one. Returns how many there are. */
static int mpt__flight_dims(const mpt__operand *o, int64_t *shape, int64_t *stride) {
    int rank = 0;
    for (int d = 0; d < o->rank; d++) {
        int to = rank;
        if (o->shape[d] == 1 || o->stride[d] == 0) continue;
        for (; to > 0 && stride[to - 1] < o->stride[d]; to--)
            shape[to] = shape[to - 1], stride[to] = stride[to - 1];
        shape[to] = o->shape[d], stride[to] = o->stride[d];
        rank++;
    }
    while (rank > 1 && stride[rank - 2] == shape[rank - 1] * stride[rank - 1]) {
        shape[rank - 2] *= shape[rank - 1];
        stride[rank - 2] = stride[rank - 1];
        rank--;
    }
    return rank;
}

/* A sum of the elements that an operand has, in the order of memory. */
static uint64_t mpt__flight_sum(mpt_context *ctx, const mpt__operand *o) {
    const size_t size = mpt_dtype_size((mpt_dtype)o->dtype);
    const uint8_t *data = (const uint8_t *)ctx->data[o->storage];
    int64_t shape[MPT_MAX_RANK], stride[MPT_MAX_RANK], at[MPT_MAX_RANK] = {0};
    uint64_t hash = size;
    for (int d = 0; d < o->rank; d++)
        if (o->shape[d] == 0) return hash;
    int outer = mpt__flight_dims(o, shape, stride);
    int64_t run = outer > 0 && stride[outer - 1] == 1 ? shape[--outer] : 1, offset = o->offset;
    const bool plain = mpt__big_endian() || mpt__flight_portable(ctx->isa_name);
    while (data) {
        const uint8_t *from = data + offset * (int64_t)size;
        int d = outer - 1;
        hash = plain ? mpt__flight_words_plain(hash, from, (size_t)run * size, size, o->dtype)
                     : mpt__flight_words(hash, from, (size_t)run * size);
        for (; d >= 0; d--) {
            offset += stride[d];
            if (++at[d] < shape[d]) break;
            offset -= shape[d] * stride[d];
            at[d] = 0;
        }
        if (d < 0) break;
    }
    return hash;
}

/* ==== Numbers of a log ==== */

#define mpt__flight_get(from, bytes) mpt__load_little_endian(from, bytes)

/* ==== Writing ==== */

/* What failed is said once, and by mpt_flight_end; a training does not fail for its log. */
static void mpt__flight_write(mpt_context *ctx, mpt__flight *flight, uint32_t mark, size_t n) {
    const mpt_io *io = mpt__io(&ctx->base);
    uint8_t *piece = flight->block;
    if (flight->failed || !flight->file) return;
    mpt__flight_put(piece, mark, 4);
    mpt__flight_put(piece + 4, n, 4);
    mpt__flight_put(piece + 8 + n, mpt__hash_bytes(0, piece, 8 + n), 8);
    flight->failed = !io->write || io->write(io->user, flight->file, piece, n + 16) != n + 16 ||
        !io->flush || !io->flush(io->user, flight->file);
    flight->position += (int64_t)n + 16;
    if (flight->failed)
        mpt__log(&ctx->base, MPT_LOG_WARNING, "the flight log %s ends before step %lld: %s",
            flight->path, flight->first, mpt__io_reason(&ctx->base));
}

/* The block under way: its first step, how many, the loss scale, updates skipped so far. */
static void mpt__flight_flush(mpt_context *ctx, mpt__flight *flight) {
    const mpt__object_table *table = &ctx->objects[MPT__SCALER];
    double scale = 1;
    int64_t skipped = 0;
    uint64_t bits;
    if (flight->steps == 0) return;
    for (int64_t i = table->count - 1; i > 0; i--) {
        const mpt__scaler *scaler = (const mpt__scaler *)table->rows[i].object;
        if (scaler) scale = scaler->seen.scale, skipped = scaler->seen.skipped;
    }
    memcpy(&bits, &scale, 8);
    mpt__flight_put(flight->block + 8, (uint64_t)flight->first, 8);
    mpt__flight_put(flight->block + 16, (uint64_t)flight->steps, 4);
    mpt__flight_put(flight->block + 20, bits, 8);
    mpt__flight_put(flight->block + 28, (uint64_t)skipped, 8);
    mpt__flight_write(ctx, flight, MPT__FLIGHT_BLOCK, (size_t)flight->length - 8);
    flight->length = MPT__FLIGHT_BEFORE;
    flight->steps = 0;
}

/* Room for a step of `count` sums behind the block's, at *to; false with an error recorded. */
static bool mpt__flight_room(
    mpt_context *ctx, mpt__flight *flight, int64_t step, int64_t count, uint8_t **to) {
    const int64_t n = MPT__FLIGHT_STEP + 2 * count;
    if (flight->steps == flight->most || step != flight->first + flight->steps)
        mpt__flight_flush(ctx, flight);
    if (flight->steps == 0) flight->first = step;
    if (!mpt__room(ctx, flight->block, flight->capacity, flight->length + n + 8)) return false;
    *to = flight->block + flight->length;
    flight->length += n;
    flight->steps++;
    return true;
}

static void mpt__flight_keep(mpt_context *ctx, mpt__flight *flight) {
    uint8_t *to;
    if (!mpt__flight_room(ctx, flight, flight->step, flight->count, &to)) return;
    mpt__flight_put(to, flight->state, 4);
    mpt__flight_put(to + 4, flight->batch, 2);
    mpt__flight_put(to + 6, (uint64_t)flight->count, 2);
    for (int64_t i = 0; i < flight->count; i++)
        mpt__flight_put(to + MPT__FLIGHT_STEP + 2 * i, flight->sums[i], 2);
    if (flight->steps == flight->most) mpt__flight_flush(ctx, flight);
}

/* ==== Reading ==== */

/* The payload of the piece at *at, of *n bytes; NULL where the log ends or is damaged. */
static const uint8_t *mpt__flight_piece(
    const mpt__flight *flight, size_t *at, uint32_t mark, size_t *n) {
    const uint8_t *piece = flight->log + *at;
    const size_t left = flight->log_bytes - *at;
    if (left < 16 || mpt__flight_get(piece, 4) != mark) return NULL;
    *n = (size_t)mpt__flight_get(piece + 4, 4);
    if (*n > left - 16 || mpt__flight_get(piece + 8 + *n, 8) != mpt__hash_bytes(0, piece, 8 + *n))
        return NULL;
    *at += *n + 16;
    return piece + 8;
}

/* The places of a block's steps; those of a step that was done again count, and none behind it. */
static bool mpt__flight_steps(
    mpt_context *ctx, mpt__flight *flight, const uint8_t *block, size_t n) {
    if (n < MPT__FLIGHT_BEFORE - 8) return false;
    const int64_t first = (int64_t)mpt__flight_get(block, 8);
    const int64_t steps = (int64_t)mpt__flight_get(block + 8, 4);
    if (first < 1 || first > MPT__MOST_COUNTED) return false;
    while (flight->place_count > 0 && flight->places[flight->place_count - 1].step >= first)
        flight->place_count--;
    size_t at = MPT__FLIGHT_BEFORE - 8;
    for (int64_t i = 0; i < steps; i++) {
        if (n - at < MPT__FLIGHT_STEP) return false;
        const size_t bytes = MPT__FLIGHT_STEP + 2 * (size_t)mpt__flight_get(block + at + 6, 2);
        if (n - at < bytes ||
            !mpt__room(ctx, flight->places, flight->place_capacity, flight->place_count + 1))
            return false;
        mpt__flight_place *place = &flight->places[flight->place_count++];
        place->step = first + i;
        place->at = block + at - flight->log;
        at += bytes;
    }
    return true;
}

/* Reads a log of a training of this seed; its bytes stay. False with an error recorded. */
static bool mpt__flight_read(mpt_context *ctx, mpt__flight *flight, mpt__reader *file) {
    static const uint8_t none[1] = {0};
    size_t at = 0, n = 0;
    if (file->size >= 16) {
        flight->log = mpt__reader_rest(file, none, 0, MPT_MEMORY_DATA);
        if (!flight->log) return false;
        flight->log_bytes = (size_t)file->size;
    }
    const uint8_t *piece =
        flight->log ? mpt__flight_piece(flight, &at, MPT__FLIGHT_HEADER, &n) : NULL;
    if (!piece || n < MPT__FLIGHT_STATED || mpt__flight_get(piece, 4) != MPT__FLIGHT_FORMAT ||
        n - MPT__FLIGHT_STATED >= sizeof flight->isa)
        return mpt__reject(ctx, FORMAT, "%s: it is no flight log", flight->path);
    flight->level = mpt__flight_get(piece + 4, 4) ? MPT_FLIGHT_OPS : MPT_FLIGHT_STEPS;
    flight->seed = mpt__flight_get(piece + 8, 8);
    memcpy(flight->isa, piece + MPT__FLIGHT_STATED, n - MPT__FLIGHT_STATED);
    if (flight->seed != ctx->config.seed)
        return mpt__reject(ctx, FORMAT, "%s: its training has seed %lld, this one %lld",
            flight->path, (int64_t)flight->seed, (int64_t)ctx->config.seed);
    while ((piece = mpt__flight_piece(flight, &at, MPT__FLIGHT_BLOCK, &n)) != NULL)
        if (!mpt__flight_steps(ctx, flight, piece, n)) break;
    return mpt__ok(ctx);
}

static const uint8_t *mpt__flight_find(const mpt__flight *flight, int64_t step) {
    int64_t low = 0, high = flight->place_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (flight->places[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low < flight->place_count && flight->places[low].step == step
        ? flight->log + flight->places[low].at
        : NULL;
}

/* ==== Comparing ==== */

/* The path of the parameter that a launch reads, or "". */
static const char *mpt__flight_parameter(mpt_context *ctx, const mpt__launch *launch) {
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *o = &launch->operand[i];
        if (!o->storage || o->access != MPT__READ) continue;
        for (int64_t k = 0; k < ctx->parameter_count; k++) {
            const mpt__parameter *parameter = &ctx->parameters[k];
            if (!parameter->live || parameter->offset != o->offset) continue;
            const mpt__block *block = &ctx->blocks[parameter->block];
            if (o->storage == block->values || o->storage == block->form[0] ||
                o->storage == block->form[1])
                return parameter->path ? parameter->path : "";
        }
    }
    return "";
}

/* The first launch that wrote something else than the log says. */
static void mpt__flight_differs(
    mpt_context *ctx, mpt__flight *flight, const mpt__launch *launch, int operand) {
    mpt_flight_report *report = &flight->report;
    const mpt__operand *o = &launch->operand[operand];
    const uint32_t record = flight->repeats ? 0 : launch->op_record;
    const char *path = mpt__path_text(ctx, record ? ctx->records[record]->path : ctx->path);
    const char *parameter = mpt__flight_parameter(ctx, launch);
    const char *op = launch->op ? ctx->ops[launch->op].name : mpt__kernel_names[launch->kernel];
    const mpt_shape shape = mpt__operand_shape(o);
    const bool updates = mpt__kernel_effects[launch->kernel] != 0;
    report->kind = MPT_FLIGHT_OP;
    report->step = flight->step;
    report->launch = flight->count;
    mpt__format_text(report->op, sizeof report->op, "%s", op);
    mpt__format_text(report->module, sizeof report->module, "%s", flight->repeats ? "" : path);
    mpt__format_text(report->parameter, sizeof report->parameter, "%s", parameter);
    mpt__text text = mpt__text_make(report->text, sizeof report->text);
    mpt__write_text(
        &text, "step %lld: %s of %s", flight->step, mpt__phase_names[launch->phase], op);
    if (*report->module) mpt__write_text(&text, ", module %s", path);
    mpt__write_text(&text,
        " (kernel %s): what it wrote, operand %d, a %D tensor %S, is another than in %s",
        mpt__kernel_names[launch->kernel], operand, o->dtype, &shape, flight->path);
    if (updates)
        mpt__write_text(&text, "; gradients, or what the optimizer keeps, may have been others");
    else if (*parameter)
        mpt__write_text(&text, "; it reads %s, which may have been another", parameter);
}

/* What a whole step was, where no op of it was named. */
static void mpt__flight_compare(mpt_context *ctx, mpt__flight *flight) {
    const uint8_t *log = flight->expected;
    mpt_flight_report *report = &flight->report;
    if (!log || (report->kind && report->step != flight->step)) return;
    const bool batch = mpt__flight_get(log + 4, 2) != (flight->batch & 0xffff);
    const bool state = mpt__flight_get(log, 4) != (flight->state & 0xffffffff);
    if (batch) {
        report->kind = MPT_FLIGHT_BATCH;
        report->step = flight->step;
        mpt__format_text(report->text, sizeof report->text,
            "step %lld: its batch, or what else came from outside, is another than in %s",
            flight->step, flight->path);
    } else if (state && !report->kind) {
        report->kind = MPT_FLIGHT_STATE;
        report->step = flight->step;
        mpt__format_text(report->text, sizeof report->text,
            "step %lld: what its updates wrote is another than in %s%s", flight->step, flight->path,
            flight->level == MPT_FLIGHT_OPS ? "" : ", which names no ops (MPT_FLIGHT_STEPS)");
    }
    if (report->kind)
        mpt__log(&ctx->base, MPT_LOG_WARNING, "%s", report->text);
    else
        report->steps++;
}

/* ==== While steps run ==== */

/* Casts of weights are made when they are wanted, which a recording of a step changes. */
static bool mpt__flight_passes(const mpt_context *ctx, const mpt__launch *launch) {
    if (launch->kernel != MPT__K_COPY) return false;
    for (int64_t i = 0; i < ctx->block_count; i++)
        for (int k = 0; k < 2 && ctx->blocks[i].live; k++)
            if (ctx->blocks[i].form[k] && ctx->blocks[i].form[k] == launch->operand[1].storage)
                return true;
    return false;
}

/* Whether the step has not met a storage yet; it has now. */
static bool mpt__flight_meets(mpt_context *ctx, mpt__flight *flight, uint32_t id) {
    const int64_t before = flight->seen_capacity;
    if ((int64_t)id >= before) {
        if (!mpt__room(ctx, flight->seen, flight->seen_capacity, (int64_t)id + 1)) return false;
        memset(flight->seen + before, 0,
            (size_t)(flight->seen_capacity - before) * sizeof *flight->seen);
    }
    const bool first = flight->seen[id] != flight->step;
    flight->seen[id] = flight->step;
    return first;
}

static void mpt__flight_wrote(
    mpt_context *ctx, mpt__flight *flight, const mpt__launch *launch, int operand, bool effect) {
    const uint64_t sum = mpt__flight_sum(ctx, &launch->operand[operand]);
    const uint16_t kept = (uint16_t)(sum >> 48);
    const uint8_t *log = flight->expected;
    if (effect) flight->state = mpt__hash_u64(flight->state, sum);
    if (flight->level != MPT_FLIGHT_OPS || flight->count == MPT__FLIGHT_SUMS) return;
    if (log && !flight->report.kind && flight->count < (int64_t)mpt__flight_get(log + 6, 2) &&
        mpt__flight_get(log + MPT__FLIGHT_STEP + 2 * flight->count, 2) != kept)
        mpt__flight_differs(ctx, flight, launch, operand);
    if (!mpt__room(ctx, flight->sums, flight->sums_capacity, flight->count + 1)) return;
    flight->sums[flight->count++] = kept;
}

static void mpt__flight_launch(MPT__HEARS) {
    mpt__flight *flight = (mpt__flight *)user;
    const mpt__launch *launch = (const mpt__launch *)what;
    const bool effect = mpt__kernel_effects[launch->kernel] != 0;
    if (!flight->open || mpt__flight_passes(ctx, launch)) return;
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *o = &launch->operand[i];
        if (!o->storage || o->access != MPT__READ || launch->phase != MPT__FORWARD ||
            ctx->storages[o->storage].kind != MPT_MEMORY_ACTIVATION)
            continue;
        if (mpt__flight_meets(ctx, flight, o->storage))
            flight->batch += mpt__flight_sum(ctx, o) >> 48;
    }
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *o = &launch->operand[i];
        if (!o->storage || o->access == MPT__READ) continue;
        mpt__flight_meets(ctx, flight, o->storage);
        if (effect || flight->level == MPT_FLIGHT_OPS)
            mpt__flight_wrote(ctx, flight, launch, i, effect);
    }
}

static void mpt__flight_open(MPT__HEARS) {
    mpt__flight *flight = (mpt__flight *)user;
    flight->open = true;
    flight->repeats = what != NULL;
    flight->step = ctx->now.step;
    flight->count = 0;
    flight->state = flight->batch = 0;
    flight->expected = flight->replays ? mpt__flight_find(flight, flight->step) : NULL;
}

static void mpt__flight_close(MPT__HEARS) {
    mpt__flight *flight = (mpt__flight *)user;
    (void)what;
    if (!flight->open) return;
    flight->open = false;
    if (flight->replays)
        mpt__flight_compare(ctx, flight);
    else
        mpt__flight_keep(ctx, flight);
}

static const struct {
    mpt__event event;
    mpt__hear hear;
} mpt__flight_hears[] = {{MPT__LAUNCHED, mpt__flight_launch}, {MPT__STEP_BEGAN, mpt__flight_open},
    {MPT__STEP_ENDED, mpt__flight_close}, {MPT__REPEAT_BEGAN, mpt__flight_open},
    {MPT__REPEAT_ENDED, mpt__flight_close}};
#define MPT__FLIGHT_HEARS (int)(sizeof mpt__flight_hears / sizeof mpt__flight_hears[0])

/* ==== API ==== */

static void mpt__flight_drop_log(mpt_context *ctx, mpt__flight *flight) {
    if (flight->log) mpt__release(&ctx->base, flight->log, flight->log_bytes, MPT_MEMORY_DATA);
    mpt__room_free(ctx, flight->places, flight->place_capacity);
    flight->log = NULL, flight->places = NULL;
    flight->place_count = flight->place_capacity = 0;
}

/* Ends it, with what it has still to write; false if not all of it was written. */
static bool mpt__flight_done(mpt_context *ctx) {
    mpt__flight *flight = (mpt__flight *)ctx->flight;
    const mpt_io *io = mpt__io(&ctx->base);
    for (int i = 0; i < MPT__FLIGHT_HEARS; i++)
        mpt__listen_no_more(ctx, mpt__flight_hears[i].event, mpt__flight_hears[i].hear);
    if (flight->file) {
        mpt__flight_flush(ctx, flight);
        if (!io->close || !io->close(io->user, flight->file)) flight->failed = true;
    }
    const bool good = !flight->failed;
    mpt__flight_drop_log(ctx, flight);
    mpt__room_free(ctx, flight->sums, flight->sums_capacity);
    mpt__room_free(ctx, flight->seen, flight->seen_capacity);
    mpt__room_free(ctx, flight->block, flight->capacity);
    mpt__host_free(ctx, flight, sizeof *flight);
    ctx->flight = NULL;
    ctx->flight_end = NULL;
    return good;
}

static void mpt__flight_free(mpt_context *ctx) {
    if (ctx->flight_end) ctx->flight_end(ctx);
}

/* A recorder of this path, if there can be one now. */
static mpt__flight *mpt__flight_make(mpt_context *ctx, const char *path) {
    mpt__flight *flight = (mpt__flight *)ctx->flight;
    if (mpt__no_files(ctx)) return NULL;
    if (!path || !*path || strlen(path) >= MPT__PATH_SIZE)
        return mpt__error(ctx, ARGUMENT, "path is %s", path && *path ? "too long" : "empty"),
               (mpt__flight *)NULL;
    if (ctx->step_depth)
        return mpt__error(ctx, STATE, "step %lld is open; call it between steps", ctx->now.step),
               (mpt__flight *)NULL;
    if (flight)
        return mpt__error(ctx, STATE, "%s is under way; mpt_flight_end ends it", flight->path),
               (mpt__flight *)NULL;
    if (!ctx->backend.synchronous || mpt__is_dry(&ctx->base))
        return mpt__error(ctx, UNSUPPORTED,
                   "flights are recorded and compared on the CPU alone, and not in dry contexts"),
               (mpt__flight *)NULL;
    flight = (mpt__flight *)mpt__host_new(ctx, sizeof *flight);
    if (!flight) return NULL;
    mpt__format_text(flight->path, sizeof flight->path, "%s", path);
    flight->length = MPT__FLIGHT_BEFORE;
    ctx->flight = flight;
    ctx->flight_end = mpt__flight_done;
    return flight;
}

static mpt_status mpt__flight_listen(mpt_context *ctx, mpt__flight *flight) {
    for (int i = 0; i < MPT__FLIGHT_HEARS && mpt__ok(ctx); i++)
        mpt__listen(ctx, mpt__flight_hears[i].event, mpt__flight_hears[i].hear, flight);
    if (!mpt__ok(ctx)) mpt__flight_done(ctx);
    return ctx->base.status;
}

/* The first piece. */
static void mpt__flight_state_training(mpt_context *ctx, mpt__flight *flight) {
    const char *isa = ctx->isa_name;
    const size_t n = strlen(isa);
    uint8_t *to = flight->block + 8;
    mpt__flight_put(to, MPT__FLIGHT_FORMAT, 4);
    mpt__flight_put(to + 4, flight->level == MPT_FLIGHT_OPS, 4);
    mpt__flight_put(to + 8, ctx->config.seed, 8);
    mpt__flight_put(to + 16, MPTRAIN_VERSION, 4);
    mpt__flight_put(to + 20, (uint64_t)ctx->config.threads, 4);
    memcpy(to + MPT__FLIGHT_STATED, isa, n);
    mpt__flight_write(ctx, flight, MPT__FLIGHT_HEADER, MPT__FLIGHT_STATED + n);
}

/* Writes what stays of the log that was there: the steps up to now. */
static void mpt__flight_go_on(mpt_context *ctx, mpt__flight *flight) {
    for (int64_t i = 0; i < flight->place_count && mpt__ok(ctx); i++) {
        const uint8_t *from = flight->log + flight->places[i].at;
        const int64_t count = (int64_t)mpt__flight_get(from + 6, 2);
        uint8_t *to;
        if (flight->places[i].step > ctx->now.step ||
            !mpt__flight_room(ctx, flight, flight->places[i].step, count, &to))
            break;
        memcpy(to, from, (size_t)(MPT__FLIGHT_STEP + 2 * count));
    }
    mpt__flight_flush(ctx, flight);
    mpt__flight_drop_log(ctx, flight);
}

mpt_status mpt_flight_begin(mpt_context *ctx, const char *path, const mpt_flight_config *config) {
    const mpt_flight_config used = config ? *config : mpt_flight_config_default();
    mpt__reader file;
    if (!mpt__enter(ctx, "mpt_flight_begin")) return mpt__status_of(ctx);
    if (used.block < 1 || used.block > 65536 || (unsigned)used.level > MPT_FLIGHT_OPS)
        return mpt__error(ctx, ARGUMENT, "level %d, block %lld: expected a level and 1 to 65536",
            (int)used.level, used.block);
    mpt__flight *flight = mpt__flight_make(ctx, path);
    if (!flight) return ctx->base.status;
    const mpt_io *io = mpt__io(&ctx->base);
    void *there = io->open ? io->open(io->user, path, 'r') : NULL;
    if (there) {
        if (io->close) io->close(io->user, there);
        if (mpt__reader_open(&file, ctx, path)) {
            mpt__flight_read(ctx, flight, &file);
            mpt__reader_close(&file);
            if (mpt__ok(ctx) && flight->level != used.level)
                mpt__error(ctx, ARGUMENT, "%s: it was recorded at the other level", path);
        }
    }
    flight->level = used.level;
    flight->most = used.block;
    if (mpt__ok(ctx) && mpt__room(ctx, flight->block, flight->capacity, 256)) {
        flight->file = mpt__io(&ctx->base)->open(io->user, path, 'w');
        if (!flight->file)
            mpt__error(ctx, IO, "cannot write %s: %s", path, mpt__io_reason(&ctx->base));
    }
    if (mpt__ok(ctx)) {
        mpt__flight_state_training(ctx, flight);
        mpt__flight_go_on(ctx, flight);
    }
    return mpt__flight_listen(ctx, flight);
}

mpt_status mpt_flight_replay(mpt_context *ctx, const char *path) {
    mpt__reader file;
    if (!mpt__enter(ctx, "mpt_flight_replay")) return mpt__status_of(ctx);
    mpt__flight *flight = mpt__flight_make(ctx, path);
    if (!flight) return ctx->base.status;
    flight->replays = true;
    if (mpt__reader_open(&file, ctx, path)) {
        mpt__flight_read(ctx, flight, &file);
        mpt__reader_close(&file);
    }
    const char *isa = ctx->isa_name;
    if (mpt__ok(ctx) && strcmp(isa, flight->isa) != 0 &&
        !(mpt__flight_portable(isa) && mpt__flight_portable(flight->isa)))
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "%s was recorded at level %s, this is %s: bits differ without a fault; they are the "
            "same everywhere with MPT_ISA_PORTABLE",
            path, flight->isa, isa);
    return mpt__flight_listen(ctx, flight);
}

mpt_status mpt_flight_end(mpt_context *ctx, mpt_flight_report *report) {
    if (report) mpt__zero(*report);
    if (!mpt__enter(ctx, "mpt_flight_end")) return mpt__status_of(ctx);
    const mpt__flight *flight = (const mpt__flight *)ctx->flight;
    if (!flight)
        return mpt__error(ctx, STATE,
            "no flight is under way; mpt_flight_begin or mpt_flight_replay begins one");
    if (ctx->step_depth)
        return mpt__error(ctx, STATE, "step %lld is open; call it between steps", ctx->now.step);
    if (report) *report = flight->report;
    char path[MPT__PATH_SIZE];
    mpt__format_text(path, sizeof path, "%s", flight->path);
    if (!mpt__flight_done(ctx)) mpt__error(ctx, IO, "%s: not all of it could be written", path);
    return ctx->base.status;
}

#endif
