/* 01_tensor.c - lesson 1: tensors: arrays of numbers with a shape and a type.
 *
 * Everything else here is made of them. A tensor knows its shape (how many numbers along each
 * dimension) and its dtype (how each number is stored).
 * test arguments: */
#include "lesson.h"

int main(void) {
    mpt_context *ctx = lesson_begin("01_tensor", "Lesson 1: tensors");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("Two rows of three numbers, copied in from C");
    const float numbers[] = {1, 2, 3, 4, 5, 6};
    mpt_tensor a = mpt_from(ctx, MPT_F32, MPT_SHAPE(2, 3), numbers);
    show("a", a);
    printf("it has %lld numbers of type %s\n", (long long)mpt_numel(a),
           mpt_dtype_name(mpt_get_dtype(a)));

    heading("Arithmetic is element by element");
    show("a + a", mpt_add(a, a));
    show("a * a", mpt_mul(a, a));
    show("2 a", mpt_mul_scalar(a, 2.0));

    heading("A smaller shape is stretched: the row [10, 20, 30] is added to each row of a");
    const float row[] = {10, 20, 30};
    mpt_tensor stretched = mpt_add(a, mpt_from(ctx, MPT_F32, MPT_SHAPE(3), row));
    show("a + row", stretched);

    heading("Views look at the same numbers in another order; nothing is copied");
    mpt_tensor transposed = mpt_transpose(a, 0, 1);
    show("a transposed", transposed);
    show("a as one row", mpt_reshape(a, MPT_SHAPE(6)));
    show("column 1 of a", mpt_slice(a, 1, 1, 2, 1));

    heading("Sums along a dimension, and over everything");
    show("sum of each row", mpt_sum(a, 1, false));
    show("mean of each column", mpt_mean(a, 0, false));
    mpt_tensor total = mpt_sum(a, MPT_ALL_DIMS, false);
    printf("sum of all: %g\n", mpt_item(total));

    heading("The matrix product: rows of a times columns of its transpose");
    mpt_tensor product = mpt_matmul(a, transposed);
    show("a a^T", product);

    heading("Back to C");
    float out[4] = {0};
    mpt_read_f32(product, out, 4);
    printf("the product's last number is %g = 4*4 + 5*5 + 6*6\n", (double)out[3]);
    return lesson_end(ctx, out[3] == 77.0f && mpt_item(total) == 21.0);
}
