/* misuse_data.h: the cases of test_misuse.c for data, files, inspection and fit. */

/* ==== Data ==== */

static bool no_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                      char *error, size_t error_size) {
    (void)user, (void)seed, (void)target;
    *(float *)input = (float)index;
    if (index == 2) snprintf(error, error_size, "torn page");
    return index != 2;
}

TEST(datasets) {
    mpt_context *c = f.context;
    mpt_dataset mine = f.t.data, parts[3];
    float values[4] = {0, 1, 2, 3}, sample[FEATURES];
    double mean, halves[2] = {0.5, 0.5}, odd[2] = {0.5, 0.6}, below[2] = {-0.5, 1.5};
    int64_t target;
    mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
    mpt_user_dataset_config u;
    m.count = 4, m.shape = MPT_SHAPE(1), m.inputs = values;
    QUIET(mpt_memory_dataset_config_default, mpt_memory_dataset_config_default().copy);
    NOWHERE(mpt_memory_dataset, mpt_memory_dataset(NULL, &m).slot == 0);
    CASE(mpt_memory_dataset, ARGUMENT, "config is NULL", mpt_memory_dataset(c, NULL));
    m.inputs = NULL;
    CASE(mpt_memory_dataset, ARGUMENT, "config->inputs is NULL", mpt_memory_dataset(c, &m));
    m.inputs = values, m.count = 0;
    CASE(mpt_memory_dataset, ARGUMENT, "count is 0", mpt_memory_dataset(c, &m));
    m.count = 4, m.shape = MPT_SHAPE(-1);
    CASE(mpt_memory_dataset, SHAPE, "at least 1", mpt_memory_dataset(c, &m));
    m.shape.rank = 12;
    CASE(mpt_memory_dataset, SHAPE, "rank", mpt_memory_dataset(c, &m));
    m.shape = MPT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1); /* a batch would have one more */
    CASE(mpt_memory_dataset, SHAPE, "input shape of rank 8", mpt_memory_dataset(c, &m));
    m.shape = MPT_SHAPE(1), m.targets = values, m.target_shape.rank = 8;
    CASE(mpt_memory_dataset, SHAPE, "target shape of rank 8", mpt_memory_dataset(c, &m));
    m.targets = NULL;
    m.shape = MPT_SHAPE(1), m.dtype = (mpt_dtype)90;
    CASE(mpt_memory_dataset, DTYPE, "dtype", mpt_memory_dataset(c, &m));
    m.dtype = MPT_F32, m.count = INT64_MAX;
    CASE(mpt_memory_dataset, mpt_error_code(c), "", mpt_memory_dataset(c, &m));
    memset(&u, 0, sizeof u);
    u.count = 4, u.dtype = MPT_F32, u.shape = MPT_SHAPE(1);
    NOWHERE(mpt_user_dataset, mpt_user_dataset(NULL, &u).slot == 0);
    CASE(mpt_user_dataset, ARGUMENT, "config is NULL", mpt_user_dataset(c, NULL));
    CASE(mpt_user_dataset, ARGUMENT, "config->sample is NULL", mpt_user_dataset(c, &u));
    u.sample = no_sample, u.count = -1;
    CASE(mpt_user_dataset, ARGUMENT, "count is -1", mpt_user_dataset(c, &u));
    u.count = 4;
    mpt_dataset torn = mpt_user_dataset(c, &u);
    NOWHERE(mpt_mnist, mpt_mnist(NULL, ".", MPT_TRAIN).slot == 0);
    CASE(mpt_mnist, ARGUMENT, "directory is NULL", mpt_mnist(c, NULL, MPT_TRAIN));
    CASE(mpt_mnist, ARGUMENT, "split 4", mpt_mnist(c, ".", (mpt_split)4));
    CASE(mpt_mnist, MPT_ERROR_IO, "no/such/place", mpt_mnist(c, "no/such/place", MPT_TEST));
    NOWHERE(mpt_idx, mpt_idx(NULL, "a", "b").slot == 0);
    CASE(mpt_idx, ARGUMENT, "inputs_path is NULL", mpt_idx(c, NULL, NULL));
    CASE(mpt_idx, MPT_ERROR_IO, "cannot open no/such/file", mpt_idx(c, "no/such/file", NULL));
    DATASET(mpt_dataset_size, CHECK_EQ_INT(mpt_dataset_size(h_), -1));
    DATASET(mpt_normalize, mpt_normalize(h_, 0, 1));
    CASE(mpt_normalize, ARGUMENT, "deviation 0", mpt_normalize(torn, 0, 0));
    CASE(mpt_normalize, STATE, "before mpt_loader_create", mpt_normalize(mine, 0, 1));
    DATASET(mpt_dataset_statistics, mpt_dataset_statistics(h_, &mean, &mean));
    CASE(mpt_dataset_statistics, MPT_ERROR_IO, "sample 2: torn page",
         mpt_dataset_statistics(torn, &mean, &mean));
    QUIET(mpt_dataset_statistics, mpt_dataset_statistics(mine, NULL, NULL) == MPT_OK);
    DATASET(mpt_subset, CHECK(mpt_subset(h_, 0, 1).slot == 0));
    CASE(mpt_subset, MPT_ERROR_INDEX, "are not in a dataset of 40", mpt_subset(mine, 39, 2));
    CASE(mpt_subset, MPT_ERROR_INDEX, "not empty", mpt_subset(mine, 3, 0));
    CASE(mpt_subset, MPT_ERROR_INDEX, "dataset of 40", mpt_subset(mine, INT64_MAX, INT64_MAX));
    CASE(mpt_subset, MPT_ERROR_INDEX, "dataset of 40", mpt_subset(mine, -1, 2));
    DATASET(mpt_random_split, mpt_random_split(h_, halves, 2, 1, parts));
    CASE(mpt_random_split, ARGUMENT, "sum to 1.1", mpt_random_split(mine, odd, 2, 1, parts));
    CASE(mpt_random_split, ARGUMENT, "fraction 0 is -0.5",
         mpt_random_split(mine, below, 2, 1, parts));
    CASE(mpt_random_split, ARGUMENT, "needs fractions", mpt_random_split(mine, NULL, 2, 1, parts));
    CASE(mpt_random_split, ARGUMENT, "parts", mpt_random_split(mine, halves, 2, 1, NULL));
    CASE(mpt_random_split, ARGUMENT, "n is 0", mpt_random_split(mine, halves, 0, 1, parts));
    DATASET(mpt_sample, mpt_sample(h_, 0, sample, &target));
    CASE(mpt_sample, MPT_ERROR_INDEX, "sample 40 of a dataset of 40",
         mpt_sample(mine, 40, sample, &target));
    CASE(mpt_sample, MPT_ERROR_INDEX, "sample -1", mpt_sample(mine, -1, sample, &target));
    CASE(mpt_sample, MPT_ERROR_IO, "sample 2: torn page", mpt_sample(torn, 2, sample, NULL));
    QUIET(mpt_sample, mpt_sample(mine, 0, NULL, NULL) == MPT_OK);
    CASE(mpt_sample, DTYPE, "0 targets (none [])", mpt_sample(torn, 0, NULL, &target));
    DATASET(mpt_sample_into, mpt_sample_into(h_, 0, sample, sizeof sample, NULL, 0, NULL));
    CASE(mpt_sample_into, MPT_ERROR_INDEX, "sample 40 of a dataset of 40",
         mpt_sample_into(mine, 40, NULL, 0, &target, sizeof target, NULL));
    CASE(mpt_sample_into, ARGUMENT, "room for 4 bytes of input",
         mpt_sample_into(mine, 0, sample, 4, NULL, 0, NULL));
    CASE(mpt_sample_into, ARGUMENT, "7 of targets; they take 32 and 8",
         mpt_sample_into(mine, 0, NULL, 0, &target, 7, NULL));
    CASE(mpt_sample_into, MPT_ERROR_IO, "sample 2: torn page",
         mpt_sample_into(torn, 2, sample, sizeof sample, NULL, 0, NULL));
    DATASET(mpt_dataset_destroy, mpt_dataset_destroy(h_));
}

static bool no_collate(void *user, const mpt_collation *batch, char *error, size_t error_size) {
    (void)user, (void)batch;
    snprintf(error, error_size, "no glue");
    return false;
}

TEST(tables) {
    mpt_context *c = f.context;
    const char *text = "a,b\n1,x\n2,y\n";
    const mpt_column columns[2] = {{"z", MPT_COLUMN_IGNORE}, {"a", (mpt_column_use)9}};
    mpt_table_config t = mpt_table_config_default();
    mpt_dataset table = mpt_csv_memory(c, text, strlen(text), NULL);
    QUIET(mpt_table_config_default, t.delimiter == ',' && t.header);
    NOWHERE(mpt_csv, mpt_csv(NULL, "a", NULL).slot == 0);
    CASE(mpt_csv, ARGUMENT, "path is NULL", mpt_csv(c, NULL, &t));
    CASE(mpt_csv, MPT_ERROR_IO, "cannot open no/such/file", mpt_csv(c, "no/such/file", NULL));
    NOWHERE(mpt_csv_memory, mpt_csv_memory(NULL, text, 4, NULL).slot == 0);
    CASE(mpt_csv_memory, ARGUMENT, "9 bytes of text at NULL", mpt_csv_memory(c, NULL, 9, NULL));
    CASE(mpt_csv_memory, ARGUMENT, "0 bytes of text", mpt_csv_memory(c, text, 0, NULL));
    CASE(mpt_csv_memory, ARGUMENT, "bytes of text", mpt_csv_memory(c, text, SIZE_MAX, NULL));
    t.delimiter = '"';
    CASE(mpt_csv_memory, ARGUMENT, "delimiter is byte 34", mpt_csv_memory(c, text, 12, &t));
    t.delimiter = ',', t.dtype = MPT_F16;
    CASE(mpt_csv_memory, DTYPE, "MPT_F32 or MPT_I64", mpt_csv_memory(c, text, 12, &t));
    t.dtype = MPT_F32, t.column_count = 1;
    CASE(mpt_csv_memory, ARGUMENT, "1 columns at NULL", mpt_csv_memory(c, text, 12, &t));
    t.columns = columns;
    CASE(mpt_csv_memory, ARGUMENT, "no column is named z", mpt_csv_memory(c, text, 12, &t));
    t.columns = columns + 1;
    CASE(mpt_csv_memory, ARGUMENT, "columns[0].use is 9", mpt_csv_memory(c, text, 12, &t));
    t.column_count = 0, t.target = "2";
    CASE(mpt_csv_memory, ARGUMENT, "no column is named 2", mpt_csv_memory(c, text, 12, &t));
    t.target = NULL, t.like = f.t.data;
    CASE(mpt_csv_memory, ARGUMENT, "not a table", mpt_csv_memory(c, text, 12, &t));
    t.like = f.foreign_data;
    CASE(mpt_csv_memory, BAD_HANDLE, "another context", mpt_csv_memory(c, text, 12, &t));
    DATASET(mpt_table_fit, mpt_table_fit(h_, true));
    CASE(mpt_table_fit, ARGUMENT, "not a table of mpt_csv", mpt_table_fit(f.t.data, true));
    t.like = table, t.decimal = ';';
    CASE(mpt_csv_memory, ARGUMENT, "decimal is byte 59", mpt_csv_memory(c, text, 12, &t));
    DATASET(mpt_table_save, mpt_table_save(h_, "t"));
    CASE(mpt_table_save, ARGUMENT, "not a table of mpt_csv", mpt_table_save(f.t.data, "t"));
    CASE(mpt_table_save, ARGUMENT, "path is empty", mpt_table_save(table, NULL));
    CASE(mpt_table_save, MPT_ERROR_IO, "cannot write no/such/file",
         mpt_table_save(table, "no/such/file"));
    NOWHERE(mpt_table_load, mpt_table_load(NULL, "a").slot == 0);
    CASE(mpt_table_load, ARGUMENT, "path is NULL", mpt_table_load(c, NULL));
    CASE(mpt_table_load, MPT_ERROR_IO, "cannot open no/such/file",
         mpt_table_load(c, "no/such/file"));
    NOWHERE(mpt_table_load_memory, mpt_table_load_memory(NULL, text, 4).slot == 0);
    CASE(mpt_table_load_memory, ARGUMENT, "9 bytes of text at NULL",
         mpt_table_load_memory(c, NULL, 9));
    CASE(mpt_table_load_memory, ARGUMENT, "bytes of text",
         mpt_table_load_memory(c, text, SIZE_MAX));
    CASE(mpt_table_load_memory, MPT_ERROR_FORMAT, "no file of mpt_table_save",
         mpt_table_load_memory(c, text, 0));
    DATASET(mpt_column_name, CHECK(mpt_column_name(h_, 0) == NULL));
    CASE(mpt_column_name, ARGUMENT, "not a table", mpt_column_name(f.t.data, 0));
    QUIET(mpt_column_name, mpt_column_name(table, INT64_MIN) == NULL);
    DATASET(mpt_category_name, CHECK(mpt_category_name(h_, 0, 0) == NULL));
    QUIET(mpt_category_name, mpt_category_name(table, 0, -7) == NULL);
    DATASET(mpt_dataset_shape, CHECK_EQ_INT(mpt_dataset_shape(h_).rank, -1));
}

TEST(arrays) {
    mpt_context *c = f.context;
    const char *none = "no/such/file";
    mpt_raw_config r = mpt_raw_config_default();
    NOWHERE(mpt_numpy_tensor, mpt_numpy_tensor(NULL, none, NULL).slot == 0);
    CASE(mpt_numpy_tensor, ARGUMENT, "path is NULL", mpt_numpy_tensor(c, NULL, "x"));
    CASE(mpt_numpy_tensor, MPT_ERROR_IO, "cannot open", mpt_numpy_tensor(c, none, NULL));
    NOWHERE(mpt_npy, mpt_npy(NULL, none, none).slot == 0);
    CASE(mpt_npy, ARGUMENT, "path is NULL", mpt_npy(c, NULL, none));
    CASE(mpt_npy, MPT_ERROR_IO, "cannot open no/such/file", mpt_npy(c, none, NULL));
    NOWHERE(mpt_npz, mpt_npz(NULL, none, "x", "y").slot == 0);
    CASE(mpt_npz, ARGUMENT, "path is NULL", mpt_npz(c, NULL, "x", "y"));
    CASE(mpt_npz, ARGUMENT, "inputs is NULL", mpt_npz(c, none, NULL, "y"));
    QUIET(mpt_raw_config_default, r.dtype == MPT_F32);
    NOWHERE(mpt_raw_files, mpt_raw_files(NULL, &r).slot == 0);
    CASE(mpt_raw_files, ARGUMENT, "config is NULL", mpt_raw_files(c, NULL));
    CASE(mpt_raw_files, ARGUMENT, "config->inputs is NULL", mpt_raw_files(c, &r));
    r.inputs = none;
    CASE(mpt_raw_files, MPT_ERROR_IO, "cannot open no/such/file", mpt_raw_files(c, &r));
    r.count = -1;
    CASE(mpt_raw_files, ARGUMENT, "count is -1", mpt_raw_files(c, &r));
    r.count = 0, r.dtype = MPT_F8E4M3;
    CASE(mpt_raw_files, DTYPE, "input dtype", mpt_raw_files(c, &r));
}

static bool no_apply(void *user, float *image, mpt_shape shape, uint64_t seed, char *error,
                     size_t error_size) {
    (void)user, (void)image, (void)shape, (void)seed;
    snprintf(error, error_size, "no paint");
    return false;
}

TEST(pictures) {
    mpt_context *c = f.context;
    float value[12] = {0};
    mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
    m.count = 1, m.shape = MPT_SHAPE(3, 2, 2), m.inputs = value;
    mpt_dataset picture = mpt_memory_dataset(c, &m);
    mpt_transform step = mpt_transform_default(MPT_RESIZE, 0, 3);
    QUIET(mpt_transform_default, step.antialias);
    QUIET(mpt_transform_default, mpt_transform_default((mpt_transform_kind)99, 0, 0).p > 0);
    DATASET(mpt_class_name, CHECK(mpt_class_name(h_, 0) == NULL));
    QUIET(mpt_class_name, mpt_class_name(picture, 0) == NULL);
    DATASET(mpt_transformed, CHECK(mpt_transformed(h_, &step, 1).slot == 0));
    CASE(mpt_transformed, ARGUMENT, "step 0, MPT_RESIZE needs a height",
         mpt_transformed(picture, &step, 1));
    CASE(mpt_transformed, ARGUMENT, "-1 steps", mpt_transformed(picture, &step, -1));
    CASE(mpt_transformed, ARGUMENT, "17 steps", mpt_transformed(picture, &step, 17));
    CASE(mpt_transformed, ARGUMENT, "1 steps at NULL", mpt_transformed(picture, NULL, 1));
    CASE(mpt_transformed, SHAPE, "this dataset holds float32 [8]",
         mpt_transformed(f.t.data, &step, 1));
    step = mpt_transform_default(MPT_RANDOM_CROP, 3, 3);
    CASE(mpt_transformed, SHAPE, "a crop of 3 x 3 from 2 x 2", mpt_transformed(picture, &step, 1));
    step = mpt_transform_default(MPT_APPLY, 0, 0), step.apply = no_apply;
    mpt_dataset refusing = mpt_transformed(picture, &step, 1);
    CASE(mpt_sample, MPT_ERROR_IO, "no paint", mpt_sample(refusing, 0, value, NULL));
    mpt_image_config i = mpt_image_config_default();
    QUIET(mpt_image_config_default, i.channels == 3);
    NOWHERE(mpt_image_folder, mpt_image_folder(NULL, "a", NULL).slot == 0);
    CASE(mpt_image_folder, ARGUMENT, "folder is NULL", mpt_image_folder(c, NULL, NULL));
    CASE(mpt_image_folder, ARGUMENT, "folder is empty", mpt_image_folder(c, "", &i));
    i.channels = 2;
    CASE(mpt_image_folder, ARGUMENT, "channels is 2", mpt_image_folder(c, "a", &i));
    i.channels = 4, i.max_pixels = 0;
    CASE(mpt_image_folder, ARGUMENT, "max_pixels is 0", mpt_image_folder(c, "a", &i));
    CASE(mpt_image_folder, MPT_ERROR_UNSUPPORTED, "MPTRAIN_STB_IMAGE",
         mpt_image_folder(c, "a", NULL));
    NOWHERE(mpt_cifar10, mpt_cifar10(NULL, ".", MPT_TRAIN).slot == 0);
    CASE(mpt_cifar10, ARGUMENT, "directory is NULL", mpt_cifar10(c, NULL, MPT_TRAIN));
    CASE(mpt_cifar10, ARGUMENT, "split 4", mpt_cifar10(c, ".", (mpt_split)4));
    CASE(mpt_cifar10, MPT_ERROR_IO, "no/such/place", mpt_cifar10(c, "no/such/place", MPT_TEST));
}

#define TOKENIZER(function, statement) \
    OBJECT(function, mpt_tokenizer, f.no_tokenizer, f.stale_tokenizer, statement)

TEST(texts) {
    mpt_context *c = f.context;
    int32_t tokens[4] = {0, 1, 9, 0};
    char text[4], path[512];
    snprintf(path, sizeof path, "%s", test_tmp_path("letters"));
    FILE *file = fopen(path, "wb");
    REQUIRE(file);
    fputs("abab", file);
    fclose(file);
    mpt_tokenizer t = mpt_char_tokenizer(c, path);
    NOWHERE(mpt_char_tokenizer, mpt_char_tokenizer(NULL, path).slot == 0);
    CASE(mpt_char_tokenizer, ARGUMENT, "path is NULL", mpt_char_tokenizer(c, NULL));
    CASE(mpt_char_tokenizer, MPT_ERROR_IO, "cannot open no/such/file",
         mpt_char_tokenizer(c, "no/such/file"));
    NOWHERE(mpt_bpe_tokenizer, mpt_bpe_tokenizer(NULL, path, path).slot == 0);
    CASE(mpt_bpe_tokenizer, ARGUMENT, "vocabulary_path is NULL", mpt_bpe_tokenizer(c, NULL, path));
    CASE(mpt_bpe_tokenizer, ARGUMENT, "merges_path is NULL", mpt_bpe_tokenizer(c, path, NULL));
    CASE(mpt_bpe_tokenizer, MPT_ERROR_FORMAT, "byte 0: an object expected",
         mpt_bpe_tokenizer(c, path, path));
    TOKENIZER(mpt_vocabulary_size, CHECK_EQ_INT(mpt_vocabulary_size(h_), -1));
    TOKENIZER(mpt_token_of, CHECK_EQ_INT(mpt_token_of(h_, "a", 1), -1));
    CASE(mpt_token_of, ARGUMENT, "text is NULL", mpt_token_of(t, NULL, 0));
    TOKENIZER(mpt_encode, CHECK_EQ_INT(mpt_encode(h_, "a", 1, tokens, 4), -1));
    CASE(mpt_encode, ARGUMENT, "4 bytes of text at NULL", mpt_encode(t, NULL, 4, tokens, 4));
    CASE(mpt_encode, ARGUMENT, "room for 4 tokens at NULL", mpt_encode(t, "ab", 2, NULL, 4));
    CASE(mpt_encode, ARGUMENT, "room for -1 tokens", mpt_encode(t, "ab", 2, tokens, -1));
    CASE(mpt_encode, ARGUMENT, "byte 1 begins no character", mpt_encode(t, "a?", 2, tokens, 4));
    TOKENIZER(mpt_decode, CHECK_EQ_INT(mpt_decode(h_, tokens, 1, text, 4), -1));
    CASE(mpt_decode, ARGUMENT, "2 tokens at NULL", mpt_decode(t, NULL, 2, text, 4));
    CASE(mpt_decode, ARGUMENT, "room for 4 bytes at NULL", mpt_decode(t, tokens, 2, NULL, 4));
    CASE(mpt_decode, ARGUMENT, "-2 tokens", mpt_decode(t, tokens, -2, text, 4));
    CASE(mpt_decode, MPT_ERROR_INDEX, "token 2 is 9", mpt_decode(t, tokens, 3, text, 4));
    mpt_window_config w = mpt_window_config_default();
    QUIET(mpt_window_config_default, w.block == 128);
    w.block = 2;
    NOWHERE(mpt_token_memory, mpt_token_memory(NULL, tokens, 4, &w).slot == 0);
    CASE(mpt_token_memory, ARGUMENT, "4 tokens at NULL", mpt_token_memory(c, NULL, 4, &w));
    CASE(mpt_token_memory, ARGUMENT, "0 tokens", mpt_token_memory(c, tokens, 0, &w));
    CASE(mpt_token_memory, ARGUMENT, "need 129", mpt_token_memory(c, tokens, 4, NULL));
    NOWHERE(mpt_token_file, mpt_token_file(NULL, path, 2, &w).slot == 0);
    CASE(mpt_token_file, ARGUMENT, "path is NULL", mpt_token_file(c, NULL, 2, &w));
    CASE(mpt_token_file, ARGUMENT, "bytes_per_token is 3", mpt_token_file(c, path, 3, &w));
    CASE(mpt_token_file, ARGUMENT, "2 tokens; windows of 2", mpt_token_file(c, path, 2, &w));
    CASE(mpt_token_file, MPT_ERROR_IO, "cannot open", mpt_token_file(c, "no/such/file", 2, &w));
    w.block = 0;
    CASE(mpt_token_file, ARGUMENT, "block 0", mpt_token_file(c, path, 1, &w));
    TOKENIZER(mpt_text_file, CHECK(mpt_text_file(h_, path, &w).slot == 0));
    CASE(mpt_text_file, ARGUMENT, "path is NULL", mpt_text_file(t, NULL, NULL));
    CASE(mpt_text_file, ARGUMENT, "4 tokens; windows of 128", mpt_text_file(t, path, NULL));
    TOKENIZER(mpt_tokenizer_destroy, mpt_tokenizer_destroy(h_));
    remove(path);
}

#define LOADER_SETTING(field, value, status, text) \
    do { \
        mpt_loader_config c_ = mpt_loader_config_default(); \
        c_.workers = 1, c_.batch = 4; \
        c_.field = value; \
        CASE(mpt_loader_create, status, text, \
             CHECK(mpt_loader_create(f.context, f.t.data, &c_).slot == 0)); \
    } while (0)

TEST(loaders) {
    mpt_batch b;
    QUIET(mpt_loader_config_default, mpt_loader_config_default().batch == 64);
    NOWHERE(mpt_loader_create, mpt_loader_create(NULL, f.t.data, NULL).slot == 0);
    DATASET(mpt_loader_create, CHECK(mpt_loader_create(h_.context, h_, NULL).slot == 0));
    CASE(mpt_loader_create, BAD_HANDLE, "another context",
         mpt_loader_create(f.context, f.foreign_data, NULL));
    LOADER_SETTING(batch, 0, ARGUMENT, "batch is 0; at least 1");
    LOADER_SETTING(batch, -3, ARGUMENT, "batch is -3");
    LOADER_SETTING(workers, -1, ARGUMENT, "workers is -1");
    LOADER_SETTING(workers, 65, ARGUMENT, "workers is 65");
    LOADER_SETTING(prefetch, 0, ARGUMENT, "prefetch is 0");
    LOADER_SETTING(dtype, MPT_I64, DTYPE, "MPT_F32, MPT_F16 or MPT_BF16");
    mpt_loader_config last = mpt_loader_config_default();
    last.drop_last = true;
    CASE(mpt_loader_create, ARGUMENT, "drop_last leaves nothing: batch 64 of 40",
         mpt_loader_create(f.context, f.t.data, &last));
    LOADER(mpt_loader_next, CHECK(!mpt_loader_next(h_, &b)));
    CASE(mpt_loader_next, ARGUMENT, "batch is NULL", mpt_loader_next(f.t.loader, NULL));
    LOADER(mpt_loader_batches, CHECK_EQ_INT(mpt_loader_batches(h_), -1));
    LOADER(mpt_loader_reset, mpt_loader_reset(h_));
    double weights[SAMPLES] = {0};
    LOADER_SETTING(weights, weights, ARGUMENT, "the weights sum to 0");
    weights[3] = -1;
    LOADER_SETTING(weights, weights, ARGUMENT, "weight 3 is -1");
    LOADER_SETTING(samples, 5, ARGUMENT, "samples is 5; it counts those that weights draw");
    LOADER_SETTING(world, 0, ARGUMENT, "rank 0 of world 0");
    LOADER_SETTING(rank, 1, ARGUMENT, "rank 1 of world 1; ranks are 0 to world - 1");
    LOADER_SETTING(rank, -1, ARGUMENT, "rank -1");
    LOADER_SETTING(target_dtype, MPT_F32, DTYPE, "target_dtype float32 without collate");
    LOADER_SETTING(target_dtype, MPT_U8; c_.collate = no_collate, DTYPE, "collate makes i64, f32");
    LOADER(mpt_loader_seek, mpt_loader_seek(h_, 0, 0));
    CASE(mpt_loader_seek, MPT_ERROR_INDEX, "batch 1000 of epoch 0",
         mpt_loader_seek(f.t.loader, 0, 1000));
    CASE(mpt_loader_seek, MPT_ERROR_INDEX, "batch 0 of epoch -1",
         mpt_loader_seek(f.t.loader, -1, 0));
    LOADER(mpt_loader_statistics, CHECK_EQ_INT(mpt_loader_statistics(h_).batches, 0));
    LOADER(mpt_loader_destroy, mpt_loader_destroy(h_));
}

#define LOAD_RULE(FROM, TO, PART, PARTS, TEXT) \
    do { \
        const mpt_rename rules_[2] = {{"a", "b", false, 0, 0}, {FROM, TO, false, PART, PARTS}}; \
        mpt_load_config named_ = mpt_load_config_default(); \
        named_.renames = rules_, named_.rename_count = 2; \
        CASE(mpt_load, ARGUMENT, TEXT, mpt_load(f.net, "unused", &named_, NULL)); \
    } while (0)

TEST(files) {
    mpt_load_config l = mpt_load_config_default();
    int loaded;
    QUIET(mpt_load_config_default, l.strict);
    uint8_t block[64] = {0};
    NOWHERE(mpt_checkpoint_save, mpt_checkpoint_save(NULL, "unused"));
    CASE(mpt_checkpoint_save, ARGUMENT, "path is empty", mpt_checkpoint_save(f.context, NULL));
    CASE(mpt_checkpoint_save, MPT_ERROR_IO, "no/such/place/file",
         mpt_checkpoint_save(f.context, "no/such/place/file"));
    NOWHERE(mpt_checkpoint_load, mpt_checkpoint_load(NULL, "unused"));
    CASE(mpt_checkpoint_load, ARGUMENT, "path is empty", mpt_checkpoint_load(f.context, ""));
    CASE(mpt_checkpoint_load, MPT_ERROR_IO, "no/such/file",
         mpt_checkpoint_load(f.context, "no/such/file"));
    mpt_checkpoint_config every = mpt_checkpoint_config_default();
    QUIET(mpt_checkpoint_config_default, every.resume);
    NOWHERE(mpt_checkpoint_open, mpt_checkpoint_open(NULL, "unused", NULL));
    CASE(mpt_checkpoint_open, ARGUMENT, "path is empty",
         mpt_checkpoint_open(f.context, NULL, NULL));
    every.keep = 0;
    CASE(mpt_checkpoint_open, ARGUMENT, "keep is 0",
         mpt_checkpoint_open(f.context, "unused", &every));
    every.keep = 1, every.every = -3;
    CASE(mpt_checkpoint_open, ARGUMENT, "every is -3",
         mpt_checkpoint_open(f.context, "unused", &every));
    CASE(mpt_checkpoint_open, MPT_ERROR_IO, "no/such/place/folder",
         mpt_checkpoint_open(f.context, "no/such/place/folder", NULL));
    NOWHERE(mpt_checkpoint_step, mpt_checkpoint_step(NULL));
    CASE(mpt_checkpoint_step, STATE, "no folder is open", mpt_checkpoint_step(f.context));
    NOWHERE(mpt_checkpoint_best, mpt_checkpoint_best(NULL, 1));
    CASE(mpt_checkpoint_best, STATE, "no folder is open", mpt_checkpoint_best(f.context, 1));
    NOWHERE(mpt_checkpoint_close, mpt_checkpoint_close(NULL));
    CASE(mpt_checkpoint_close, STATE, "no folder is open", mpt_checkpoint_close(f.context));
    NOWHERE(mpt_checkpoint_statistics, mpt_checkpoint_statistics(NULL).files == 0);
    CASE(mpt_checkpoint_statistics, STATE, "no folder is open",
         mpt_checkpoint_statistics(f.context));
    QUIET(mpt_request_stop, (mpt_request_stop(NULL, true), true));
    QUIET(mpt_stop_requested, !mpt_stop_requested(NULL));
    NOWHERE(mpt_snapshot, mpt_snapshot(NULL, block, sizeof block));
    CASE(mpt_snapshot, ARGUMENT, "block is NULL", mpt_snapshot(f.context, NULL, 64));
    CASE(mpt_snapshot, ARGUMENT, "the block has 64 bytes, a snapshot",
         mpt_snapshot(f.context, block, sizeof block));
    NOWHERE(mpt_restore, mpt_restore(NULL, block, sizeof block));
    CASE(mpt_restore, ARGUMENT, "64 bytes at NULL", mpt_restore(f.context, NULL, 64));
    CASE(mpt_restore, MPT_ERROR_FORMAT, "no snapshot of this training",
         mpt_restore(f.context, block, sizeof block));
    NOWHERE(mpt_snapshot_bytes, mpt_snapshot_bytes(NULL) == -1);
    NOWHERE(mpt_state_hash, mpt_state_hash(NULL) == 0);
    NOWHERE(mpt_checkpoint_difference, mpt_checkpoint_difference(NULL, "unused", NULL, 0) == 0);
    CASE(mpt_checkpoint_difference, ARGUMENT, "path is empty",
         mpt_checkpoint_difference(f.context, NULL, NULL, 0));
    CASE(mpt_checkpoint_difference, MPT_ERROR_IO, "no/such/file",
         mpt_checkpoint_difference(f.context, "no/such/file", NULL, 0));
    NOWHERE(mpt_snapshot_difference,
            mpt_snapshot_difference(NULL, block, sizeof block, NULL, 0) == 0);
    CASE(mpt_snapshot_difference, ARGUMENT, "block is NULL",
         mpt_snapshot_difference(f.context, NULL, 64, NULL, 0));
    MODULE(mpt_save, mpt_save(h_, "unused"));
    CASE(mpt_save, ARGUMENT, "path is empty", mpt_save(f.net, NULL));
    CASE(mpt_save, ARGUMENT, "path is empty", mpt_save(f.net, ""));
    CASE(mpt_save, MPT_ERROR_IO, "no/such/place/file", mpt_save(f.net, "no/such/place/file"));
#ifdef MPTRAIN_NO_FRUGAL
    CASE(mpt_lora_save, MPT_ERROR_UNSUPPORTED, "built without adapters",
         mpt_lora_save(f.net, "unused"));
#else
    MODULE(mpt_lora_save, mpt_lora_save(h_, "unused"));
    CASE(mpt_lora_save, ARGUMENT, "path is empty", mpt_lora_save(f.net, NULL));
    CASE(mpt_lora_save, STATE, "the module has no adapters", mpt_lora_save(f.net, "unused"));
#endif
    MODULE(mpt_load, mpt_load(h_, "unused", NULL, NULL));
    CASE(mpt_load, ARGUMENT, "path is empty", mpt_load(f.net, NULL, &l, &loaded));
    LOAD_RULE("", "x", 0, 0,
              "renames[1]: expected names with one '*' at most, in `to` only if in `from`");
    LOAD_RULE(NULL, "x", 0, 0, "renames[1]: expected names with one");
    LOAD_RULE("x", NULL, 0, 0, "renames[1]: expected names with one");
    LOAD_RULE("*.*", "x", 0, 0, "renames[1]: expected names with one '*' at most");
    LOAD_RULE("x", "*", 0, 0, "renames[1]: expected names with one '*' at most, in `to` only if");
    LOAD_RULE("x", "y", 1, 1,
              "renames[1]: expected names with one '*' at most, in `to` only if in `from`, and "
              "part 0 of 0 or a part of 1 to 16");
    LOAD_RULE("x", "y", 1, 0, "renames[1]: expected names");
    LOAD_RULE("x", "y", -1, 3, "renames[1]: expected names");
    LOAD_RULE("x", "y", 0, -1, "renames[1]: expected names");
    LOAD_RULE("x", "y", 0, 17, "renames[1]: expected names");
    const char *const patterns[] = {"*.bias", "*x*", NULL};
    for (int i = 0; i < 2; i++) {
        l.ignore = patterns + i, l.ignore_count = 2;
        CASE(mpt_load, ARGUMENT, "]: expected a name with one '*' at most",
             mpt_load(f.net, "unused", &l, NULL));
    }
    l.ignore = NULL;
    CASE(mpt_load_memory, ARGUMENT, "expected counts of 0, or tables",
         mpt_load_memory(f.net, "0123456789", 10, &l, NULL));
    l.ignore_count = 0, l.rename_count = -1;
    CASE(mpt_load, ARGUMENT, "expected counts of 0, or tables",
         mpt_load(f.net, "unused", &l, NULL));
    l = mpt_load_config_default();
    CASE(mpt_load, MPT_ERROR_IO, "cannot open no/such/file",
         mpt_load(f.net, "no/such/file", NULL, NULL));
    MODULE(mpt_load_memory, mpt_load_memory(h_, "0123456789", 10, NULL, NULL));
    CASE(mpt_load_memory, ARGUMENT, "NULL", mpt_load_memory(f.net, NULL, 10, NULL, NULL));
    CASE(mpt_load_memory, MPT_ERROR_FORMAT, "at least 10 expected",
         mpt_load_memory(f.net, "123", 3, &l, NULL));
    CASE(mpt_load_memory, MPT_ERROR_FORMAT, "header size",
         mpt_load_memory(f.net, "0123456789abcdef", 16, &l, &loaded));
}

/* ==== Inspection, fit ==== */

static void hear(void *user, const char *line) { (void)user, (void)line; }

/* A null handle, as from a function that forgot to return one. */
static mpt_tensor check_nothing(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    mpt_tensor none;
    (void)user, (void)in, (void)n_in;
    none.context = c, none.slot = 0, none.generation = 0;
    return none;
}

TEST(inspection) {
    mpt_context *c = f.context;
    char name[64];
    memset(name, 'n', sizeof name);
    name[63] = 0;
    HANDLE(mpt_metric_push, "null handle", mpt_metric_push(t_.context, "loss", t_));
    CASE(mpt_metric_push, ARGUMENT, "name is NULL", mpt_metric_push(c, NULL, f.scalar));
    CASE(mpt_metric_push, SHAPE, "one float element, got float32 [4, 8]",
         mpt_metric_push(c, "loss", f.x));
    CASE(mpt_metric_push, SHAPE, "one float element", mpt_metric_push(c, "loss", f.longs));
    CASE(mpt_metric_push, ARGUMENT, "at most 47 characters", mpt_metric_push(c, name, f.scalar));
    CASE(
        mpt_metric_push, ARGUMENT, "at most 16 metrics", for (int i = 0; i < 20; i++) {
            snprintf(name, sizeof name, "metric %d", i);
            mpt_metric_push(c, name, f.scalar);
        });
    double mean = 0, nothing = mpt_metric_mean(c, "nothing", true);
    NOWHERE(mpt_metric_mean, (mean = mpt_metric_mean(NULL, "loss", true), mean != mean));
    CHECK(nothing != nothing);
    mean = mpt_metric_mean(c, NULL, false);
    QUIET(mpt_metric_mean, mean != mean);
    NOWHERE(mpt_metric_reset, mpt_metric_reset(NULL, "loss") == MPT_ERROR_HANDLE);
    CASE(mpt_metric_reset, ARGUMENT, "name is NULL", mpt_metric_reset(c, NULL));
    QUIET(mpt_metric_reset, mpt_metric_reset(c, "nothing") == MPT_OK);
    QUIET(mpt_get_counters, mpt_get_counters(NULL).calls == 0);
    mpt_profile_config profile = mpt_profile_config_default();
    QUIET(mpt_profile_config_default, profile.spans == 0 && profile.copy == 0);
    NOWHERE(mpt_profile_end, mpt_profile_end(NULL) == MPT_ERROR_HANDLE);
    QUIET(mpt_profile_end, mpt_profile_end(c) == MPT_OK);
    CASE(mpt_profile_rows, STATE, "there is no profile",
         mpt_profile_rows(c, MPT_PROFILE_OP, NULL, 0));
    CASE(mpt_get_profile_total, STATE, "there is no profile", mpt_get_profile_total(c));
    CASE(mpt_profile_text, STATE, "there is no profile", mpt_profile_text(c, NULL, 0));
    CASE(mpt_profile_spans, STATE, "there is no profile", mpt_profile_spans(c, NULL, NULL));
    NOWHERE(mpt_profile_rows, mpt_profile_rows(NULL, MPT_PROFILE_OP, NULL, 0) == -1);
    NOWHERE(mpt_get_profile_total, mpt_get_profile_total(NULL).steps == 0);
    NOWHERE(mpt_profile_text, mpt_profile_text(NULL, NULL, 0) == 0);
    NOWHERE(mpt_profile_spans, mpt_profile_spans(NULL, NULL, NULL) == -1);
    NOWHERE(mpt_profile_begin, mpt_profile_begin(NULL, NULL) == MPT_ERROR_HANDLE);
    profile.spans = -1;
    CASE(mpt_profile_begin, ARGUMENT, "spans = -1", mpt_profile_begin(c, &profile));
    profile.spans = INT64_MAX;
    CASE(mpt_profile_begin, MPT_ERROR_MEMORY, "out of memory", mpt_profile_begin(c, &profile));
    profile.spans = 0, profile.product[1] = -1;
    CASE(mpt_profile_begin, ARGUMENT, "product = -1", mpt_profile_begin(c, &profile));
    profile.product[1] = 0, profile.copy = (double)INFINITY;
    CASE(mpt_profile_begin, ARGUMENT, "copy = inf", mpt_profile_begin(c, &profile));
    QUIET(mpt_profile_begin, mpt_profile_begin(c, NULL) == MPT_OK);
    CASE(mpt_profile_rows, ARGUMENT, "by = 3", mpt_profile_rows(c, (mpt_profile_by)3, NULL, 0));
    CASE(mpt_profile_rows, ARGUMENT, "at NULL", mpt_profile_rows(c, MPT_PROFILE_OP, NULL, 1));
    CASE(mpt_profile_spans, ARGUMENT, "each is NULL", mpt_profile_spans(c, NULL, NULL));
    QUIET(mpt_profile_end, mpt_profile_end(c) == MPT_OK && mpt_profile_end(c) == MPT_OK);
    NOWHERE(mpt_print_launches, mpt_print_launches(NULL, hear, NULL) == MPT_ERROR_HANDLE);
    QUIET(mpt_print_launches, mpt_print_launches(c, NULL, NULL) == MPT_OK);
    NOWHERE(mpt_trace_nan, mpt_trace_nan(NULL, true) == MPT_ERROR_HANDLE);
    QUIET(mpt_trace_nan, mpt_trace_nan(c, false) == MPT_OK);
    NOWHERE(mpt_anomaly_mode, mpt_anomaly_mode(NULL, true) == MPT_ERROR_HANDLE);
    QUIET(mpt_anomaly_mode, mpt_anomaly_mode(c, false) == MPT_OK);
    QUIET(mpt_anomaly, mpt_anomaly(NULL) == MPT_ANOMALY_NONE && mpt_anomaly(c) == MPT_ANOMALY_NONE);
    QUIET(mpt_anomaly_text, *mpt_anomaly_text(NULL) == 0 && *mpt_anomaly_text(c) == 0);
    mpt_flight_config flight = mpt_flight_config_default();
    mpt_flight_report flown;
    QUIET(mpt_flight_config_default, flight.level == MPT_FLIGHT_OPS && flight.block == 256);
    NOWHERE(mpt_flight_begin, mpt_flight_begin(NULL, "log", NULL) == MPT_ERROR_HANDLE);
    NOWHERE(mpt_flight_replay, mpt_flight_replay(NULL, "log") == MPT_ERROR_HANDLE);
    NOWHERE(mpt_flight_end, mpt_flight_end(NULL, &flown) == MPT_ERROR_HANDLE);
    CASE(mpt_flight_begin, ARGUMENT, "path is empty", mpt_flight_begin(c, NULL, NULL));
    CASE(mpt_flight_replay, ARGUMENT, "path is empty", mpt_flight_replay(c, ""));
    CASE(mpt_flight_end, STATE, "no flight is under way", mpt_flight_end(c, &flown));
    CASE(mpt_flight_begin, STATE, "is open; call it between steps", mpt_step_begin(c);
         mpt_flight_begin(c, "log", NULL));
    flight.block = 0;
    CASE(mpt_flight_begin, ARGUMENT, "expected a level and 1 to 65536",
         mpt_flight_begin(c, "log", &flight));
    mpt_gradcheck_config g = mpt_gradcheck_config_default();
    QUIET(mpt_gradcheck_config_default, g.step == 1e-2);
    NOWHERE(mpt_gradcheck, mpt_gradcheck(NULL, check_nothing, NULL, &f.x, 1, NULL) != MPT_OK);
    CASE(mpt_gradcheck, ARGUMENT, "1..8 inputs (got 9)",
         mpt_gradcheck(c, check_nothing, NULL, &f.x, 9, NULL));
    CASE(mpt_gradcheck, ARGUMENT, "expected a function",
         mpt_gradcheck(c, NULL, NULL, &f.x, 1, NULL));
    CASE(mpt_gradcheck, ARGUMENT, "inputs (got 0)",
         mpt_gradcheck(c, check_nothing, NULL, NULL, 1, NULL));
    CASE(mpt_gradcheck, BAD_HANDLE, "null handle",
         mpt_gradcheck(c, check_nothing, NULL, &f.none, 1, NULL));
    CASE(mpt_gradcheck, BAD_HANDLE, "null handle",
         mpt_gradcheck(c, check_nothing, NULL, &f.x, 1, NULL));
    g.step = 0;
    CASE(mpt_gradcheck, ARGUMENT, "a step > 0 (got 0)",
         mpt_gradcheck(c, check_nothing, NULL, &f.x, 1, &g));
    NOWHERE(mpt_determinism, mpt_determinism(NULL, NULL, 0) == 0);
    QUIET(mpt_determinism, mpt_determinism(c, NULL, 0) > 80);
    QUIET(mpt_nan_report, *mpt_nan_report(NULL) == 0 && *mpt_nan_report(c) == 0);
    NOWHERE(mpt_record_begin, mpt_record_begin(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_record_begin, STATE, "a recording is under way", mpt_record_begin(c);
         mpt_record_begin(c));
    CASE(mpt_record_end, STATE, "no recording is under way",
         mpt_record_end(c)); /* cleared: it ended */
    NOWHERE(mpt_record_end, mpt_record_end(NULL).slot == 0);
    OBJECT(mpt_replay, mpt_recording, f.no_recording, f.stale_recording, mpt_replay(h_));
    OBJECT(mpt_recording_launches, mpt_recording, f.no_recording, f.stale_recording,
           CHECK_EQ_INT(mpt_recording_launches(h_), -1));
    OBJECT(mpt_recording_destroy, mpt_recording, f.no_recording, f.stale_recording,
           mpt_recording_destroy(h_));
}

TEST(captured_steps) {
    mpt_context *c = f.context;
    mpt_captured captured = mpt_capture(c, nothing_step, NULL);
    NOWHERE(mpt_capture, mpt_capture(NULL, nothing_step, NULL).slot == 0);
    CASE(mpt_capture, ARGUMENT, "no step function", mpt_capture(c, NULL, NULL));
    OBJECT(mpt_captured_step, mpt_captured, f.no_captured, f.stale_captured,
           mpt_captured_step(h_, f.x, f.x));
    CASE(mpt_captured_step, BAD_HANDLE, "x: tensor made in step",
         mpt_captured_step(captured, f.stale, f.x));
    CASE(mpt_captured_step, BAD_HANDLE, "y belongs to another context",
         mpt_captured_step(captured, f.x, f.foreign));
    CASE(mpt_captured_step, STATE, "a step is under way", mpt_step_begin(c);
         mpt_captured_step(captured, f.x, f.x));
    CASE(mpt_captured_step, STATE, "a recording is under way", mpt_record_begin(c);
         mpt_captured_step(captured, f.x, f.x));
    bool done;
    OBJECT(mpt_step_slice, mpt_captured, f.no_captured, f.stale_captured,
           mpt_step_slice(h_, f.x, f.x, 0, &done));
    CASE(mpt_step_slice, BAD_HANDLE, "x: tensor made in step",
         mpt_step_slice(captured, f.stale, f.x, 0, &done));
    CASE(mpt_step_slice, ARGUMENT, "seconds = -1: expected 0 or more",
         mpt_step_slice(captured, f.x, f.x, -1, &done));
    CASE(mpt_step_slice, STATE, "a step is under way", mpt_step_begin(c);
         mpt_step_slice(captured, f.x, f.x, 0, NULL));
    OBJECT(mpt_captured_count, mpt_captured, f.no_captured, f.stale_captured,
           CHECK_EQ_INT(mpt_captured_count(h_), -1));
    OBJECT(mpt_captured_destroy, mpt_captured, f.no_captured, f.stale_captured,
           mpt_captured_destroy(h_));
    mpt_captured_destroy(captured);
}

#ifdef MPTRAIN_WATCH
TEST(graphs) {
    mpt_context *c = f.context;
    mpt_module net = mpt_nn_relu(c);
    mpt_graph graph = mpt_trace(net, &f.x, 1), none = {NULL, 0, 0}, stale = graph;
    MODULE(mpt_trace, mpt_trace(h_, &f.x, 1));
    CASE(mpt_trace, ARGUMENT, "an array of 1 input or more, got 0", mpt_trace(net, NULL, 1));
    CASE(mpt_trace, ARGUMENT, "got -1", mpt_trace(net, &f.x, -1));
    CASE(mpt_trace, BAD_HANDLE, "input: tensor made in step", mpt_trace(net, &f.stale, 1));
    CASE(mpt_trace, BAD_HANDLE, "belongs to another context", mpt_trace(net, &f.foreign, 1));
    CASE(mpt_trace, STATE, "a recording, a captured step or a backward", mpt_record_begin(c);
         mpt_trace(net, &f.x, 1));
    CASE(mpt_graph_node, ARGUMENT, "node -1: the graph has 3 of them", mpt_graph_node(graph, -1));
    CASE(mpt_graph_node, ARGUMENT, "node 3: the graph has 3", mpt_graph_node(graph, 3));
    mpt_graph_destroy(graph);
    OBJECT(mpt_graph_count, mpt_graph, none, stale, CHECK_EQ_INT(mpt_graph_count(h_), -1));
    OBJECT(mpt_graph_node, mpt_graph, none, stale, CHECK(!mpt_graph_node(h_, 0)));
    OBJECT(mpt_graph_destroy, mpt_graph, none, stale, mpt_graph_destroy(h_));
}
#else
TEST(graphs) {
    cover("mpt_trace"), cover("mpt_graph_count"), cover("mpt_graph_node");
    cover("mpt_graph_destroy");
    SKIP("mpt_trace: built without MPTRAIN_WATCH");
}
#endif

#ifndef MPTRAIN_NO_WATCH
static mpt_status own_update(mpt_context *c, const mpt_user_update *u, void *user) {
    (void)c, (void)u, (void)user;
    return MPT_OK;
}

TEST(own_optimizers) {
    mpt_user_optimizer_config own = mpt_user_optimizer_config_default();
    own.update = own_update;
    QUIET(mpt_user_optimizer_config_default, own.lr == 1e-3 && own.states == 0);
    MODULE(mpt_user_optimizer, CHECK(mpt_user_optimizer(h_, &own).slot == 0));
    CASE(mpt_user_optimizer, STATE, "allow_shared", mpt_user_optimizer(f.t.net, &own));
    CASE(mpt_user_optimizer, ARGUMENT, "a config with an update", mpt_user_optimizer(f.net, NULL));
    own.states = 4;
    CASE(mpt_user_optimizer, ARGUMENT, "0..3 states, got 4", mpt_user_optimizer(f.net, &own));
    own.states = 1, own.state_names[0] = "a.b";
    CASE(mpt_user_optimizer, ARGUMENT, "state_names[0] = \"a.b\"",
         mpt_user_optimizer(f.net, &own));
    own.state_names[0] = NULL, own.lr = -1;
    CASE(mpt_user_optimizer, ARGUMENT, "lr = -1", mpt_user_optimizer(f.net, &own));
}

static mpt_tensor no_closure(mpt_context *c, void *user) {
    (void)user;
    return mpt_zeros(c, MPT_F32, MPT_SCALAR);
}

TEST(lbfgs_optimizers) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    QUIET(mpt_lbfgs_config_default, config.lr == 1 && config.history_size == 100);
    MODULE(mpt_lbfgs, CHECK(mpt_lbfgs(h_, NULL).slot == 0));
    CASE(mpt_lbfgs, STATE, "allow_shared", mpt_lbfgs(f.t.net, NULL));
    config.history_size = 0;
    CASE(mpt_lbfgs, ARGUMENT, "history_size = 0", mpt_lbfgs(f.net, &config));
    config = mpt_lbfgs_config_default(), config.max_iter = 0;
    CASE(mpt_lbfgs, ARGUMENT, "max_iter = 0", mpt_lbfgs(f.net, &config));
    OPTIMIZER(mpt_lbfgs_step, CHECK(isnan(mpt_lbfgs_step(h_, no_closure, NULL))));
    CASE(mpt_lbfgs_step, ARGUMENT, "closure is NULL", mpt_lbfgs_step(f.t.optimizer, NULL, NULL));
    CASE(mpt_lbfgs_step, ARGUMENT, "is not of mpt_lbfgs; call mpt_step",
         mpt_lbfgs_step(f.t.optimizer, no_closure, NULL));
}

TEST(muon_optimizers) {
    mpt_muon_config config = mpt_muon_config_default();
    QUIET(mpt_muon_config_default, config.momentum == 0.95 && config.ns_steps == 5);
    MODULE(mpt_muon, CHECK(mpt_muon(h_, NULL).slot == 0));
    CASE(mpt_muon, STATE, "allow_shared", mpt_muon(f.t.net, NULL));
    config.ns_steps = 0;
    CASE(mpt_muon, ARGUMENT, "ns_steps = 0; expected 1 to 20", mpt_muon(f.net, &config));
    config.ns_steps = 5, config.adamw_names = "no.such";
    CASE(mpt_muon, ARGUMENT, "begins with no parameter", mpt_muon(f.net, &config));
}
#else
TEST(muon_optimizers) {
    cover("mpt_muon"), cover("mpt_muon_config_default");
    SKIP("mpt_muon: built with MPTRAIN_NO_WATCH");
}

TEST(lbfgs_optimizers) {
    cover("mpt_lbfgs"), cover("mpt_lbfgs_config_default"), cover("mpt_lbfgs_step");
    SKIP("mpt_lbfgs: built with MPTRAIN_NO_WATCH");
}

TEST(own_optimizers) {
    cover("mpt_user_optimizer"), cover("mpt_user_optimizer_config_default");
    SKIP("mpt_user_optimizer: built with MPTRAIN_NO_WATCH");
}
#endif

#ifndef MPTRAIN_NO_FIT
#define FIT_SETTING(field, value, code, text) \
    do { \
        mpt_fit_config c_ = mpt_fit_config_default(); \
        c_.field = value; \
        CASE(mpt_fit, code, text, CHECK(mpt_fit(f.net, own, loader, &c_).status != MPT_OK)); \
    } while (0)

TEST(fits) {
    mpt_loader loader = make_loader_of(f.context, f.t.data, 8, 0, MPT_F32);
    mpt_optimizer own = mpt_sgd(f.net, NULL);
    QUIET(mpt_fit_config_default, mpt_fit_config_default().epochs == 5);
    MODULE(mpt_fit, CHECK(mpt_fit(h_, f.no_optimizer, f.no_loader, NULL).status != MPT_OK));
    CASE(mpt_fit, BAD_HANDLE, "is a null handle", mpt_fit(f.net, f.no_optimizer, loader, NULL));
    CASE(mpt_fit, BAD_HANDLE, "was destroyed", mpt_fit(f.net, f.stale_optimizer, loader, NULL));
    CASE(mpt_fit, BAD_HANDLE, "another context", mpt_fit(f.net, own, f.foreign_loader, NULL));
    FIT_SETTING(epochs, 0, ARGUMENT, "epochs is 0");
    FIT_SETTING(precision, MPT_I64, DTYPE, "precision int64");
    FIT_SETTING(clip_norm, -1, ARGUMENT, "clip_norm is -1");
    FIT_SETTING(patience, -1, ARGUMENT, "patience is -1");
    FIT_SETTING(patience, 2, ARGUMENT, "config.validation");
    FIT_SETTING(validation, f.foreign_loader, BAD_HANDLE, "another context");
    MODULE(mpt_evaluate, CHECK(mpt_evaluate(h_, f.no_loader, MPT_F32).status != MPT_OK));
    CASE(mpt_evaluate, BAD_HANDLE, "was destroyed", mpt_evaluate(f.net, f.stale_loader, MPT_F32));
    CASE(mpt_evaluate, DTYPE, "precision uint8", mpt_evaluate(f.net, loader, MPT_U8));
}
#else
TEST(fits) {
    cover("mpt_fit"), cover("mpt_fit_config_default"), cover("mpt_evaluate");
    SKIP("mpt_fit: built with MPTRAIN_NO_FIT");
}
#endif
