/* bench_parallel.c: training steps of the nets of models.h by as many ranks as mpirun starts, each
   with a batch of its own. Rank 0 reads what is to be done, as parallel_peer.py says it:

       make MODEL PRECISION WAY BATCH    -> made NUMBER PARAMETERS
       run NUMBER STEPS                  -> took SECONDS PER STEP, OF THEM AFTER BACKWARD

   WAY: mean (the order of MPI), tree (deterministic), alone (nothing is reduced), or only (the
   gradients are reduced, and nothing is trained: in the order of MPI). Other ranks do
   the same; between commands all sleep. Ranks have one thread each, or THREADS. */
#include "models.h"

#include "mptrain_parallel.h"

enum { SUBJECTS = 16, COMMAND = 256 };

static model *models[SUBJECTS];
static mpt_tensor reduced[SUBJECTS]; /* only: as many floats as the net has */
static mpt_context *control;
static int rank, world;

static const char *error_of(const model *m) { return m ? mpt_error(m->context) : mpt_error(NULL); }

static model *make(char **word) {
    const model_kind *found = find_kind(word[1]);
    mpt_config config = mpt_config_default();
    config.threads = getenv("THREADS") ? atoi(getenv("THREADS")) : 1;
    config.device = MPT_DEVICE_CPU;
    if (!found || !find_precision(word[2])) return NULL;
    model_kind kind = *found;
    kind.batch = atoi(word[4]);
    model *m = model_new(&kind, word[2], true, &config);
    if (!m) return NULL;
    mpt_data_parallel_config dc = mpt_data_parallel_config_default();
    dc.deterministic = strcmp(word[3], "tree") == 0;
    mpt_parallel_begin(m->context, NULL);
    if (strcmp(word[3], "tree") == 0 || strcmp(word[3], "mean") == 0)
        mpt_data_parallel(m->net, &dc);
    return m;
}

static void run(model *m, mpt_tensor only, long steps) {
    double waited = mpt_parallel_statistics(m->context).seconds_waited;
    mpt_barrier(m->context);
    const double start = measure_wall();
    for (long i = 0; i < steps; i++)
        if (only.context)
            mpt_all_reduce(only, MPT_PARALLEL_MEAN);
        else
            model_step(m);
    mpt_barrier(m->context);
    const double took = (measure_wall() - start) / (double)steps;
    waited = (mpt_parallel_statistics(m->context).seconds_waited - waited) / (double)steps;
    if (rank == 0) printf("took %.9g %.9g\n", took, waited);
}

/* Does what a line says. */
static bool obey(char *line) {
    char *word[8] = {NULL};
    int n = 0;
    for (char *w = strtok(line, " \n"); w && n < 8; w = strtok(NULL, " \n")) word[n++] = w;
    int number = n > 1 ? atoi(word[1]) : 0;
    if (n == 5 && strcmp(word[0], "make") == 0) {
        for (number = 0; number < SUBJECTS - 1 && models[number];) number++;
        models[number] = make(word);
        if (models[number] && strcmp(word[3], "only") == 0)
            reduced[number] = mpt_keep(
                mpt_zeros(models[number]->context, MPT_F32,
                          MPT_SHAPE(mpt_parameter_numel(models[number]->net))));
        if (rank == 0 && models[number] && !mpt_failed(models[number]->context))
            printf("made %d %.17g\n", number, (double)mpt_parameter_numel(models[number]->net));
        else if (rank == 0)
            printf("error %s\n", error_of(models[number]));
        return models[number] != NULL;
    }
    if (n == 3 && strcmp(word[0], "run") == 0 && number >= 0 && number < SUBJECTS &&
        models[number]) {
        run(models[number], reduced[number], atol(word[2]));
        return !mpt_failed(models[number]->context);
    }
    if (rank == 0 && n > 0) printf("error no such command: %s\n", word[0]);
    return false;
}

int main(void) {
    char line[COMMAND];
    mpt_config config = mpt_config_default();
    config.threads = 1;
    control = mpt_create(&config);
    mpt_parallel_config pc = mpt_parallel_config_default();
    pc.deadline = 0;
    mpt_parallel_begin(control, &pc);
    rank = mpt_parallel_rank(control), world = mpt_parallel_world(control);
    bool right = true;
    while (right) {
        memset(line, 0, sizeof line);
        if (rank == 0 && !fgets(line, sizeof line, stdin)) line[0] = '\0';
        mpt_scope_begin(control);
        mpt_tensor t = mpt_from(control, MPT_U8, MPT_SHAPE(COMMAND), line);
        mpt_broadcast(t, 0);
        right = mpt_read(t, line, sizeof line) == MPT_OK;
        mpt_scope_end(control);
        if (!right || !line[0]) break;
        right = obey(line);
        fflush(stdout);
    }
    for (int i = 0; i < SUBJECTS; i++) {
        if (!models[i]) continue;
        if (mpt_failed(models[i]->context)) fprintf(stderr, "%s\n", error_of(models[i]));
        mpt_parallel_end(models[i]->context);
        model_end(models[i]);
    }
    mpt_parallel_end(control);
    mpt_destroy(control);
    return right ? 0 : 1;
}
