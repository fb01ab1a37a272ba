/* run_folder.h - the folder that a run writes.
 *
 *     config.yaml           all options, resolved: `lockstep train --config RUN/config.yaml` resumes the run
 *     tokenizer.json        (or a .tiktoken file) the tokenizer
 *     metrics.jsonl         one line per step, see metrics.h; the first line of every start also has "run": {"hosts": [one per rank]}
 *     events.out.tfevents.* the same for TensorBoard, one file per start
 *     metrics.rank_NNNN.jsonl  metrics of one rank, with log.per_rank
 *     log/rank_NNNN.log     log of each rank; the entries of every start begin with host, process id and cores
 *     log/rank_NNNN.err     standard error of each rank that our launcher started
 *     calls/rank_NNNN       the flight recorder of each rank, see comm/failure/flight_recorder.h; `lockstep doctor RUN` reads it
 *     calls/ended           how the ranks ended, by the launcher: {"exit": code, "line": "...", "ranks": ["exited with code 3", ...]}
 *     trace.json            with log.trace; trace_step_NNNNNNNN.json if the run was resumed after that step
 *     method.json           with a parallel.method other than allreduce, its cost compared with the first steps of allreduce: {"method"
 *                           "ranks" "cost" "allreduce"}, both {steps step_seconds busiest sent received (bytes per step of rank `busiest`)
 *                           memory_rank_0 memory_others loss_step loss}; async also {updates staleness staleness_most}. See reference.h
 *     checkpoints/          step_NNNNNNNN folders
 *     launcher              process id and start time of our launcher while it runs; a launcher that is killed leaves it behind
 *     lock                  locked with flock(2) while a process uses the folder; holds its process id
 */
#ifndef LS_TRAIN_RUN_RUN_FOLDER_H
#define LS_TRAIN_RUN_RUN_FOLDER_H

#include "comm/failure/flight_recorder.h"
#include "lockstep/data.h"
#include "train/run/append.h"
#include "train/config/config.h"
#include "train/launch/launch.h"
#include "train/run/metrics.h"

enum { RUN_HOST = 64 };

struct run_folder {
    char *path, *checkpoints;      /* checkpoints: checkpoint.dir, or a folder inside path */
    char *config, *tokenizer;      /* files that are copied into every checkpoint; tokenizer NULL: none */
    struct append metrics, events; /* metrics of all ranks, open on rank 0; events: closed without log.tensorboard */
    struct append own;             /* metrics of this rank; closed without log.per_rank */
    struct json_out line;          /* buffer of a line, reused */
    int lock;                      /* descriptor; -1: not held */
    char *hosts;                   /* [ranks][RUN_HOST], owned; written into the first line of metrics and of own */
    int ranks;
    bool announced[2]; /* the hosts have been written into metrics, into own */
};

#define RUN_FOLDER_NONE                                                               \
    {                                                                                 \
        .metrics = APPEND_NONE, .events = APPEND_NONE, .own = APPEND_NONE, .lock = -1 \
    }

/* Sets the paths and creates nothing. An empty run.dir is replaced, in *c too, by a name made of the time (UTC). */
ls_status run_folder_name(struct config *c, struct run_folder *out);
void run_folder_close(struct run_folder *r); /* does nothing on RUN_FOLDER_NONE */

/* Locks the folder, if it exists and this process has not locked it yet, until run_folder_close(). LS_EINVAL, with the other process id, if
 * another process has locked it. */
ls_status run_folder_lock(struct run_folder *r);

/* On rank 0: creates and locks the folder, opens its log, writes config.yaml and the tokenizer (NULL: none), removes the lines of metrics
 * after `step`, and opens metrics and events. */
ls_status run_folder_start(struct run_folder *r, const struct config *c, const char *config_yaml, const ls_tokenizer *tokenizer,
                           uint64_t step);
/* On any other rank, after rank 0 has created the folder: opens its log and, with log.per_rank, its metrics. */
ls_status run_folder_follow(struct run_folder *r, const struct config *c, int rank, uint64_t step);
/* Writes into RUN/calls/ended how the launch ended that began at `began` (unix time), unless calls/ is from an earlier launch. */
void run_folder_note_end(const struct run_folder *r, double began, int code, const char *line, int ranks, char (*ends)[LAUNCH_END]);
void run_host(char out[RUN_HOST]); /* name of this machine */
/* Writes and removes RUN/launcher, which names this process as the launcher of the ranks. `lockstep doctor` reads it; failures are
 * ignored. */
void run_folder_note_launcher(const struct run_folder *r);
void run_folder_forget_launcher(const struct run_folder *r);
/* True if the launcher that RUN/launcher names is running. *pid: its process id, 0 if there is no such file. */
bool run_folder_launcher(const char *run, int64_t *pid);
/* Opens RUN/calls/rank_NNNN as the flight recorder of this process. launched: true if its parent is our launcher. */
ls_status run_folder_calls(const struct run_folder *r, int rank, int ranks, bool launched, struct recorder **out);

/* Appends a line of metrics and a record of events. A full disk causes one warning, see append.h. */
ls_status run_folder_put(struct run_folder *r, const struct metrics *m);
ls_status run_folder_put_own(struct run_folder *r, const struct metrics *m); /* does nothing without log.per_rank */

#endif
