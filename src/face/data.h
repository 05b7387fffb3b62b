/* ----
 * face/data.h: the public API of data in files: tables, arrays, images with
 * augmentation, text, tokens.
 * ---- */
#ifndef MPT__FACE_DATA_INCLUDED
#define MPT__FACE_DATA_INCLUDED

#include "face/models.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Images ================================================================================= */

/* Steps from a picture to a sample, in torchvision's words. Pictures are [C, H, W] of value / 255,
   as ToTensor makes them. Steps are carried out together: no picture is resampled twice, and most
   go from decoded bytes straight into the batch. */
typedef enum mpt_transform_kind {
    MPT_RESIZE = 0,     /* bilinear, to [height, width]; width 0: the shorter side to height */
    MPT_CENTER_CROP,    /* [height, width]; zeros where the picture is smaller */
    MPT_RANDOM_CROP,    /* [height, width] of the picture with `padding` zeros on each side */
    MPT_RANDOM_FLIP,    /* left to right, with probability p */
    MPT_RESIZED_CROP,   /* a part, random in area (scale) and width / height (ratio), resized */
    MPT_RANDOM_ERASING, /* with probability p, a part, random as above, becomes 0 */
    MPT_NORMALIZE,      /* (value - mean[c]) / deviation[c] */
    MPT_APPLY,          /* the function `apply` */
    MPT_TRANSFORM_KINDS
} mpt_transform_kind;
typedef struct mpt_transform {
    mpt_transform_kind kind;
    int64_t height, width;
    int64_t padding;              /* 0 */
    bool antialias;               /* true: a reduced picture is averaged, as PIL does */
    double p;                     /* 0.5 */
    double scale[2], ratio[2];    /* resized crop: 0.08 to 1, 3/4 to 4/3; erasing: 0.02 to 0.33,
                                     0.3 to 3.3 */
    double mean[4], deviation[4]; /* 0, 1 */
    /* Changes `image`, of `shape` [C, H, W], in place, on any thread. `seed` differs by sample and
       epoch. False: the sample fails with what was written to `error`. */
    bool (*apply)(
        void *user, float *image, mpt_shape shape, uint64_t seed, char *error, size_t error_size);
    void *user;
} mpt_transform;
/* A step with the values above; height and width where the kind has them, else 0. */
MPTRAIN_API mpt_transform mpt_transform_default(
    mpt_transform_kind kind, int64_t height, int64_t width);
/* A dataset of u8 or f32 pictures [C, H, W] or [H, W] as one of f32 [C, height, width] after
   `count` steps, which are copied. Loader workers carry them out. What is random depends on the
   loader's seed, epoch and sample alone. mpt_normalize of the result acts after all steps; that of
   `dataset` has no effect on it. */
MPTRAIN_API mpt_dataset mpt_transformed(mpt_dataset dataset, const mpt_transform *steps, int count);

typedef struct mpt_image_config {
    int channels;         /* 3: 1 grey, 3 RGB, 4 RGBA */
    int64_t max_pixels;   /* 2^25; larger pictures are an error before anything is decoded */
    const char *manifest; /* NULL; a file of lines "SHA-256  path", as sha256sum writes them */
    const mpt_transform *steps;
    int step_count; /* 0 */
} mpt_image_config;
MPTRAIN_API mpt_image_config mpt_image_config_default(void);
/* Pictures folder/class/name.png, .jpg, .jpeg or .bmp, decoded by stb_image: needs a build with
   MPTRAIN_STB_IMAGE. Classes are the subfolders by name, samples the files of each by name, in the
   order of bytes; names that begin with a dot do not count. Steps as in mpt_transformed; without
   one that sets the size, all pictures have that of the first. Files are opened by who makes the
   batch; one that is torn, not of its format or, with a manifest, not of its hash fails its sample.
   Rotation marks (EXIF) are ignored; alpha is left out below 4 channels. */
MPTRAIN_API mpt_dataset mpt_image_folder(
    mpt_context *context, const char *folder, const mpt_image_config *config);
/* CIFAR-10 from a directory with data_batch_1.bin .. data_batch_5.bin (train) and test_batch.bin:
   u8 inputs [3, 32, 32]. */
MPTRAIN_API mpt_dataset mpt_cifar10(mpt_context *context, const char *directory, mpt_split split);

/* ==== Text =================================================================================== */

/* Text as numbers and back. Lives until it is destroyed. */
/* The characters of a UTF-8 file, numbered in the order of their code points. */
MPTRAIN_API mpt_tokenizer mpt_char_tokenizer(mpt_context *context, const char *path);
/* Byte-level BPE as GPT-2 has it, from its two files: a JSON object of tokens and numbers
   (encoder.json, vocab.json) and the merges, one pair per line (vocab.bpe, merges.txt). */
MPTRAIN_API mpt_tokenizer mpt_bpe_tokenizer(
    mpt_context *context, const char *vocabulary_path, const char *merges_path);
MPTRAIN_API int64_t mpt_vocabulary_size(mpt_tokenizer tokenizer); /* -1 on error */
/* The number of the token of exactly these bytes, special ones such as "<|endoftext|>" too, which
   mpt_encode takes for text; -1 if there is none. */
MPTRAIN_API int64_t mpt_token_of(mpt_tokenizer tokenizer, const char *text, size_t bytes);
/* Writes at most `capacity` tokens (bytes); returns how many there are, -1 on error. */
MPTRAIN_API int64_t mpt_encode(
    mpt_tokenizer tokenizer, const char *text, size_t bytes, int32_t *tokens, int64_t capacity);
MPTRAIN_API int64_t mpt_decode(
    mpt_tokenizer tokenizer, const int32_t *tokens, int64_t count, char *text, int64_t capacity);
MPTRAIN_API mpt_status mpt_tokenizer_destroy(mpt_tokenizer tokenizer);

/* Windows of a long row of tokens: inputs i64 [block], targets i64 [block] one token further. */
typedef struct mpt_window_config {
    int64_t block;      /* 128 */
    int64_t stride;     /* 0: block; from one window to the next */
    bool random;        /* false; true: `samples` windows at random places, others each epoch */
    int64_t samples;    /* 0: as many as lie side by side */
    int64_t vocabulary; /* 0; else a token that is not below it fails its sample */
} mpt_window_config;
MPTRAIN_API mpt_window_config mpt_window_config_default(void);
/* From a file of little-endian numbers of 1, 2 or 4 bytes, of any size, which is read window by
   window. It is not mapped into memory: one that has become shorter, or whose disk fails, is an
   error of its sample, where a mapping would end the program. */
MPTRAIN_API mpt_dataset mpt_token_file(
    mpt_context *context, const char *path, int bytes_per_token, const mpt_window_config *config);
/* From memory, which is copied. */
MPTRAIN_API mpt_dataset mpt_token_memory(
    mpt_context *context, const int32_t *tokens, int64_t count, const mpt_window_config *config);
/* From a text file, encoded when the dataset is made and held in as few bytes as its vocabulary
   needs. */
MPTRAIN_API mpt_dataset mpt_text_file(
    mpt_tokenizer tokenizer, const char *path, const mpt_window_config *config);

/* ==== Tables ================================================================================= */

/* What a column of a table is for. A column is of numbers if its first field with a value is one;
   any other field of it is then an error. Texts that differ are categories, numbered in order:
   numbers first, by value, then by their bytes. */
typedef enum mpt_column_use {
    MPT_COLUMN_AUTO = 0, /* numbers: an input; texts: one-hot, with MPT_I64 their codes */
    MPT_COLUMN_NUMBER,   /* an input; a text is an error */
    MPT_COLUMN_ONE_HOT,  /* as many inputs, or float targets, as categories: 1 or 0 */
    MPT_COLUMN_CODE,     /* an input: the number of its category, for an embedding */
    MPT_COLUMN_TARGET,   /* a number to predict: targets f32 [columns of this kind] */
    MPT_COLUMN_CLASS,    /* a class to predict: its category; targets i64, a scalar if it is one */
    MPT_COLUMN_IGNORE
} mpt_column_use;
typedef struct mpt_column {
    const char *name; /* in the header; else its number from 0, "-1" for the last */
    mpt_column_use use;
} mpt_column;
typedef struct mpt_table_config {
    char delimiter;     /* ',' */
    bool header;        /* true: the first line names the columns */
    bool missing;       /* false: a field without a value is an error. true: a number is then NaN
                           until mpt_table_fit, a category the text "" */
    mpt_dtype dtype;    /* MPT_F32; MPT_I64: all inputs are codes or whole numbers */
    const char *target; /* NULL: the last column, unless `columns` has targets; "": none; or the
                           name of one: a class if it holds texts, else a number */
    const mpt_column *columns; /* what is not MPT_COLUMN_AUTO */
    int column_count;          /* 0 */
    mpt_dataset like; /* a table whose categories, means and deviations this one takes over, as that
                         of the training data or one of mpt_table_load; see below */
    char decimal;     /* 0: '.'; with another delimiter than ',' also ',' in columns all of whose
                         texts can be numbers so, which the log tells. '.' or ',': that alone */
    bool unknown;     /* false; true: inputs of texts get a category "" for those to come */
    bool strict;      /* false; true: a text that `like` does not know is an error */
} mpt_table_config;
MPTRAIN_API mpt_table_config mpt_table_config_default(void);
/* One sample per line of a CSV file, UTF-8: fields in "quotes" may hold delimiters, line ends and
   doubled quotes; blanks around fields and empty lines do not count. Without a value are those that
   are empty or NA, N/A, n/a, #N/A, #NA, <NA>, NULL, null, None, ? or nan in any letters. Numbers
   are rounded correctly, to double and then to the inputs' dtype; inf in its spellings is one that
   is refused. Columns of texts that only look like numbers, as 1,234 or 5 %, are told to the log.
   Targets always have a value. Errors name file, line and column, which count from 1.

   A table that is `like` another has its columns, in any order where both have names; of target no
   more than that it is "" counts: then lines need no targets. A text that the other table lacks is
   told to the log: it is taken for the category "" where that has it, which stands for missing
   values and, with unknown, for such texts; else its one-hot inputs are all 0, and as a code or a
   target it is an error. */
MPTRAIN_API mpt_dataset mpt_csv(
    mpt_context *context, const char *path, const mpt_table_config *config);
/* The same from memory, which is copied. */
MPTRAIN_API mpt_dataset mpt_csv_memory(
    mpt_context *context, const char *text, size_t bytes, const mpt_table_config *config);
/* Means and deviations (divided by n) of the columns of numbers over the samples of `part`: a table
   or what mpt_subset and mpt_random_split made of it, the training part. In the whole table numbers
   without a value are then that mean and, with `standardise`, become (value - mean) / deviation;
   a column without deviation is divided by 1. Targets, codes and one-hot inputs stay. */
MPTRAIN_API mpt_status mpt_table_fit(mpt_dataset part, bool standardise);
/* What a table knows of its data, for programs that are without that: the names and uses of
   columns, their categories in order and, from mpt_table_fit, means and deviations. The file is a
   CSV that people can read. What is loaded has no samples: it is for mpt_table_config.like, after
   which the same fields give the same bits, and for mpt_column_name, mpt_category_name,
   mpt_class_name and mpt_dataset_shape. */
MPTRAIN_API mpt_status mpt_table_save(mpt_dataset table, const char *path);
MPTRAIN_API mpt_dataset mpt_table_load(mpt_context *context, const char *path);
MPTRAIN_API mpt_dataset mpt_table_load_memory(mpt_context *context, const char *text, size_t bytes);
/* The column that an input of a table comes from; NULL past the last. */
MPTRAIN_API const char *mpt_column_name(mpt_dataset table, int64_t input);
/* The text of a category: of number `code`, or the one that a one-hot input stands for. NULL if
   there is none. mpt_class_name has those of a target. */
MPTRAIN_API const char *mpt_category_name(mpt_dataset table, int64_t input, int64_t code);

/* ==== Arrays ================================================================================= */

/* NumPy's files, .npy and (several in one, compressed or not) .npz, of little or big endian numbers
   in either order: float16, 32, 64 as they are; uint8 and bool, too; int8, int16, uint16 and int32
   become i32, uint32, int64 and uint64 i64. `name`: an array in an .npz, NULL for an .npy. */
MPTRAIN_API mpt_tensor mpt_numpy_tensor(mpt_context *context, const char *path, const char *name);
/* Samples from two of them, along the first dimension; targets_path may be NULL. Targets of whole
   numbers become i64, of float64 f32. */
MPTRAIN_API mpt_dataset mpt_npy(
    mpt_context *context, const char *inputs_path, const char *targets_path);
MPTRAIN_API mpt_dataset mpt_npz(
    mpt_context *context, const char *path, const char *inputs, const char *targets);
/* Samples one after the other in files, as numpy.memmap reads them: in the byte order of the
   machine, of which only what a batch needs is read, by who makes it. */
typedef struct mpt_raw_config {
    const char *inputs, *targets;  /* paths; targets may be NULL, or the same file */
    int64_t offset, target_offset; /* 0; bytes before the first */
    int64_t stride, target_stride; /* 0: they lie side by side; bytes from one to the next */
    int64_t count;                 /* 0: as many as the file of inputs holds */
    mpt_dtype dtype, target_dtype; /* MPT_F32, MPT_I64 */
    mpt_shape shape, target_shape; /* MPT_SCALAR */
} mpt_raw_config;
MPTRAIN_API mpt_raw_config mpt_raw_config_default(void);
MPTRAIN_API mpt_dataset mpt_raw_files(mpt_context *context, const mpt_raw_config *config);

#ifdef __cplusplus
}
#endif
#endif /* MPT__FACE_DATA_INCLUDED */
