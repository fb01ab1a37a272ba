/* run_folder.h - the folder that a run writes.
 *
 *     config.yaml           what the run was told, resolved: `lockstep train --config RUN/config.yaml` resumes it
 *     tokenizer.json        (or a .tiktoken file) what ids mean
 *     metrics.jsonl         a line a step, see metrics.h; the first line of every start has "run": {"hosts": [one a rank]} too
 *     events.out.tfevents.* TensorBoard's, one file a start
 *     metrics.rank_NNNN.jsonl  the same of one rank, with log.per_rank
 *     log/rank_NNNN.log     what each rank logged; every start begins with its host, process and cores
 *     log/rank_NNNN.err     what each rank wrote to standard error, where our launcher started it
 *     calls/rank_NNNN       what each rank does and its last calls, see comm/failure/flight_recorder.h; `lockstep doctor RUN` reads them
 *     calls/ended           how the launcher saw the ranks end: {"exit": code, "line": "...", "ranks": ["exited with code 3", ...]}
 *     trace.json            with log.trace; trace_step_NNNNNNNN.json of a start that resumed after that step
 *     checkpoints/          step_NNNNNNNN folders
 *     launcher              process number and start of our launcher while it lives, and after it was killed
 *     lock                  held with flock(2) while a process runs here, whose number it has
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
    char *path, *checkpoints;      /* checkpoints: of checkpoint.dir, or inside */
    char *config, *tokenizer;      /* files to keep with a checkpoint; tokenizer NULL: none */
    struct append metrics, events; /* metrics: of all ranks, rank 0 has it; events: closed without log.tensorboard */
    struct append own;             /* metrics of this rank alone; closed without log.per_rank */
    struct json_out line;          /* reused */
    int lock;                      /* descriptor; -1: not held */
    char *hosts;                   /* [ranks][RUN_HOST], ours: told with the first lines of metrics */
    int ranks;
    bool announced[2]; /* of metrics, of own */
};

#define RUN_FOLDER_NONE                                                               \
    {                                                                                 \
        .metrics = APPEND_NONE, .events = APPEND_NONE, .own = APPEND_NONE, .lock = -1 \
    }

/* Finds the names of things and makes nothing. A run.dir that is empty gets a name by the time (UTC), put into *c. */
ls_status run_folder_name(struct config *c, struct run_folder *out);
void run_folder_close(struct run_folder *r); /* of RUN_FOLDER_NONE a no-op */

/* Takes the folder for this process until run_folder_close(), when the folder is there and not taken yet by this one.
 * LS_EINVAL with the other's number when another process runs in it. */
ls_status run_folder_lock(struct run_folder *r);

/* Makes the folder, takes it, opens its log, writes config.yaml and the tokenizer (NULL: none), takes back lines of
 * steps after `step`, opens metrics and events. */
ls_status run_folder_start(struct run_folder *r, const struct config *c, const char *config_yaml, const ls_tokenizer *tokenizer,
                           uint64_t step);
/* What a rank other than 0 opens, once rank 0 has made the folder: its log, its own metrics with log.per_rank. */
ls_status run_folder_follow(struct run_folder *r, const struct config *c, int rank, uint64_t step);
/* How the launch ended that began at `began` (unix time), into RUN/calls/ended, unless the run there is an older one. */
void run_folder_note_end(const struct run_folder *r, double began, int code, const char *line, int ranks, char (*ends)[LAUNCH_END]);
void run_host(char out[RUN_HOST]); /* of this machine */
/* This process launches ranks in the folder, or does no more: written and removed for the doctor, who misses it without an error. */
void run_folder_note_launcher(const struct run_folder *r);
void run_folder_forget_launcher(const struct run_folder *r);
/* Whether the launcher that RUN/launcher names lives; *pid: its number, 0 where there is none. */
bool run_folder_launcher(const char *run, int64_t *pid);
/* Opens RUN/calls/rank_NNNN as the flight recorder of this process. launched: its parent is our launcher. */
ls_status run_folder_calls(const struct run_folder *r, int rank, int ranks, bool launched, struct recorder **out);

/* A line of metrics and a record of events. Full disks are warned about once, see append.h. */
ls_status run_folder_put(struct run_folder *r, const struct metrics *m);
ls_status run_folder_put_own(struct run_folder *r, const struct metrics *m); /* without log.per_rank: nothing */

#endif
