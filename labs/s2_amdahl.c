/* S2 - Amdahl (1967): a share s of the work that ranks cannot divide limits n of them to a speedup of 1 / (s + (1 - s) / n). 5% serial: 5.9
 * on 8, 15.4 on 64, 18.6 on 256, 20 at most.
 *
 * Corrected: 2% serial on 256 are 42, not 50; 50 is the limit for any number of ranks.
 *
 * Ranks divide a list of work units; rank 0 does the serial ones as well, and each counts what it does. The speedup is all units over those
 * of the busiest rank. */
#include "lab.h"

enum { RANKS_MOST = 256, UNITS = 1 << 22 };

struct work {
    long serial, parallel;
    long done[RANKS_MOST];
};

/* Units of the list that a rank has: every n-th. */
static void work_rank(ls_comm *comm, int rank, int n, void *shared)
{
    struct work *w = shared;
    long done = rank == 0 ? w->serial : 0;

    for (long unit = rank; unit < w->parallel; unit += n) done++;
    w->done[rank] = done;
    if (comm) TRY(ls_barrier(comm));
}

static double speedup(double percent, int n, int by_ranks)
{
    struct work *w = lab_shared(sizeof *w);
    double most = 0;

    w->serial = lround(UNITS * percent / 100);
    w->parallel = UNITS - w->serial;
    if (by_ranks) lab_ranks(n, work_rank, w);
    for (int r = 0; r < n; r++) {
        if (!by_ranks) work_rank(NULL, r, n, w);
        most = fmax(most, (double)w->done[r]);
    }
    lab_unshare(w, sizeof *w);
    return UNITS / most;
}

static double formula(double percent, int n) { return 1 / (percent / 100 + (1 - percent / 100) / n); }

LAB(s2_amdahl, "Amdahl's law", { "ranks", "ranks of the last row", 256, 2, RANKS_MOST },
    { "serial-percent", "share of the work of the last row that is serial", 2, 1, 99 })
{
    int n = (int)lab_size("ranks"), percent = (int)lab_size("serial-percent");
    char what[80];

    lab_open("S2");
    lab_equal("5% serial, 8 ranks (processes): speedup", 5.9, speedup(5, 8, 1), 0.01);
    lab_equal("5% serial, 64 ranks: speedup", 15.4, speedup(5, 64, 0), 0.005);
    lab_equal("5% serial, 256 ranks: speedup", 18.6, speedup(5, 256, 0), 0.005);
    lab_below("5% serial, 256 ranks: below 20", 20, speedup(5, 256, 0));
    snprintf(what, sizeof what, "%d%% serial, %d ranks: speedup", percent, n);
    lab_corrected(what, '=', 100.0 / percent, formula(percent, n), speedup(percent, n, 0), 2e-5,
                  "why: 1 / s is the limit for any number of ranks; n of them also need their share of the rest, (1 - s) / n");
    snprintf(what, sizeof what, "%d%% serial, %d ranks: efficiency [%%]", percent, n);
    lab_check(what, 100 * formula(percent, n) / n, 100 * speedup(percent, n, 0) / n, 1e-3);
    lab_check("2% serial: 78% efficiency is that of 15 ranks [%]", 100 * formula(2, 15) / 15, 100 * speedup(2, 15, 0) / 15, 1e-3);
    return lab_close();
}
