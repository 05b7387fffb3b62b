/* api_checkpoint.c: weights as safetensors: round trips, conversions, names, refused files, files
 * that fail half-way, trainings that go on from a file. */
#if !defined(_WIN32) /* for mkfifo */
#define _POSIX_C_SOURCE 200809L
#endif
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#if !defined(_WIN32)
#include <sys/stat.h>
#endif

/* ---- small helpers ---- */

static mpt_context *make_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    return mpt_create(&config);
}

/* linear(3, 4), relu, linear(4, 2): 0.weight [4, 3], 0.bias [4], 2.weight [2, 4], 2.bias [2]. */
static mpt_module make_net(mpt_context *context, const char *label) {
    mpt_module a = mpt_nn_linear(context, 3, 4), b = mpt_nn_relu(context);
    mpt_module net = mpt_sequential(context, a, b, mpt_nn_linear(context, 4, 2), MPT_END);
    mpt_set_label(net, label);
    return net;
}

enum { NET_NUMEL = 26 };

static void read_net(mpt_module net, float values[NET_NUMEL]) {
    char path[64];
    int64_t at = 0;
    for (int i = 0; i < mpt_parameter_count(net); i++) {
        mpt_tensor parameter = mpt_parameter_at(net, i, path, sizeof path);
        int64_t numel = mpt_numel(parameter);
        if (numel < 0 || at + numel > NET_NUMEL) return;
        mpt_read_f32(parameter, values + at, numel);
        at += numel;
    }
}

static void put_u64(uint8_t out[8], uint64_t value) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> (8 * i));
}

/* A file in memory: header text, then data bytes 0, 1, 2, .. */
static size_t make_file(uint8_t *out, const char *header, size_t data_bytes) {
    size_t n = strlen(header);
    put_u64(out, n);
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) out[8 + n + i] = (uint8_t)i;
    return 8 + n + data_bytes;
}

static size_t read_file(const char *path, uint8_t *out, size_t size) {
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(out, 1, size, file) : 0;
    if (file) fclose(file);
    return n;
}

static bool have_files(mpt_context *context) {
    mpt_load(mpt_nn_linear(context, 1, 1), "no such file", NULL, NULL);
    bool built = strstr(mpt_error(context), "MPTRAIN_NO_FILES") == NULL;
    mpt_clear_error(context);
    return built;
}

#define NEED_FILES(context) \
    if (!have_files(context)) { \
        mpt_destroy(context); \
        SKIP("files"); \
    }

/* Fills the elements of a float parameter from the bits of its dtype. */
static void write_bits(mpt_tensor parameter, uint32_t start) {
    uint8_t bytes[256];
    size_t size = mpt_dtype_size(mpt_get_dtype(parameter));
    size_t n = (size_t)mpt_numel(parameter);
    if (n > sizeof bytes / 4) return; /* an error null counts -1 */
    for (size_t i = 0; i < n; i++) {
        uint32_t word = start + (uint32_t)i;
        uint16_t half = (uint16_t)word;
        memcpy(bytes + i * size, size == 4 ? (const void *)&word : (const void *)&half, size);
    }
    mpt_write(parameter, bytes, n * size);
}

/* ---- round trips ---- */

TEST(file_round_trip) {
    const char *path = test_tmp_path("round.safetensors");
    uint8_t bytes[2048];
    int loaded = -1;
    mpt_context *context = make_context();
    NEED_FILES(context);
    mpt_module a = make_net(context, "a"), b = make_net(context, "b");
    CHECK(mpt_module_hash(a) != mpt_module_hash(b));
    CHECK_EQ_INT(mpt_save(a, path), MPT_OK);
    CHECK_EQ_INT(mpt_load(b, path, NULL, &loaded), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(loaded, 4);
    CHECK(mpt_module_hash(a) == mpt_module_hash(b));

    size_t n = read_file(path, bytes, sizeof bytes - 1);
    REQUIRE(n > 8);
    size_t header = (size_t)bytes[0] | (size_t)bytes[1] << 8;
    CHECK_EQ_INT(header % 8, 0);
    CHECK_EQ_INT(n, 8 + header + NET_NUMEL * 4);
    bytes[8 + header] = 0;
    CHECK_CONTAINS((const char *)bytes + 8,
                   "{\"__metadata__\":{\"format\":\"pt\"},"
                   "\"0.weight\":{\"dtype\":\"F32\",\"shape\":[4,3],\"data_offsets\":[0,48]},"
                   "\"0.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[48,64]},"
                   "\"2.weight\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[64,96]},"
                   "\"2.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[96,104]}}");

    mpt_context *other = make_context();
    mpt_module c = make_net(other, "c");
    n = read_file(path, bytes, sizeof bytes);
    memmove(bytes + 1, bytes, n); /* of any alignment */
    CHECK_EQ_INT(mpt_load_memory(c, bytes + 1, n, NULL, &loaded), MPT_OK);
    CHECK(mpt_module_hash(c) == mpt_module_hash(a));
    mpt_destroy(other);

    /* Over an existing file, and again the same bytes. */
    mpt_context *third = make_context();
    mpt_module d = make_net(third, "d");
    CHECK_EQ_INT(mpt_save(d, path), MPT_OK);
    CHECK_EQ_INT(mpt_load(a, path, NULL, NULL), MPT_OK);
    CHECK(mpt_module_hash(d) == mpt_module_hash(a));
    mpt_destroy(third);
    mpt_destroy(context);
    remove(path);
}

/* Half parameters are saved as they are and convert on the way in. */
TEST(half_round_trip) {
    static const mpt_dtype dtypes[2] = {MPT_F16, MPT_BF16};
    const char *path = test_tmp_path("half.safetensors");
    mpt_context *context = make_context();
    NEED_FILES(context);
    for (int d = 0; d < 2; d++) {
        mpt_module half = make_net(context, "half"), full = make_net(context, "full");
        mpt_module again = make_net(context, "again");
        float want[NET_NUMEL], got[NET_NUMEL];
        char header[1024] = {0};
        CHECK_EQ_INT(mpt_half(half, dtypes[d]), MPT_OK);
        CHECK_EQ_INT(mpt_half(again, dtypes[d]), MPT_OK);
        CHECK_EQ_INT(mpt_save(half, path), MPT_OK);
        read_file(path, (uint8_t *)header, sizeof header - 1);
        CHECK_CONTAINS(header + 8, d == 0 ? "\"dtype\":\"F16\"" : "\"dtype\":\"BF16\"");
        CHECK_EQ_INT(mpt_load(again, path, NULL, NULL), MPT_OK);
        CHECK(mpt_module_hash(again) == mpt_module_hash(half));
        CHECK_EQ_INT(mpt_load(full, path, NULL, NULL), MPT_OK);
        read_net(half, want);
        read_net(full, got);
        CHECK_EQ_BITS(got, want, sizeof want);
        CHECK_EQ_INT(mpt_save(full, path), MPT_OK);
        CHECK_EQ_INT(mpt_load(again, path, NULL, NULL), MPT_OK);
        CHECK(mpt_module_hash(again) == mpt_module_hash(half));
        CHECK_EQ_STR(mpt_error(context), "");
    }
    mpt_destroy(context);
    remove(path);
}

/* NaN payloads, infinities, denormals: same dtype, same bits. */
TEST(bits_survive) {
    const char *path = test_tmp_path("bits.safetensors");
    static const uint32_t starts[] = {0x7f800000u, 0x7fc12345u, 0xff800000u, 0x00000000u,
                                      0x7ffffff0u};
    mpt_context *context = make_context();
    NEED_FILES(context);
    mpt_module a = make_net(context, "a"), b = make_net(context, "b");
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        write_bits(mpt_parameter(a, "0.weight"), starts[i]);
        CHECK_EQ_INT(mpt_save(a, path), MPT_OK);
        CHECK_EQ_INT(mpt_load(b, path, NULL, NULL), MPT_OK);
        CHECK(mpt_module_hash(a) == mpt_module_hash(b));
    }
    mpt_destroy(context);
    remove(path);
}

/* A load is a change: forms and outputs follow. */
TEST(forward_uses_loaded_weights) {
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    uint8_t file[512];
    float x[2] = {1.0f, 2.0f};
    static const float values[3] = {0.5f, 10.0f, 20.0f}; /* bias, weight */
    mpt_tensor input = mpt_from(context, MPT_F32, MPT_SHAPE(1, 2), x);
    size_t n = make_file(file,
                         "{\"bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                         "\"weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[4,12]}}",
                         12);
    for (int i = 0; i < 3; i++) { /* the file is little-endian everywhere */
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        for (int k = 0; k < 4; k++) file[n - 12 + (size_t)(4 * i + k)] = (uint8_t)(bits >> (8 * k));
    }
    mpt_autocast_begin(context, MPT_F16);
    mpt_forward(net, input);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, NULL), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_NEAR(mpt_item(mpt_forward(net, input)), 50.5, 0.0);
    mpt_autocast_end(context);
    mpt_destroy(context);
}

/* ---- names ---- */

static mpt_status no_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                             mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)in, (void)n_in, (void)out, (void)n_out;
    return MPT_OK;
}

TEST(names_with_escapes) {
    const char *path = test_tmp_path("names.safetensors");
    static const char *const names[] = {"quote\"back\\slash", "tab\tnew\nline",
                                        "gr\xc3\xbc\xc3\x9f", "\xf0\x9f\x98\x80"};
    mpt_module_class cls;
    uint8_t file[512];
    mpt_context *context = make_context();
    NEED_FILES(context);
    memset(&cls, 0, sizeof cls);
    cls.name = "named";
    cls.forward = no_forward;
    cls.n_inputs = cls.n_outputs = 1;
    mpt_module nets[2];
    for (int m = 0; m < 2; m++) {
        nets[m] = mpt_module_create(context, &cls, NULL);
        for (int i = 0; i < 4; i++)
            mpt_add_parameter(nets[m], names[i], MPT_SHAPE(2),
                              mpt_init_make(MPT_INIT_CONSTANT, m * 10.0 + i, 0.0));
    }
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_save(nets[0], path), MPT_OK);
    CHECK_EQ_INT(mpt_load(nets[1], path, NULL, NULL), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK(mpt_module_hash(nets[0]) == mpt_module_hash(nets[1]));
    size_t n = make_file(file,
                         "{ \"\\ud83d\\ude00\" :\n{\"shape\":[ 2 ],\t\"data_offsets\":[0 ,8],"
                         "\"dtype\":\"F32\"} }",
                         8);
    mpt_load_config subset = mpt_load_config_default();
    int loaded = 0;
    subset.strict = false;
    CHECK_EQ_INT(mpt_load_memory(nets[1], file, n, &subset, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 1);
    mpt_destroy(context);
    remove(path);
}

/* ---- strict and subset ---- */

#define LINEAR_WEIGHT "\"weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}"
#define LINEAR_BIAS "\"bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}"
#define FOREIGN "\"head\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[12,14]}"

TEST(strict_and_subset) {
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    mpt_load_config subset = mpt_load_config_default();
    uint8_t file[512];
    int loaded = -1;
    subset.strict = false;
    uint64_t before = mpt_module_hash(net);
    size_t n = make_file(file, "{" LINEAR_WEIGHT "}", 8);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, &loaded), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(context), "1 parameters are missing, first bias");
    CHECK_EQ_INT(loaded, 0);
    mpt_clear_error(context);
    CHECK(mpt_module_hash(net) == before);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &subset, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 1);
    CHECK(mpt_module_hash(net) != before);
    before = mpt_module_hash(net);
    n = make_file(file, "{" LINEAR_WEIGHT "," LINEAR_BIAS "," FOREIGN "}", 14);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, &loaded), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(context), "1 tensors have no parameter, first head");
    mpt_clear_error(context);
    CHECK(mpt_module_hash(net) == before);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &subset, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 2);
    n = make_file(file, "{}", 0);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &subset, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 0);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, &loaded), MPT_ERROR_FORMAT);
    mpt_destroy(context);
}

static void keep_lines(void *user, mpt_log_level level, const char *message) {
    char *said = (char *)user;
    const size_t n = strlen(said);
    snprintf(said + n, 1000 - n, "%d %s\n", (int)level, message);
}

/* What a load that is not strict leaves out stands in the log, once. */
TEST(loads_that_take_little) {
    static const char *const all[] = {"*"};
    char said[1000] = "", want[200];
    mpt_config quiet = mpt_config_default();
    quiet.threads = 1, quiet.log.write = keep_lines, quiet.log.user = said;
    mpt_context *context = mpt_create(&quiet);
    mpt_module net = mpt_nn_linear(context, 2, 1);
    mpt_load_config config = mpt_load_config_default();
    uint8_t file[512];
    int loaded = -1;
    config.strict = false;
    size_t n = make_file(file, "{" LINEAR_WEIGHT "," LINEAR_BIAS "}", 12);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, NULL), MPT_OK);
    CHECK_EQ_STR(said, "");
    n = make_file(file, "{" LINEAR_WEIGHT "}", 8);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, NULL), MPT_OK);
    snprintf(want, sizeof want,
             "%d memory: 1 parameters are missing, first bias; 0 tensors have no "
             "parameter\n",
             (int)MPT_LOG_INFO);
    CHECK_EQ_STR(said, want);
    said[0] = 0;
    n = make_file(file,
                  "{\"net.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8);
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 0);
    snprintf(want, sizeof want,
             "%d memory: 2 parameters are missing, first weight; 1 tensors have no "
             "parameter, first net.weight: nothing was loaded",
             (int)MPT_LOG_WARNING);
    CHECK_CONTAINS(said, want);
    CHECK(strchr(said, '\n')[1] == 0);
    said[0] = 0; /* as it was asked for */
    config.ignore = all, config.ignore_count = 1;
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, &loaded), MPT_OK);
    CHECK(strstr(said, "nothing was loaded") == NULL);
    config.ignore_count = 0, config.prefix = "decoder", said[0] = 0;
    CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, &loaded), MPT_OK);
    CHECK_CONTAINS(said, "nothing was loaded; prefix, renames");
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* ---- other names ---- */

/* A part of a net from the file of the whole, and back. */
TEST(a_part_of_a_whole) {
    static const char *const prefixes[] = {"1", "1."}, *const none[] = {"2", "1.0.w", "x", "."};
    static const mpt_rename rule = {"0.*", "*", false, 0, 0};
    mpt_context *context = make_context();
    const char *path = test_tmp_path("whole.safetensors");
    mpt_module part = make_net(context, "part"), other = make_net(context, "other");
    mpt_module inner = make_net(context, "inner"), first = mpt_nn_linear(context, 3, 4);
    mpt_module whole = mpt_sequential(context, mpt_nn_linear(context, 3, 3), inner, MPT_END);
    mpt_load_config config = mpt_load_config_default();
    float want[NET_NUMEL], got[NET_NUMEL];
    int loaded = 0;
    CHECK_EQ_INT(mpt_save(whole, path), MPT_OK);
    read_net(inner, want);
    for (int i = 0; i < 2; i++) {
        config.prefix = prefixes[i];
        CHECK_EQ_INT(mpt_load(i ? other : part, path, &config, &loaded), MPT_OK);
        CHECK_EQ_STR(mpt_error(context), "");
        CHECK_EQ_INT(loaded, 4);
        read_net(i ? other : part, got);
        CHECK_EQ_BITS(got, want, sizeof got);
    }
    config.renames = &rule, config.rename_count = 1; /* of what is left */
    CHECK_EQ_INT(mpt_load(first, path, &config, &loaded), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(context),
                   "0 parameters are missing; 2 tensors have no parameter, first "
                   "1.2.bias, renamed to 2.bias");
    mpt_clear_error(context);
    config.strict = false;
    CHECK_EQ_INT(mpt_load(first, path, &config, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 2);
    config = mpt_load_config_default();
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        config.prefix = none[i];
        CHECK_EQ_INT(mpt_load(part, path, &config, &loaded), MPT_ERROR_FORMAT);
        CHECK_CONTAINS(mpt_error(context), "parameters are missing");
        mpt_clear_error(context);
    }
    remove(path);
    mpt_destroy(context);
}

/* weight [2, 3] and bias [2] of a linear(3, 2) as others save them: bytes 0.. as u8, which convert
   exactly. */
static mpt_status load_named(mpt_module net, const char *header, size_t data,
                             const mpt_load_config *config, int *loaded, float values[8]) {
    uint8_t file[1024];
    size_t n = make_file(file, header, data);
    mpt_status status = mpt_load_memory(net, file, n, config, loaded);
    if (status != MPT_OK) return status;
    mpt_read_f32(mpt_parameter(net, "weight"), values, 6);
    mpt_read_f32(mpt_parameter(net, "bias"), values + 6, 2);
    return status;
}

#define U8(NAME, SHAPE, FROM, TO) \
    "\"" NAME "\":{\"dtype\":\"U8\",\"shape\":[" SHAPE "],\"data_offsets\":[" #FROM "," #TO "]}"

TEST(renamed_and_ignored) {
    static const mpt_rename rules[] = {{"model.*", "*", false, 0, 0},
                                       {"*.attn.c.weight", "*.weight", true, 0, 0},
                                       {"*.attn.c.bias", "*.bias", false, 0, 0},
                                       {"h.*", "*", false, 0, 0}, /* of what came before */
                                       {"7.*", "*", false, 0, 0}};
    static const char *const ignored[] = {"*.mask", "exactly"};
    static const float want[8] = {0, 2, 4, 1, 3, 5, 6, 7};
    const char *header = "{" U8("model.h.7.attn.c.weight", "3,2", 0, 6) "," U8(
        "h.7.attn.c.bias", "2", 6, 8) "," U8("model.h.7.mask", "1,1", 8, 9) "}";
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 3, 2);
    mpt_load_config config = mpt_load_config_default();
    float got[8] = {0};
    int loaded = -1;
    config.renames = rules, config.rename_count = 5;
    config.ignore = ignored, config.ignore_count = 2;
    CHECK_EQ_INT(load_named(net, header, 9, &config, &loaded, got), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(loaded, 2);
    for (int i = 0; i < 8; i++) CHECK_NEAR(got[i], want[i], 0.0);
    config.ignore_count = 0; /* an unexpected name, as the file and as the rules say it */
    CHECK_EQ_INT(load_named(net, header, 9, &config, &loaded, got), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(context), "0 parameters are missing; 1 tensors have no parameter, "
                                       "first model.h.7.mask, renamed to mask");
    mpt_clear_error(context);
    config.strict = false;
    CHECK_EQ_INT(load_named(net, header, 9, &config, &loaded, got), MPT_OK);
    CHECK_EQ_INT(loaded, 2);
    config.strict = true;
    header = "{" U8("model.weight", "2,3", 0, 6) "," U8("weights", "2", 6, 8) "}";
    CHECK_EQ_INT(load_named(net, header, 8, &config, &loaded, got), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(context), "1 parameters are missing, first bias; 1 tensors have no "
                                       "parameter, first weights; of mpt_load_config");
    mpt_destroy(context);
}

TEST(parts_of_a_parameter) {
    static const mpt_rename rules[] = {{"q", "weight", false, 0, 2},
                                       {"k", "weight", false, 1, 2},
                                       {"turned", "weight", true, 1, 2},
                                       {"third", "weight", false, 0, 3}};
    static const float want[8] = {3, 4, 5, 0, 1, 2, 6, 7};
#define K_Q_BIAS(K, Q) "{" K "," Q "," U8("bias", "2", 6, 8) "}"
    static const struct {
        const char *header;
        mpt_status status;
        const char *text;
    } rows[] = {
        {K_Q_BIAS(U8("k", "1,3", 0, 3), U8("q", "1,3", 3, 6)), MPT_OK, ""},
        {K_Q_BIAS(U8("turned", "3,1", 0, 3), U8("q", "1,3", 3, 6)), MPT_OK, ""},
        {K_Q_BIAS(U8("k", "1,3", 0, 3), U8("x", "1,3", 3, 6)), MPT_ERROR_FORMAT,
         "1 parameters are missing, first weight; 1 tensors have no parameter, first x"},
        {K_Q_BIAS(U8("k", "1,3", 0, 3), U8("turned", "3,1", 3, 6)), MPT_ERROR_FORMAT,
         "turned becomes weight, and so does another tensor of the file"},
        {K_Q_BIAS(U8("k", "1,3", 0, 3), U8("weight", "1,3", 3, 6)), MPT_ERROR_FORMAT,
         "weight becomes weight, and so does another tensor of the file"},
        {K_Q_BIAS(U8("k", "3,1", 0, 3), U8("q", "1,3", 3, 6)), MPT_ERROR_SHAPE,
         "k, renamed to weight has shape [3, 1], a part of the parameter [1, 3]"},
        {K_Q_BIAS(U8("turned", "1,3", 0, 3), U8("q", "1,3", 3, 6)), MPT_ERROR_SHAPE,
         "turned, renamed to weight has shape [1, 3], to be transposed, a part"},
        {K_Q_BIAS(U8("turned", "3", 0, 3), U8("q", "1,3", 3, 6)), MPT_ERROR_SHAPE,
         "has shape [3], to be transposed"},
        {K_Q_BIAS(U8("third", "1,3", 0, 3), U8("x", "1,3", 3, 6)), MPT_ERROR_SHAPE,
         "third, renamed to weight has shape [1, 3], a part of the parameter [2, 3]"},
    };
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 3, 2);
    mpt_load_config config = mpt_load_config_default();
    uint64_t before = mpt_module_hash(net);
    config.renames = rules, config.rename_count = 4;
    for (size_t i = sizeof rows / sizeof *rows; i-- > 0;) {
        float got[8] = {0};
        CHECK_EQ_INT(load_named(net, rows[i].header, 8, &config, NULL, got), rows[i].status);
        CHECK_CONTAINS(mpt_error(context), rows[i].text);
        for (int k = 0; k < 8 && rows[i].status == MPT_OK; k++) CHECK_NEAR(got[k], want[k], 0.0);
        mpt_clear_error(context);
        CHECK((mpt_module_hash(net) == before) == (i > 1));
    }
    mpt_destroy(context);
}

/* Three blocks of elements, turned, from fp16 into fp32 and into bf16. */
TEST(transposed_and_converted) {
    enum { ROWS = 37, COLUMNS = 61, NUMEL = ROWS * COLUMNS };
    static const mpt_rename turn = {"*", "*", true, 0, 0};
    static uint8_t file[2 * NUMEL + 256];
    static float got[NUMEL];
    mpt_context *context = make_context();
    mpt_load_config config = mpt_load_config_default();
    const size_t n = make_file(
        file, "{\"weight\":{\"dtype\":\"F16\",\"shape\":[61,37],\"data_offsets\":[0,4514]}}",
        sizeof(uint16_t) * NUMEL);
    config.renames = &turn, config.rename_count = 1;
    for (int i = 0; i < NUMEL; i++) { /* 1 + i % 128 / 128: exact in both */
        file[n - 2 * NUMEL + 2 * (size_t)i] = (uint8_t)(i % 128 * 8);
        file[n - 2 * NUMEL + 2 * (size_t)i + 1] = (uint8_t)(0x3c | i % 128 * 8 >> 8);
    }
    for (int half = 0; half < 2; half++) {
        mpt_module net = mpt_nn_linear_no_bias(context, COLUMNS, ROWS);
        if (half) mpt_half(net, MPT_BF16);
        CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, NULL), MPT_OK);
        mpt_read_f32(mpt_parameter(net, "weight"), got, NUMEL);
        for (int i = 0; i < NUMEL; i++)
            CHECK_NEAR(got[i], 1.0 + (i % COLUMNS * ROWS + i / COLUMNS) % 128 / 128.0, 0.0);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

TEST(names_that_grow_too_long) {
    char to[1020];
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 3, 2);
    mpt_load_config config = mpt_load_config_default();
    uint8_t file[1500];
    memset(to, 'n', sizeof to);
    to[0] = '*', to[1019] = 0;
    const mpt_rename rule = {"*", to, false, 0, 0};
    config.renames = &rule, config.rename_count = 1;
    for (int i = 0; i < 2; i++) { /* 1024 bytes, and one more */
        size_t n = make_file(
            file, i ? "{" U8("1234567", "1", 0, 1) "}" : "{" U8("123456", "1", 0, 1) "}", 1);
        CHECK_EQ_INT(mpt_load_memory(net, file, n, &config, NULL),
                     i ? MPT_ERROR_ARGUMENT : MPT_ERROR_FORMAT);
        CHECK_CONTAINS(mpt_error(context), i ? "the renames make more than 1024 bytes of 1234567"
                                             : "123456, renamed to 123456nn");
        mpt_clear_error(context);
    }
    mpt_destroy(context);
}

/* What does not fit is refused before anything changes, also outside strict mode. */
TEST(shapes_and_dtypes_that_do_not_fit) {
    static const struct {
        const char *header;
        size_t data;
        mpt_status status;
        const char *text;
    } rows[] = {
        {"{" LINEAR_WEIGHT ",\"bias\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[8,12]}}",
         12, MPT_ERROR_SHAPE, "bias has shape [1, 1], the parameter [1]"},
        {"{" LINEAR_WEIGHT ",\"bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
         16, MPT_ERROR_SHAPE, "bias has shape [2], the parameter [1]"},
        {"{" LINEAR_WEIGHT ",\"bias\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
         12, MPT_ERROR_DTYPE, "bias is U32, which does not convert to float32"},
    };
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    uint64_t before = mpt_module_hash(net);
    uint8_t file[512];
    mpt_load_config subset = mpt_load_config_default();
    subset.strict = false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t n = make_file(file, rows[i].header, rows[i].data);
        CHECK_EQ_INT(mpt_load_memory(net, file, n, &subset, NULL), rows[i].status);
        CHECK_CONTAINS(mpt_error(context), rows[i].text);
        mpt_clear_error(context);
        CHECK(mpt_module_hash(net) == before);
    }
    mpt_destroy(context);
}

/* 70000 has no fp16: an error that names it, not an infinity. */
TEST(overflow_is_refused) {
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    uint8_t file[512];
    size_t n = make_file(file, "{" LINEAR_WEIGHT "," LINEAR_BIAS "}", 12);
    uint32_t bits = 0x4788b800u; /* 70000 */
    CHECK_EQ_INT(mpt_half(net, MPT_F16), MPT_OK);
    uint64_t before = mpt_module_hash(net);
    for (int k = 0; k < 4; k++) file[n - 8 + (size_t)k] = (uint8_t)(bits >> (8 * k));
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, NULL), MPT_ERROR_NUMERIC);
    CHECK_CONTAINS(mpt_error(context), "element 1 of weight is 70000");
    mpt_clear_error(context);
    CHECK(mpt_module_hash(net) == before);
    bits = 0x7f800000u; /* an infinity is one on both sides */
    for (int k = 0; k < 4; k++) file[n - 8 + (size_t)k] = (uint8_t)(bits >> (8 * k));
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, NULL), MPT_OK);
    mpt_destroy(context);
}

/* ---- damaged files ---- */

TEST(refused_headers) {
    static const struct {
        const char *header;
        size_t data;
        const char *text;
    } rows[] = {
        {"[]", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"{ ", 0, "a string expected"},
        {"{}x", 0, "text after the closing bracket"},
        {"{}", 1, "do not fill the data (bytes): expected 1, got 0"},
        {"{\"a\"}", 0, "':' expected"},
        {"{\"a\":1}", 0, "an object expected"},
        {"{\"a\":{}}", 0, "a string expected"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "an unknown dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
         "comes twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "none of dtype, shape, data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},}", 4,
         "a string expected"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,5]}}", 5,
         "do not fit its shape (bytes): expected 4, got 5"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 3, "leave the data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,4]}}", 8, "leave the data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}", 8, "a hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
         4, "overlaps"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}",
         8, "name comes twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
         "\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}",
         8, "name comes twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "begins with 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
         "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
         "multiply to too much"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "within a byte"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,4]}}", 4, "two offsets"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ comes twice"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "a string expected"},
        {"{\"a\\x\":{}}", 0, "an unknown escape"},
        {"{\"\\ud800\":{}}", 0, "half of a surrogate pair"},
        {"{\"\\u00g0\":{}}", 0, "hexadecimal"},
        {"{\"\\u0000\":{}}", 0, "NUL"},
        {"{\"\xc0\x80\":{}}", 0, "UTF-8"},
        {"{\"a\n\":{}}", 0, "control character"},
        {"{\"abc", 0, "a string without end"},
    };
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    uint64_t before = mpt_module_hash(net);
    mpt_load_config subset = mpt_load_config_default();
    uint8_t file[512];
    subset.strict = false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t n = make_file(file, rows[i].header, rows[i].data);
        CHECK_EQ_INT(mpt_load_memory(net, file, n, &subset, NULL), MPT_ERROR_FORMAT);
        CHECK_CONTAINS(mpt_error(context), rows[i].text);
        CHECK_CONTAINS(mpt_error(context), "memory, byte ");
        mpt_clear_error(context);
    }
    CHECK(mpt_module_hash(net) == before);
    mpt_destroy(context);
}

/* Header sizes that lie, and every cut of a good file: refused, and no more memory than the file.
   */
TEST(cut_and_lying_files) {
    static const uint64_t sizes[] = {
        0, 1, 200, UINT64_C(1) << 24, UINT64_C(1) << 32, UINT64_MAX, UINT64_C(1) << 63};
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    uint64_t before = mpt_module_hash(net);
    uint8_t file[512];
    size_t n = make_file(file, "{" LINEAR_WEIGHT "," LINEAR_BIAS "}", 12);
    mpt_memory_reset_peak(context);
    int64_t start = mpt_memory(context).total_peak;
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = (uint8_t *)malloc(cut ? cut : 1);
        memcpy(copy, file, cut);
        CHECK(mpt_load_memory(net, copy, cut, NULL, NULL) == MPT_ERROR_FORMAT);
        mpt_clear_error(context);
        free(copy);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        put_u64(file, sizes[i]);
        CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, NULL), MPT_ERROR_FORMAT);
        CHECK_CONTAINS(mpt_error(context), "a header size from 2 to");
        mpt_clear_error(context);
    }
    CHECK(mpt_memory(context).total_peak - start <= 4096);
    CHECK(mpt_module_hash(net) == before);
    CHECK_EQ_INT(mpt_load_memory(net, NULL, 8, NULL, NULL), MPT_ERROR_ARGUMENT);
    mpt_destroy(context);
}

/* Changes every byte of a good file in turn: refused or taken, never anything else. */
TEST(every_byte_changed) {
    mpt_context *context = make_context();
    mpt_module net = mpt_nn_linear(context, 2, 1);
    uint8_t file[512];
    size_t n = make_file(file, "{" LINEAR_WEIGHT "," LINEAR_BIAS "}", 12);
    static const uint8_t masks[] = {1, 2, 0x20, 0x80, 0xff};
    for (size_t at = 0; at < n; at++) {
        for (size_t m = 0; m < sizeof masks; m++) {
            file[at] ^= masks[m];
            mpt_load_memory(net, file, n, NULL, NULL);
            CHECK(mpt_error_code(context) == MPT_OK || at < n - 12);
            mpt_clear_error(context);
            file[at] ^= masks[m];
        }
    }
    CHECK_EQ_INT(mpt_load_memory(net, file, n, NULL, NULL), MPT_OK);
    mpt_destroy(context);
}

/* ---- files that fail ---- */

/* Two files in memory, `target` and whatever is being written; fails at the n-th call. */
typedef struct disk {
    uint8_t target[1024], temporary[1024];
    int64_t target_size, temporary_size, position; /* -1: no such file */
    bool writing;
    int calls, fails, open;
} disk;

static bool disk_fails(disk *d) { return d->calls++ == d->fails; }

static void *disk_open(void *user, const char *path, char mode) {
    disk *d = (disk *)user;
    if (disk_fails(d) || (mode == 'r' && d->target_size < 0)) return NULL;
    if (mode == 'w' && strcmp(path, "net.safetensors") == 0) return NULL; /* never in place */
    d->writing = mode == 'w';
    if (d->writing) d->temporary_size = 0;
    d->position = 0;
    d->open++;
    return d;
}

static size_t disk_read(void *user, void *file, void *buffer, size_t bytes) {
    disk *d = (disk *)user;
    (void)file;
    int64_t left = d->target_size - d->position;
    if ((int64_t)bytes > left) bytes = (size_t)left;
    if (disk_fails(d)) bytes /= 2;
    memcpy(buffer, d->target + d->position, bytes);
    d->position += (int64_t)bytes;
    return bytes;
}

static size_t disk_write(void *user, void *file, const void *buffer, size_t bytes) {
    disk *d = (disk *)user;
    (void)file;
    if (disk_fails(d) || d->temporary_size + (int64_t)bytes > (int64_t)sizeof d->temporary)
        return bytes / 2;
    memcpy(d->temporary + d->temporary_size, buffer, bytes);
    d->temporary_size += (int64_t)bytes;
    return bytes;
}

static bool disk_seek(void *user, void *file, int64_t position) {
    (void)file;
    ((disk *)user)->position = position;
    return !disk_fails((disk *)user);
}

static int64_t disk_size(void *user, void *file) {
    (void)file;
    return disk_fails((disk *)user) ? -1 : ((disk *)user)->target_size;
}

static bool disk_flush(void *user, void *file) {
    (void)file;
    return !disk_fails((disk *)user);
}

static bool disk_close(void *user, void *file) {
    disk *d = (disk *)user;
    (void)file;
    d->open--;
    return !(d->writing && disk_fails(d));
}

static bool disk_commit(void *user, const char *temporary, const char *path) {
    disk *d = (disk *)user;
    (void)temporary;
    if (disk_fails(d) || strcmp(path, "net.safetensors") != 0 || d->temporary_size < 0)
        return false;
    memcpy(d->target, d->temporary, sizeof d->target);
    d->target_size = d->temporary_size;
    d->temporary_size = -1;
    return true;
}

static bool disk_remove(void *user, const char *path) {
    (void)path;
    ((disk *)user)->temporary_size = -1;
    return true;
}

/* `without`: number of the function that is left out; -1: none. */
static mpt_context *disk_context_without(disk *d, int without) {
    mpt_config config = mpt_config_default();
    memset(d, 0, sizeof *d);
    d->target_size = d->temporary_size = -1;
    d->fails = -1;
    config.threads = 1;
    if (without != 0) config.io.open = disk_open;
    if (without != 1) config.io.read = disk_read;
    if (without != 2) config.io.write = disk_write;
    if (without != 3) config.io.seek = disk_seek;
    if (without != 4) config.io.size = disk_size;
    if (without != 5) config.io.flush = disk_flush;
    if (without != 6) config.io.close = disk_close;
    if (without != 7) config.io.commit = disk_commit;
    if (without != 8) config.io.remove = disk_remove;
    config.io.user = d;
    return mpt_create(&config);
}

static mpt_context *disk_context(disk *d) { return disk_context_without(d, -1); }

/* Whatever call fails: the old file stays whole, nothing half-written is left, the error says so.
   */
TEST(save_fails_anywhere) {
    disk d;
    mpt_context *context = disk_context(&d);
    NEED_FILES(context);
    mpt_module a = make_net(context, "a"), b = make_net(context, "b");
    CHECK_EQ_INT(mpt_save(a, "net.safetensors"), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    uint8_t old[1024];
    int64_t old_size = d.target_size;
    memcpy(old, d.target, sizeof old);
    int fails = 0;
    for (;; fails++) {
        d.calls = 0;
        d.fails = fails;
        if (mpt_save(b, "net.safetensors") == MPT_OK) break;
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
        CHECK_CONTAINS(mpt_error(context), "net.safetensors");
        CHECK_EQ_INT(d.open, 0);
        CHECK_EQ_INT(d.temporary_size, -1);
        CHECK_EQ_INT(d.target_size, old_size);
        CHECK_EQ_BITS(d.target, old, sizeof old);
        mpt_clear_error(context);
        REQUIRE(fails < 50);
    }
    CHECK(fails >= 8); /* open, size, header, four tensors, flush, close, commit */
    CHECK(memcmp(d.target, old, sizeof old) != 0);
    mpt_destroy(context);
}

TEST(load_fails_anywhere) {
    disk d;
    mpt_context *context = disk_context(&d);
    NEED_FILES(context);
    mpt_module a = make_net(context, "a"), b = make_net(context, "b");
    CHECK_EQ_INT(mpt_load(b, "net.safetensors", NULL, NULL), MPT_ERROR_IO);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_save(a, "net.safetensors"), MPT_OK);
    uint64_t before = mpt_module_hash(b);
    int fails = 0;
    for (;; fails++) {
        d.calls = 0;
        d.fails = fails;
        if (mpt_load(b, "net.safetensors", NULL, NULL) == MPT_OK) break;
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
        CHECK_CONTAINS(mpt_error(context), "net.safetensors");
        CHECK_EQ_INT(d.open, 0);
        mpt_clear_error(context);
        CHECK(mpt_module_hash(b) == before);
        REQUIRE(fails < 50);
    }
    CHECK(fails >= 4);
    CHECK(mpt_module_hash(b) == mpt_module_hash(a));
    mpt_destroy(context);
}

/* A function of config.io that is missing fails the calls that need it, and only those. */
TEST(io_functions_left_out) {
    static const char needed_to_save[] = "y.y..yyy.", needed_to_load[] = "yy..y....";
    static disk whole, d;
    mpt_context *context = disk_context(&whole);
    NEED_FILES(context);
    CHECK_EQ_INT(mpt_save(make_net(context, "a"), "net.safetensors"), MPT_OK);
    mpt_destroy(context);
    for (int without = 0; without < 9; without++) {
        context = disk_context_without(&d, without);
        memcpy(d.target, whole.target, sizeof d.target);
        d.target_size = whole.target_size;
        mpt_module net = make_net(context, "a");
        mpt_status loads = needed_to_load[without] == 'y' ? MPT_ERROR_IO : MPT_OK;
        mpt_status saves = needed_to_save[without] == 'y' ? MPT_ERROR_IO : MPT_OK;
        CHECK_EQ_INT(mpt_load(net, "net.safetensors", NULL, NULL), loads);
        if (loads) CHECK_CONTAINS(mpt_error(context), "net.safetensors");
        mpt_clear_error(context);
        CHECK_EQ_INT(mpt_save(net, "net.safetensors"), saves);
        if (saves) CHECK_CONTAINS(mpt_error(context), "a callback of config.io failed");
        mpt_destroy(context);
    }
}

/* A pipe or device is not replaced by a file; the temporary one is gone. */
TEST(only_files_are_replaced) {
#if defined(_WIN32)
    SKIP("mkfifo");
#else
    const char *path = test_tmp_path("pipe");
    struct stat there;
    mpt_context *context = make_context();
    NEED_FILES(context);
    remove(path);
    if (mkfifo(path, 0600) != 0) {
        mpt_destroy(context);
        SKIP("mkfifo");
    }
    mpt_module net = make_net(context, "a");
    CHECK_EQ_INT(mpt_save(net, path), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "pipe: is no ordinary file");
    mpt_clear_error(context);
    CHECK(stat(path, &there) == 0 && S_ISFIFO(there.st_mode));
    remove(path);
    CHECK_EQ_INT(mpt_save(net, path), MPT_OK);
    mpt_destroy(context);
    remove(path);
#endif
}

/* ---- a training that goes on ---- */

enum { RUN_SAMPLES = 50, RUN_STEPS = 19, RUN_STOP = 8 };

typedef struct run {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_schedule schedule;
    mpt_loader loader;
} run;

static run run_make(void) {
    float inputs[RUN_SAMPLES * 3];
    int64_t targets[RUN_SAMPLES];
    run r;
    r.context = make_context();
    for (int i = 0; i < RUN_SAMPLES * 3; i++) inputs[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    for (int i = 0; i < RUN_SAMPLES; i++) targets[i] = inputs[3 * i] > inputs[3 * i + 1];
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = RUN_SAMPLES, data.dtype = MPT_F32, data.shape = MPT_SHAPE(3);
    data.inputs = inputs, data.targets = targets;
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 8, config.shuffle = true;
    r.loader = mpt_loader_create(r.context, mpt_memory_dataset(r.context, &data), &config);
    r.net = mpt_sequential(r.context, mpt_nn_linear(r.context, 3, 16), mpt_nn_relu(r.context),
                           mpt_nn_dropout(r.context, 0.2), mpt_nn_linear(r.context, 16, 2),
                           MPT_END);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = 0.1;
    r.optimizer = mpt_sgd(r.net, &sgd);
    r.schedule = mpt_cosine_annealing(r.optimizer, RUN_STEPS, 1e-3, MPT_PER_STEP);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.growth_interval = 5;
    r.scaler = mpt_grad_scaler(r.context, &scaler);
    return r;
}

static void run_steps(run *r, int steps) {
    mpt_batch b;
    while (steps > 0 && !mpt_failed(r->context)) {
        if (!mpt_loader_next(r->loader, &b)) continue; /* the next epoch */
        mpt_step_begin(r->context);
        mpt_autocast_begin(r->context, MPT_F16);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(r->net, b.x), b.y, NULL);
        mpt_autocast_end(r->context);
        mpt_zero_grad(r->optimizer);
        mpt_backward(mpt_scale_loss(r->scaler, loss));
        mpt_scaler_step(r->scaler, r->optimizer);
        mpt_scaler_update(r->scaler);
        mpt_step_end(r->context);
        steps--;
    }
}

/* What the manual says about going on (MANUAL 10), in the middle of an epoch. */
TEST(a_training_goes_on) {
    const char *path = test_tmp_path("run.safetensors");
    run whole = run_make();
    if (!have_files(whole.context)) {
        mpt_destroy(whole.context);
        SKIP("files");
    }
    run_steps(&whole, RUN_STEPS);

    run first = run_make();
    run_steps(&first, RUN_STOP);
    CHECK_EQ_INT(mpt_save(first.net, path), MPT_OK);
    const mpt_scaler_state scaler = mpt_scaler_get_state(first.scaler);
    const mpt_schedule_state schedule = mpt_schedule_get_state(first.schedule);
    const mpt_loader_stats at = mpt_loader_statistics(first.loader);
    const int64_t step = mpt_step_number(first.context);
    CHECK(at.epoch == 1 && at.next == 1);
    mpt_destroy(first.context);

    run second = run_make();
    CHECK_EQ_INT(mpt_load(second.net, path, NULL, NULL), MPT_OK);
    mpt_scaler_set_state(second.scaler, &scaler);
    mpt_schedule_set_state(second.schedule, &schedule);
    mpt_loader_seek(second.loader, at.epoch, at.next);
    while (mpt_step_number(second.context) < step && !mpt_failed(second.context)) {
        mpt_step_begin(second.context);
        mpt_step_end(second.context);
    }
    run_steps(&second, RUN_STEPS - RUN_STOP);
    CHECK_EQ_STR(mpt_error(second.context), "");
    CHECK(mpt_module_hash(second.net) == mpt_module_hash(whole.net));
    CHECK_NEAR(mpt_get_scale(second.scaler), mpt_get_scale(whole.scaler), 0);
    CHECK_NEAR(mpt_get_lr(second.optimizer, 0), mpt_get_lr(whole.optimizer, 0), 0);
    mpt_destroy(second.context);
    mpt_destroy(whole.context);
    remove(path);
}

TEST(misuse) {
    mpt_context *context = make_context();
    mpt_module none;
    memset(&none, 0, sizeof none);
    CHECK_EQ_INT(mpt_save(none, "x"), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_load(none, "x", NULL, NULL), MPT_ERROR_HANDLE);
    none.context = context;
    CHECK_EQ_INT(mpt_load_memory(none, "x", 1, NULL, NULL), MPT_ERROR_HANDLE);
    mpt_clear_error(context);
    NEED_FILES(context);
    mpt_module net = make_net(context, "a");
    CHECK_EQ_INT(mpt_save(net, NULL), MPT_ERROR_ARGUMENT);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_load(net, "", NULL, NULL), MPT_ERROR_ARGUMENT);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_save(net, test_tmp_path("no/such/folder/x")), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "mpt_save");
    mpt_destroy(context);
}

TEST_TABLE = {T(file_round_trip),
              T(half_round_trip),
              T(bits_survive),
              T(forward_uses_loaded_weights),
              T(names_with_escapes),
              T(strict_and_subset),
              T(loads_that_take_little),
              T(a_part_of_a_whole),
              T(renamed_and_ignored),
              T(parts_of_a_parameter),
              T(transposed_and_converted),
              T(names_that_grow_too_long),
              T(shapes_and_dtypes_that_do_not_fit),
              T(overflow_is_refused),
              T(refused_headers),
              T(cut_and_lying_files),
              T(every_byte_changed),
              T(save_fails_anywhere),
              T(load_fails_anywhere),
              T(io_functions_left_out),
              T(only_files_are_replaced),
              T(a_training_goes_on),
              T(misuse)};
TEST_MAIN
