/* 10_files.c - lesson 10: files: keep what was learned.
 *
 * Weights are saved as safetensors, which Python's safetensors package reads, under the names of
 * their paths. A file appears whole or not at all, and loading checks everything before it changes
 * anything.
 * test arguments: */
#include "lesson.h"

static mpt_module make_net(mpt_context *ctx, int64_t hidden) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, 4, hidden), mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, hidden, 2), MPT_END);
}

int main(void) {
    static const char path[] = "lesson10.safetensors";
    int loaded = 0;
    mpt_context *ctx = lesson_begin("10_files", "Lesson 10: files");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("Save one net, load it into another one");
    mpt_module net = make_net(ctx, 8), copy = make_net(ctx, 8);
    printf("two nets, two draws of weights: %016llx and %016llx\n",
           (unsigned long long)mpt_module_hash(net), (unsigned long long)mpt_module_hash(copy));
    mpt_save(net, path);
    mpt_load(copy, path, NULL, &loaded);
    printf("%d tensors loaded, and the copy is %016llx\n", loaded,
           (unsigned long long)mpt_module_hash(copy));
    const bool same = mpt_module_hash(net) == mpt_module_hash(copy);

    heading("What is in the file: a length, a header in JSON, the numbers");
    char header[80] = "";
    FILE *file = fopen(path, "rb");
    if (file) {
        size_t n = fseek(file, 8, SEEK_SET) == 0 ? fread(header, 1, sizeof header - 1, file) : 0;
        header[n] = '\0';
        fclose(file);
    }
    printf("%s...\n", header);

    heading("A net of another shape is refused, and stays as it was");
    mpt_module other = make_net(ctx, 16);
    const uint64_t before = mpt_module_hash(other);
    mpt_load(other, path, NULL, NULL);
    printf("%s\n", mpt_error(ctx));
    mpt_clear_error(ctx);
    const bool kept = mpt_module_hash(other) == before;

    heading("Weights of 16 bits load from it, too; each number is rounded");
    mpt_module half = make_net(ctx, 8);
    mpt_half(half, MPT_F16);
    mpt_load(half, path, NULL, &loaded);
    show("0.bias in fp16", mpt_parameter(half, "0.bias"));
    show("0.bias in fp32", mpt_parameter(net, "0.bias"));
    remove(path);
    return lesson_end(ctx, same && kept && loaded == 4);
}
