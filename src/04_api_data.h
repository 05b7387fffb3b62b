/* ---------------------------------------------------------------------------------------------
 * 04_api_data.h: the public API of data in files: images with augmentation, text, tokens.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__04_API_DATA_INCLUDED
#define MPT__04_API_DATA_INCLUDED

#include "03_api_models.h"

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
    bool (*apply)(void *user, float *image, mpt_shape shape, uint64_t seed, char *error,
                  size_t error_size);
    void *user;
} mpt_transform;
/* A step with the values above; height and width where the kind has them, else 0. */
MPTRAIN_API mpt_transform mpt_transform_default(mpt_transform_kind kind, int64_t height,
                                                int64_t width);
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
MPTRAIN_API mpt_dataset mpt_image_folder(mpt_context *context, const char *folder,
                                         const mpt_image_config *config);
/* CIFAR-10 from a directory with data_batch_1.bin .. data_batch_5.bin (train) and test_batch.bin:
   u8 inputs [3, 32, 32]. */
MPTRAIN_API mpt_dataset mpt_cifar10(mpt_context *context, const char *directory, mpt_split split);

/* ==== Text =================================================================================== */

/* Text as numbers and back. Lives until it is destroyed. */
/* The characters of a UTF-8 file, numbered in the order of their code points. */
MPTRAIN_API mpt_tokenizer mpt_char_tokenizer(mpt_context *context, const char *path);
/* Byte-level BPE as GPT-2 has it, from its two files: a JSON object of tokens and numbers
   (encoder.json, vocab.json) and the merges, one pair per line (vocab.bpe, merges.txt). */
MPTRAIN_API mpt_tokenizer mpt_bpe_tokenizer(mpt_context *context, const char *vocabulary_path,
                                            const char *merges_path);
MPTRAIN_API int64_t mpt_vocabulary_size(mpt_tokenizer tokenizer); /* -1 on error */
/* The number of the token of exactly these bytes, special ones such as "<|endoftext|>" too, which
   mpt_encode takes for text; -1 if there is none. */
MPTRAIN_API int64_t mpt_token_of(mpt_tokenizer tokenizer, const char *text, size_t bytes);
/* Writes at most `capacity` tokens (bytes); returns how many there are, -1 on error. */
MPTRAIN_API int64_t mpt_encode(mpt_tokenizer tokenizer, const char *text, size_t bytes,
                               int32_t *tokens, int64_t capacity);
MPTRAIN_API int64_t mpt_decode(mpt_tokenizer tokenizer, const int32_t *tokens, int64_t count,
                               char *text, int64_t capacity);
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
/* From a file of little-endian numbers of 1, 2 or 4 bytes, which is read window by window. */
MPTRAIN_API mpt_dataset mpt_token_file(mpt_context *context, const char *path, int bytes_per_token,
                                       const mpt_window_config *config);
/* From memory, which is copied. */
MPTRAIN_API mpt_dataset mpt_token_memory(mpt_context *context, const int32_t *tokens, int64_t count,
                                         const mpt_window_config *config);
/* From a text file, encoded when the dataset is made and held in as few bytes as its vocabulary
   needs. */
MPTRAIN_API mpt_dataset mpt_text_file(mpt_tokenizer tokenizer, const char *path,
                                      const mpt_window_config *config);

#ifdef __cplusplus
}
#endif
#endif /* MPT__04_API_DATA_INCLUDED */
