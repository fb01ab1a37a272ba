/* T4 - tensor parallelism cuts weights, optimizer state and activations by T; FSDP leaves the activations of a rank whole; too high a T
 * starves the matrix units.
 *
 * The ledger of plans, a GPT-2 of 8 layers, width 512, 1024 tokens. Norms and biases behind a sum stay whole under tp, and without
 * sequence parallelism the residual stream does (T5): activations fall by less than T then. FSDP over as many ranks, each with as
 * many samples as the one rank had.
 *
 * Starving: a product's operations are 1/T of the whole's, but its input or output is as wide as ever, so there are fewer operations a
 * byte. That number is the program's own; the speed of this machine is printed beside it (of it nothing is asked but that the
 * narrowest is not the fastest). */
#include "lab_text.h"
#include "lab_mesh.h"

enum { T = 8, ROWS = 256, WIDTH = 1024, REPEATS = 10 };

static ls_cost price(int tp, int dp, int sp, size_t *elements)
{
    struct net n = net_gpt2(8, 64, 1024);
    struct spread s;
    ls_cost c;

    n.model.vocab = 64;
    n.samples = 2 * dp;
    n.shape.tp = tp;
    n.shape.dp = dp;
    n.options.sp = sp;
    n.data.zero = dp > 1 ? 3 : 0;
    spread_plan(&n, 0, tp * dp, &s);
    c = ls_program_cost(s.program);
    *elements = ls_store_elements(s.store);
    spread_close(&s);
    return c;
}

static void row(const char *what, const ls_cost *c)
{
    printf("%-24s %12.2f %12.2f %12.2f %14.2f\n", what, (double)c->parameters / 1e6, (double)c->gradients / 1e6, (double)c->optimizer / 1e6,
           (double)c->activations / 1e6);
}

/* Parameters that tp leaves whole: norms, biases behind a sum, positions. */
static double whole(void) { return 8 * (4 + 2) * 512.0 + 2 * 512.0 + 1024 * 512.0; }

/* A product of WIDTH/t columns: operations a byte by the program's text, and seconds. */
static double product(size_t t, double *per_byte)
{
    double best = 1e9;
    struct lines l;
    ls_program *p;
    ls_store *s;
    ls_value x, w;

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    x = ls_input(p, "x", LS_F32, SIZES(ROWS, WIDTH));
    w = ls_param(p, "w.weight", (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(WIDTH / t, WIDTH));
    ls_output(p, "y", ls_linear(p, x, w, LS_NONE));
    TRY(ls_program_compile(p, NULL));
    l = lines_read(p);
    for (int k = 0; k < l.n; k++)
        if (line_is(&l.at[k], "linear")) *per_byte = l.at[k].flops / l.at[k].bytes;
    free(l.at);
    for (int k = 0; k < REPEATS; k++) {
        double from = seconds_now();

        TRY(ls_program_run(p, LS_FORWARD));
        best = fmin(best, seconds_now() - from);
    }
    ls_program_release(&p);
    ls_store_release(&s);
    return 2.0 * ROWS * WIDTH * (WIDTH / (double)t) / best;
}

int main(void)
{
    size_t n, again;
    ls_cost one = price(1, 1, 0, &n), tensor = price(T, 1, 0, &again), sequence = price(T, 1, 1, &again), fsdp = price(1, T, 0, &again);
    double cut = (double)n - whole(), per_byte[9], previous = INFINITY, fastest = 0, rate = 0;
    int fewer = 0, i = 0;

    printf("MB of a rank, %.1f million parameters\n%-24s %12s %12s %12s %14s\n", (double)n / 1e6, "", "parameters", "gradients", "optimizer",
           "activations");
    row("one rank", &one);
    row("tp 8", &tensor);
    row("tp 8, sp", &sequence);
    row("FSDP 8", &fsdp);
    printf("\na product [%d,%d] x [%d,%d/T]\n%6s %20s %12s\n", ROWS, WIDTH, WIDTH, WIDTH, "T", "operations a byte", "GFLOP/s");
    for (size_t t = 1; t <= 256; t *= 2, i++) {
        rate = product(t, &per_byte[i]);
        fastest = fmax(fastest, rate);
        printf("%6zu %20.1f %12.1f\n", t, per_byte[i], rate / 1e9);
        fewer += per_byte[i] < previous;
        previous = per_byte[i];
    }
    printf("\n");
    lab_open("T4", "TP cuts weights, optimizer and activations by T; FSDP leaves activations whole; too high a T starves");
    lab_equal("tp 8: weights / one rank's, norms and positions left whole", (cut / T + whole()) / (double)n,
              (double)tensor.parameters / (double)one.parameters, 1e-12);
    lab_equal("        optimizer state, the same", (cut / T + whole()) / (double)n, (double)tensor.optimizer / (double)one.optimizer, 1e-12);
    lab_below("        activations / one rank's", 0.5, (double)tensor.activations / (double)one.activations);
    lab_below("        with sequence parallelism", 0.3, (double)sequence.activations / (double)one.activations);
    lab_equal("FSDP 8: weights / one rank's", 1.0 / T, (double)fsdp.parameters / (double)one.parameters, 1e-6);
    lab_equal("        optimizer state", 1.0 / T, (double)fsdp.optimizer / (double)one.optimizer, 1e-6);
    lab_equal("        activations / one rank's", 1, (double)fsdp.activations / (double)one.activations, 1e-3);
    lab_equal("products with fewer operations a byte than the wider one", 9, fewer, 0);
    lab_below("        T = 16, of the whole's", 0.5, per_byte[4] / per_byte[0]);
    lab_below("        speed at T = 256, of the fastest", 1, rate / fastest);
    return lab_close();
}
