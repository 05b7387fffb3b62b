/* deploy.c - a CSV from training to prediction, in two programs.
 *
 * The first learns from a table of flats: numbers, a column of texts, missing values, a price. It
 * saves two files: the weights, and what the table knows of its columns (mpt_table_save). The
 * second has neither the table nor its target: it reads rows as they come, with columns in another
 * order, a value that is missing and a town that training never saw, and gives the same numbers to
 * the bit as the first one would. The log tells of the new town, twice. test warnings: 2
 * test arguments: */
#include "lesson.h"

enum { FLATS = 400, EPOCHS = 60, BATCH = 20, ROWS = 4 };

static const char weights_path[] = "deploy.safetensors", table_path[] = "deploy.table";

/* As they come later: no price, other order, ? and a town of its own. */
static const char new_rows[] = "town,rooms,area\nUlm,3,70\nBern,2,45.5\nUlm,?,70\nOslo,3,70\n";

/* Lines "area,rooms,town,price": 3 for a square metre, 20 for a room, half more in Bern. */
static char *make_table(size_t *n) {
    char *text = (char *)malloc(64 * (FLATS + 1));
    uint32_t random = 7;
    *n = text ? (size_t)sprintf(text, "area,rooms,town,price\n") : 0;
    for (int i = 0; text && i < FLATS; i++) {
        random = random * 1664525u + 1013904223u;
        const int area = 20 + (int)(random >> 8) % 100, rooms = 1 + (int)(random >> 16) % 5;
        const int bern = (int)(random >> 20) % 2;
        const double price = (3.0 * area + 20.0 * rooms) * (bern ? 1.5 : 1.0);
        *n += (size_t)sprintf(text + *n, "%d,", area);
        *n += (size_t)sprintf(text + *n, i % 50 == 9 ? "NA," : "%d,", rooms);
        *n += (size_t)sprintf(text + *n, "%s,%.1f\n", bern ? "Bern" : "Ulm", price / 100.0);
    }
    return text;
}

static mpt_module make_net(mpt_context *ctx, int64_t inputs) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, inputs, 32), mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, 32, 1), MPT_END);
}

/* Prices of new rows, by a table that tells how to read them. */
static void predict(mpt_context *ctx, mpt_module net, mpt_dataset like, float prices[ROWS]) {
    mpt_table_config config = mpt_table_config_default();
    mpt_loader_config loading = mpt_loader_config_default();
    mpt_batch batch;
    config.like = like;    /* columns, categories, means and deviations are those */
    config.target = "";    /* lines have none */
    config.missing = true; /* a value may lack: it is the mean */
    config.strict = false; /* a text that is new is no error; the log tells */
    mpt_dataset rows = mpt_csv_memory(ctx, new_rows, sizeof new_rows - 1, &config);
    loading.batch = ROWS;
    mpt_loader loader = mpt_loader_create(ctx, rows, &loading);
    mpt_eval(net);
    mpt_inference_begin(ctx);
    if (mpt_loader_next(loader, &batch)) mpt_read_f32(mpt_forward(net, batch.x), prices, ROWS);
    mpt_inference_end(ctx);
    mpt_loader_destroy(loader);
}

/* The first program. */
static void train(mpt_context *ctx, float prices[ROWS]) {
    mpt_table_config config = mpt_table_config_default();
    mpt_loader_config loading = mpt_loader_config_default();
    mpt_adam_config adam = mpt_adam_config_default();
    mpt_batch batch;
    size_t n;
    char *text = make_table(&n);
    config.missing = true; /* the target is the last column, as it is unless told otherwise */
    mpt_dataset table = mpt_csv_memory(ctx, text, n, &config);
    free(text);
    mpt_table_fit(table, true); /* fills in means and scales the columns of numbers */
    loading.batch = BATCH, loading.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, table, &loading);
    mpt_module net = make_net(ctx, mpt_dataset_shape(table).dim[0]);
    adam.lr = 0.01;
    mpt_optimizer optimizer = mpt_adam(net, &adam);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double sum = 0.0;
        while (mpt_loader_next(loader, &batch)) {
            mpt_step_begin(ctx);
            mpt_tensor loss = mpt_mse_loss(mpt_forward(net, batch.x), batch.y, MPT_MEAN);
            mpt_zero_grad(optimizer);
            mpt_backward(loss);
            mpt_step(optimizer);
            sum += mpt_item(loss);
            mpt_step_end(ctx);
        }
        if (epoch % 20 == 19) printf("epoch %d: error %.4f\n", epoch + 1, sum / (FLATS / BATCH));
    }
    mpt_save(net, weights_path);
    mpt_table_save(table, table_path);
    predict(ctx, net, table, prices);
}

int main(void) {
    float first[ROWS] = {0}, second[ROWS] = {0};
    mpt_context *ctx = lesson_begin("deploy", "A CSV from training to prediction");
    if (!ctx) return EXIT_BAD_INPUT;
    heading("The first program trains and saves");
    train(ctx, first);
    if (mpt_failed(ctx)) return lesson_end(ctx, false);
    mpt_destroy(ctx);

    ctx = lesson_begin("deploy", "\n-- The second one has the two files and new rows");
    if (!ctx) return EXIT_BAD_INPUT;
    mpt_dataset like = mpt_table_load(ctx, table_path);
    mpt_module net = make_net(ctx, mpt_dataset_shape(like).dim[0]);
    mpt_load(net, weights_path, NULL, NULL);
    for (int64_t i = 0; mpt_column_name(like, i); i++)
        printf("input %lld: %s %s\n", (long long)i, mpt_column_name(like, i),
               mpt_category_name(like, i, 0) ? mpt_category_name(like, i, 0) : "");
    predict(ctx, net, like, second);
    printf("%s", new_rows);
    for (int i = 0; i < ROWS; i++) printf("price of row %d: %.2f\n", i + 1, second[i]);
    remove(weights_path), remove(table_path);
    const bool same = memcmp(first, second, sizeof first) == 0;
    const bool right = fabs(second[0] - 2.7f) < 0.3 && fabs(second[1] - 2.65f) < 0.3;
    return lesson_end(ctx, same && right);
}
