/* trainer.h - a training run: open, run, close.
 *
 *   LS_TRY(trainer_open(&config, &options, &refused, &t));    // data, model, checkpoint; the run's folder exists from here on
 *   st = trainer_run(t, &watch);                    // until the last step, a failure, or a signal (see stop.h)
 *   trainer_close(&t);
 *
 * Between steps a run evaluates, saves, and looks for signals. A checkpoint that cannot be saved is a warning, and
 * training goes on; only the last one of a run is a failure. On several ranks all of this is collective; rank 0 writes the
 * run's folder.
 */
#ifndef LS_TRAIN_RUN_TRAINER_H
#define LS_TRAIN_RUN_TRAINER_H

#include "lockstep/checkpoint.h"
#include "train/run/dataset.h"
#include "train/run/evaluate.h"
#include "train/run/metrics.h"
#include "train/run/peak.h"
#include "train/run/run_folder.h"
#include "train/run/step.h"
#include "train/run/trace.h"

struct trainer {
    struct config *config;
    const struct options *options; /* that config was made from */
    double opened;                 /* base_now() */
    struct ranks ranks;
    struct recorder *calls; /* this rank's flight recorder */
    struct trace *trace;    /* NULL: without log.trace */
    struct dataset data;
    struct run_folder folder;
    struct step step;
    struct evaluation evaluation; /* program NULL: there is none */
    ls_schedule schedule;
    ls_loader *loader;
    ls_train_state state;             /* as of now: what a checkpoint would say */
    uint64_t first_step;              /* updates that were done when this process started */
    uint64_t saved_step;              /* of the newest checkpoint of this run; UINT64_MAX: none */
    char *resumed;                    /* checkpoint that it started from; NULL: from scratch or from model.hf */
    double peak_flops;                /* per second, of matmuls in the compute type, all ranks together; NaN: run.measure_peak=off */
    struct peak peak;                 /* where it comes from */
    ls_cost planned;                  /* bytes that the compiled programs hold, of each category the most of any rank */
    struct metrics last;              /* of the last step */
    struct mem_stats most;            /* highest peaks of any step */
    double seconds;                   /* of all steps made here */
    double time[METRICS_TIMES];       /* the same by what they went into */
    uint64_t tokens;                  /* of all steps made here */
    double val_loss;                  /* of the last evaluation; NaN: none */
    int skipped;                      /* steps in a row without an update, up to now */
    uint64_t all_skipped;             /* steps without an update, of those made here */
    char non_finite[NON_FINITE_ROOM]; /* why the last of them has none */
    int stopped_by;                   /* signal; 0: ran to its end */
    int stop, save;                   /* what any rank was asked to: the signal to leave by, a checkpoint */
    bool refused;                     /* data, model or devices could not be opened because of what the options ask for */
    size_t device_taken;              /* bytes of the GPU's memory in use before the run; 0: no GPU */
    bool trial;                       /* trainer_budget.c measures: a checkpoint that is asked for waits until the run begins */
};

/* Callbacks that show progress, on rank 0 only. Members may be NULL. */
struct trainer_watch {
    void *ctx;
    void (*fixed)(void *ctx, const struct trainer *t, const char *line); /* train.time_budget fixed train.steps: a line that says so */
    void (*stepped)(void *ctx, const struct trainer *t, const struct metrics *m);
    void (*saved)(void *ctx, const struct trainer *t, const char *path);
    void (*warned)(void *ctx); /* a warning follows on stderr */
};

/* config and options are borrowed until trainer_close(). */
/* *refused: LS_EINVAL is the options' fault: data and model, once opened, show that they are impossible. */
ls_status trainer_open(struct config *config, const struct options *options, bool *refused, struct trainer **out);
ls_status trainer_run(struct trainer *t, const struct trainer_watch *watch);
void trainer_close(struct trainer **t);
void trainer_note_end(const struct trainer *t, ls_status st); /* how it ended, with this thread's message, for the doctor */

/* Path of the newest checkpoint; free with mem_free. NULL when there is none, or no memory. */
char *trainer_checkpoint(const struct trainer *t);

/* ---- parts of a run that several files share; collective where nothing else is said ---- */

/* Sets train.steps where train.time_budget leaves it open: measured at the start of a run, taken from the checkpoint of a resumed one.
 * A signal meanwhile leaves it open, with a checkpoint of step 0. */
ls_status trainer_fix_steps(struct trainer *t, const struct trainer_watch *watch);
ls_status trainer_step(struct trainer *t, struct metrics *m);             /* the next step, and what ranks tell each other after it */
ls_status trainer_write_checkpoint(struct trainer *t);                    /* of t->state */
ls_status trainer_start_loader(struct trainer *t);                        /* from the next sample of t->state on; closes the one before */
ls_status trainer_config_text(const struct trainer *t, struct text *out); /* what config.yaml says; not collective */
ls_status trainer_write_config(const struct trainer *t);                  /* config.yaml again; rank 0 alone calls it */
bool trainer_must_leave(struct trainer *t);                               /* a signal asked for it; not collective */

#endif
