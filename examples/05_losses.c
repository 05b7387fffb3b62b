/* 05_losses.c - lesson 5: losses: one number for how wrong the net is.
 *
 * For classes the net gives a score each (logits). Softmax makes probabilities of them, and the
 * loss is minus the logarithm of the right one's: 0 when the net is sure and right, large when it
 * is sure and wrong. For quantities the loss is a distance.
 * test arguments: */
#include "lesson.h"

int main(void) {
    mpt_context *ctx = lesson_begin("05_losses", "Lesson 5: losses");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("Scores of three samples for three classes; the right classes are 0, 1 and 2");
    const float scores[] = {4, 1, 0, 1, 1, 1, 5, 0, 0};
    const int64_t classes[] = {0, 1, 2};
    mpt_tensor logits = mpt_from(ctx, MPT_F32, MPT_SHAPE(3, 3), scores);
    mpt_tensor targets = mpt_from(ctx, MPT_I64, MPT_SHAPE(3), classes);
    show("logits", logits);
    show("softmax", mpt_softmax(logits, 1));

    heading("The loss of each: sure and right, undecided, sure and wrong");
    mpt_nll_config each = mpt_nll_config_default();
    each.reduction = MPT_NONE;
    float loss[3] = {0};
    mpt_read_f32(mpt_cross_entropy(logits, targets, &each), loss, 3);
    for (int i = 0; i < 3; i++) printf("sample %d: %.4f\n", i, (double)loss[i]);
    printf("undecided among three costs log 3 = %.4f\n", log(3.0));
    printf("their mean, which training minimises: %.4f\n",
           mpt_item(mpt_cross_entropy(logits, targets, NULL)));

    heading("The same in two steps: log_softmax as the last layer, then nll_loss");
    const double two_steps = mpt_item(mpt_nll_loss(mpt_log_softmax(logits, 1), targets, NULL));
    printf("%.4f\n", two_steps);

    heading("Weights make rare classes count more; smoothing keeps the net from being too sure");
    const float weight[] = {1, 1, 5};
    mpt_nll_config config = mpt_nll_config_default();
    config.weight = mpt_from(ctx, MPT_F32, MPT_SHAPE(3), weight);
    printf("class 2 counts five times: %.4f\n",
           mpt_item(mpt_cross_entropy(logits, targets, &config)));
    config = mpt_nll_config_default();
    config.label_smoothing = 0.1;
    printf("a tenth of each target goes to all: %.4f\n",
           mpt_item(mpt_cross_entropy(logits, targets, &config)));

    heading("Distances: one outlier dominates the squares, not the absolute values");
    const float predicted[] = {1.1f, 2.1f, 2.9f, 14}, wanted[] = {1, 2, 3, 4};
    mpt_tensor p = mpt_from(ctx, MPT_F32, MPT_SHAPE(4), predicted);
    mpt_tensor w = mpt_from(ctx, MPT_F32, MPT_SHAPE(4), wanted);
    printf("mean squared error %.4f, mean absolute error %.4f, Huber loss %.4f\n",
           mpt_item(mpt_mse_loss(p, w, MPT_MEAN)), mpt_item(mpt_l1_loss(p, w, MPT_MEAN)),
           mpt_item(mpt_huber_loss(p, w, 1.0, MPT_MEAN)));
    const double mean = (double)(loss[0] + loss[1] + loss[2]) / 3.0;
    return lesson_end(ctx,
                      fabs(two_steps - mean) < 1e-5 && fabs((double)loss[1] - log(3.0)) < 1e-5);
}
