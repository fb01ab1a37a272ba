/* D7 - batch norm's running statistics are buffers: they are not reduced but broadcast from rank 0 after each step, and each rank
 * normalizes by its own few samples. With synchronized batch norm all ranks use the statistics of the full batch, and a small batch per
 * rank trains like one rank with the full batch.
 *
 * How much it matters: the mean of a rank's few samples varies sqrt(K) times more than that of the samples of K ranks. */
#include "lab_train.h"
#include "lockstep/data.h"

enum { RANKS_MOST = 16, PART_MOST = 8, BATCH_MOST = RANKS_MOST * PART_MOST, ROOM = 1 << 13, PICTURES = 1 << 17 };

static const ls_image_model net = { .channels = 2, .height = 6, .width = 6, .filters = 4, .stages = 1, .blocks = 1, .classes = 5,
                                    .momentum = 0.1, .eps = 1e-5 };

struct shared { int sync, samples; double gradient[ROOM], first[8], mean[RANKS_MOST][64], loss[RANKS_MOST]; };

static void write_images(ls_program *p, int first, int n, int whole)
{
    ls_images set = LS_IMAGES_DEFAULTS;
    static float x[BATCH_MOST * 2 * 6 * 6];
    int32_t y[BATCH_MOST];
    float denominator = (float)whole;

    set.channels = net.channels;
    set.height = net.height;
    set.width = net.width;
    set.classes = net.classes;
    for (int i = 0; i < n; i++) ls_images_get(&set, (uint64_t)(first + i), x + i * 72, &y[i]);
    TRY(ls_program_write(p, "x", x, LS_F32, (size_t)n * 72));
    TRY(ls_program_write(p, "y", y, LS_I32, (size_t)n));
    TRY(ls_program_write(p, "count", &denominator, LS_F32, 1));
}

static int is_running(const char *name) { return strstr(name, "running") != NULL; }

/* Gradients of what learns, and running statistics, one parameter after another. */
static void read_back(const ls_store *s, double *gradient, double *running, double *first)
{
    for (size_t i = 0; i < ls_store_count(s); i++) {
        size_t n = parameter_count(s, i);
        double **to = is_running(ls_store_name(s, i)) ? &running : &gradient;

        TRY(ls_store_read(s, i, is_running(ls_store_name(s, i)) ? "parameter" : "gradient", *to, LS_F64, n));
        if (strcmp(ls_store_name(s, i), "bn1.running_mean") == 0) memcpy(first, *to, n * sizeof **to);
        *to += n;
    }
}

static void batch_norm_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    ls_optimizer sgd = { .kind = LS_SGD };
    ls_data_parallel_options data = LS_DATA_PARALLEL_DEFAULTS;
    ls_store_options f64 = { "cpu", LS_F64, 0, 1, 0 };
    static double gradient[ROOM];
    double first[8];
    size_t b = (size_t)(s->samples / n);
    ls_store *store;
    ls_program *p;

    data.sync_batch_norm = s->sync;
    TRY(ls_store_new(&f64, &store));
    TRY(ls_program_new(store, &p));
    ls_value x = ls_cast(p, ls_input(p, "x", LS_F32, SIZES(b, net.channels, net.height, net.width)), LS_F64);
    ls_value y = ls_input(p, "y", LS_I32, SIZES(b));
    ls_value count = ls_input(p, "count", LS_F32, SIZES(1));
    ls_backward(p, ls_output(p, "loss", ls_image_loss(p, &net, x, y, count, 1)));
    TRY(ls_optimizer_append(p, &sgd));
    if (n > 1) TRY(ls_data_parallel(p, comm, &data));
    TRY(ls_program_compile(p, NULL));
    write_images(p, rank * (int)b, (int)b, s->samples);
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_LAST));
    TRY(ls_program_read(p, "loss", &s->loss[rank], LS_F64, 1));
    TRY(ls_optimizer_set(p, &sgd, 0.1, 1));
    TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    read_back(store, gradient, s->mean[rank], first);
    if (rank == 0) {
        memcpy(s->gradient, gradient, sizeof gradient);
        memcpy(s->first, first, sizeof first);
    }
    ls_program_release(&p);
    ls_store_release(&store);
}

static struct shared *batch_norm_train(int n, int samples, int sync)
{
    struct shared *s = lab_shared(sizeof *s);

    s->sync = sync;
    s->samples = samples;
    lab_ranks(n, batch_norm_run, s);
    return s;
}

static double apart(const double *a, const double *b, int n)
{
    double most = 0, largest = 0;

    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(a[i]));
    }
    return most / largest;
}

static int ranks_that_differ(const struct shared *s, int ranks)
{
    int n = 0;

    for (int r = 1; r < ranks; r++) n += memcmp(s->mean[r], s->mean[0], sizeof s->mean[0]) != 0;
    return n;
}

/* Deviation of the means of so many pictures' first channels, over disjoint groups. */
static double deviation_of_means(const double *picture, int group)
{
    int groups = PICTURES / group;
    double sum = 0, squares = 0;

    for (int g = 0; g < groups; g++) {
        double mean = 0;

        for (int i = 0; i < group; i++) mean += picture[g * group + i] / group;
        sum += mean;
        squares += mean * mean;
    }
    return sqrt((squares - sum * sum / groups) / (groups - 1));
}

/* The factor by which a mean of few samples varies more than one of many. */
static double noise_ratio(int few, int many)
{
    double *picture = malloc(PICTURES * sizeof *picture);
    ls_images set = LS_IMAGES_DEFAULTS;
    float x[72];
    int32_t y;

    if (!picture) exit(1);
    set.channels = net.channels;
    set.height = net.height;
    set.width = net.width;
    set.samples = PICTURES;
    for (int k = 0; k < PICTURES; k++) {
        ls_images_get(&set, (uint64_t)k, x, &y);
        picture[k] = 0;
        for (int i = 0; i < 36; i++) picture[k] += (double)x[i] / 36;
    }
    double ratio = deviation_of_means(picture, few) / deviation_of_means(picture, many);
    free(picture);
    return ratio;
}

LAB(d7_batch_norm, "batch norm over ranks", { "ranks", "data-parallel ranks", 4, 2, RANKS_MOST },
    { "batch", "samples of a rank", 2, 1, PART_MOST })
{
    int n = (int)lab_size("ranks"), b = (int)lab_size("batch");
    struct shared *whole = batch_norm_train(1, n * b, 0), *one = batch_norm_train(1, b, 0);
    struct shared *sync = batch_norm_train(n, n * b, 1), *own = batch_norm_train(n, n * b, 0);
    char what[96];

    lab_open("D7");
    snprintf(what, sizeof what, "%d ranks, %d sample%s each, sync: statistics off from one rank's", n, b, b > 1 ? "s" : "");
    lab_equal(what, 0, apart(whole->mean[0], sync->mean[0], 64), 1e-12);
    lab_equal("       gradients off from one rank's", 0, apart(whole->gradient, sync->gradient, ROOM), 1e-12);
    lab_equal("       ranks whose buffers differ from rank 0's", 0, ranks_that_differ(sync, n), 0);
    lab_check_above("without sync: statistics off from one rank's, more than rounding", 1e-6, apart(whole->mean[0], own->mean[0], 64));
    lab_check_above("       gradients off from one rank's, more than rounding", 1e-6, apart(whole->gradient, own->gradient, ROOM));
    lab_equal("without sync: ranks whose buffers differ from rank 0's", 0, ranks_that_differ(own, n), 0);
    snprintf(what, sizeof what, "       first layer's mean, off from that of rank 0's %d sample%s", b, b > 1 ? "s" : "");
    lab_equal(what, 0, apart(one->first, own->first, 4), 1e-12);
    snprintf(what, sizeof what, "the mean of a rank varies more than that over %d ranks, %d sample%s each, sqrt(K) times", n, b,
             b > 1 ? "s" : "");
    lab_check(what, sqrt(n), noise_ratio(b, n * b), 0.05);
    return lab_close();
}
