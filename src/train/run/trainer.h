/* trainer.h - a training run: open, run, close.
 *
 *   LS_TRY(trainer_open(&config, &options, &refused, &t));    // opens data, model and checkpoint; creates the run's folder
 *   st = trainer_run(t, &watch);                              // returns after the last step, a failure, or a signal (see stop.h)
 *   trainer_close(&t);
 *
 * Between steps, a run evaluates, saves checkpoints and checks for signals. If a checkpoint cannot be saved, the run warns and continues;
 * only if the last one cannot be saved does the run fail. On several ranks all of this is collective, and rank 0 writes the run's folder.
 */
#ifndef LS_TRAIN_RUN_TRAINER_H
#define LS_TRAIN_RUN_TRAINER_H

#include "lockstep/checkpoint.h"
#include "train/run/cost.h"
#include "train/run/dataset.h"
#include "train/run/evaluate.h"
#include "train/run/metrics.h"
#include "train/run/peak.h"
#include "train/run/run_folder.h"
#include "train/run/samples.h"
#include "train/run/step.h"
#include "train/run/trace.h"

struct trainer {
    struct config *config;
    const struct options *options; /* the options that config was filled from */
    double opened;                 /* base_now() at trainer_open() */
    struct ranks ranks;
    struct recorder *calls; /* this rank's flight recorder */
    struct trace *trace;    /* NULL without log.trace */
    struct dataset data;
    struct run_folder folder;
    struct step step;
    struct evaluation evaluation; /* not open if there are no validation data */
    ls_schedule schedule;
    struct samples samples;
    ls_train_state state;             /* the state that a checkpoint saved now would contain */
    uint64_t first_step;              /* number of updates done before this start */
    double save_seconds;              /* seconds of the last checkpoint, until the next step has recorded them; then 0 */
    uint64_t saved_step;              /* step of this run's newest checkpoint; UINT64_MAX: none */
    char *resumed;                    /* checkpoint that this start loaded; NULL: none, or model.hf */
    double peak_flops;                /* FLOP/s of matmuls in the compute type, all ranks together; NaN: run.measure_peak=off */
    struct peak peak;                 /* how peak_flops was measured */
    ls_cost planned;                  /* planned bytes by category, each of the rank with the most */
    struct metrics last;              /* figures of the last step */
    struct mem_stats most;            /* the highest peaks of any step */
    double seconds;                   /* seconds of all steps of this start */
    double time[METRICS_TIMES];       /* the same seconds by enum metrics_time */
    uint64_t tokens;                  /* tokens of all steps of this start */
    double val_loss;                  /* loss of the last evaluation; NaN: none */
    int skipped;                      /* number of steps without an update since the last update */
    uint64_t all_skipped;             /* number of steps without an update in this start */
    char non_finite[NON_FINITE_ROOM]; /* why the last of these steps had no update */
    int stopped_by;                   /* the signal that stopped the run; 0: none */
    int stop, save;                   /* requests that any rank received: the signal to exit by; to save a checkpoint */
    bool refused;                     /* data, model or device could not be opened because the options are impossible */
    size_t device_taken;              /* bytes of the GPU's memory in use before the run; 0: no GPU */
    size_t collectives_taken;         /* bytes of it that groups of ranks.native use */
    size_t graphs_taken;              /* and that CUDA graphs use so far */
    struct trainer_taken {
        size_t device, collectives, graphs; /* the same bytes, each from the rank with the most */
    } taken;
    struct cost cost; /* cost of the steps of this start, with a method other than allreduce */
    struct cost_figures method,
        reference; /* the same over all ranks; the cost of the steps of reference.c, which has 0 steps if there were none */
    bool trial;    /* the trial of trainer_budget.c is running: a requested checkpoint is saved after it */
};

/* Callbacks that show progress, on rank 0 only. Members may be NULL. */
struct trainer_watch {
    void *ctx;
    void (*fixed)(void *ctx, const struct trainer *t, const char *line); /* train.time_budget has fixed train.steps, as the line says */
    void (*stepped)(void *ctx, const struct trainer *t, const struct metrics *m);
    void (*saved)(void *ctx, const struct trainer *t, const char *path);
    void (*warned)(void *ctx); /* a warning follows on stderr */
};

/* config and options are borrowed until trainer_close(). *refused: true if LS_EINVAL means that the options are impossible, which only the
 * opened data or model show. */
ls_status trainer_open(struct config *config, const struct options *options, bool *refused, struct trainer **out);
ls_status trainer_run(struct trainer *t, const struct trainer_watch *watch);
void trainer_close(struct trainer **t);
void trainer_note_end(const struct trainer *t, ls_status st); /* records st and this thread's message for `lockstep doctor` */

/* Path of the newest checkpoint; free it with mem_free. NULL: there is none, or out of memory. */
char *trainer_checkpoint(const struct trainer *t);

/* ---- parts of a run that several files share; collective unless noted ---- */

/* With train.time_budget, sets train.steps: a new run measures how many steps it has time for, a resumed run reads the number from its
 * checkpoint. If a signal arrives meanwhile, train.steps stays unset and a checkpoint of step 0 exists. */
ls_status trainer_fix_steps(struct trainer *t, const struct trainer_watch *watch);
ls_status trainer_step(struct trainer *t, struct metrics *m); /* runs the next step and combines the figures of all ranks */
/* What follows a step: evaluation, metrics, checkpoint. Collective where an evaluation or a checkpoint is due. */
ls_status trainer_after_step(struct trainer *t, const struct trainer_watch *w, struct metrics *m, bool last);
bool trainer_is_due(const struct trainer *t, uint64_t step);                  /* an evaluation or a checkpoint follows this step */
void trainer_note_step(struct trainer *t, struct metrics *m, double seconds); /* adds m, with its speed, to the run's figures */
double trainer_read_comm(ls_comm_count *out);                                 /* counters so far; returns the seconds that were exposed */
void trainer_note_comm(struct metrics *m, const ls_comm_count *before);       /* what has been added since */
ls_status trainer_write_checkpoint(struct trainer *t);                        /* saves t->state and the store */
ls_status trainer_open_samples(struct trainer *t);                            /* opens the evaluation, and starts the loader */
ls_status trainer_start_loader(struct trainer *t);                            /* (re)starts the loader at the next sample of t->state */
ls_status trainer_config_text(const struct trainer *t, struct text *out);     /* the text of config.yaml; not collective */
ls_status trainer_write_config(const struct trainer *t);                      /* writes config.yaml; only rank 0 calls it */
bool trainer_must_leave(struct trainer *t);                                   /* true if a signal requested an exit; not collective */

#endif
