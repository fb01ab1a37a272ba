/* cmd_bench_comm.c - `lockstep bench comm`: times collectives on real ranks, or prints a list of steps without starting ranks.
 *
 * The table has the columns of nccl-tests: size of the complete buffer, elements of a rank's block, time of one call, algbw = size / time,
 * busbw = algbw x the share of the buffer that each rank's link carries, and wrong elements; all for separate buffers, then in place. The
 * time is the median of the timed calls; four more columns have the minima and maxima. GB are 10^9 bytes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/comm_flags.h"
#include "cli/comm_steps.h"
#include "cli/comm_tune.h"
#include "cli/launching.h"
#include "comm/comm.h"
#include "device/device.h"
#include "train/run/rank_devices.h"

enum { USUAL_FACTOR = 4, USUAL_ITERATIONS = 20, NCCL_RANKS_MOST = 64 };

static const char *print_steps, *operation, *min_text = "1KiB", *max_text = "256MiB", *type_name = "f32", *step_text;
static const char *algorithm_name, *bench_comm_memory = "comm", *table_path, *write_path;
static int64_t factor, iterations, warmup = 5, checks = 1, gpus, threads, count = 0, rank_shown = -1, root = 0;
static bool json, tune;
static struct flag_strings op_words;

/* The values of the flags above; set by check_comm(). */
static struct {
    ls_collective op;
    ls_redop redop;
    ls_dtype type;
    size_t min, max, step;
    const struct algorithm *algorithm;
} request;

static const struct flag bench_comm_flags[] = {
    { "op", FLAG_STRINGS, &op_words, 0, 0, "OP",
      "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or sendrecv [all_reduce], or the reduction: sum, avg or max [sum]; "
      "may be given once for each" },
    { "min", FLAG_STRING, &min_text, 0, 0, "BYTES", "smallest buffer; K, M and G are powers of 1024 [1KiB]" },
    { "max", FLAG_STRING, &max_text, 0, 0, "BYTES", "largest buffer [256MiB]" },
    { "factor", FLAG_INT, &factor, 2, 1024, "F", "factor from one size to the next [4]" },
    { "stepbytes", FLAG_STRING, &step_text, 0, 0, "BYTES", "bytes from one size to the next, instead of a factor" },
    { "type", FLAG_STRING, &type_name, 0, 0, "TYPE",
      "type of the elements: float, double, half, bfloat16, int32, int64, uint8, or f32 and so on [f32]" },
    { "root", FLAG_INT, &root, 0, 65535, "R", "root of a broadcast [0]" },
    { "check", FLAG_INT, &checks, 0, 1e6, "0|1", "1: compare every element with its expected value; 0: do not [1]" },
    { "iterations", FLAG_INT, &iterations, 1, 1e6, "N", "number of timed calls [20]; with -g also -n N, as in nccl-tests" },
    { "warmup", FLAG_INT, &warmup, 0, 1e6, "N", "number of untimed calls before the timed ones [5]" },
    { "ngpus", FLAG_INT, &gpus, 1, LS_MESH_RANKS_MOST, "N",
      "number of ranks to start, like nccl-tests' GPUs; -n then counts iterations, as it does there. Without -g, -n counts ranks" },
    { "nthreads", FLAG_INT, &threads, 1, LS_MESH_RANKS_MOST, "N", "with -g: start N x G ranks, as in nccl-tests [1]" },
    { "algorithm", FLAG_STRING, &algorithm_name, 0, 0, "NAME",
      "use this algorithm; \"native\" is the transport's native collective [chosen by size]" },
    { "comm-table", FLAG_STRING, &table_path, 0, 0, "FILE", "choose algorithms by this comm table, which --tune --write has written" },
    { "memory", FLAG_STRING, &bench_comm_memory, 0, 0, "KIND",
      "where buffers are allocated; comm: in the transport's memory, plain: in the process's own memory [comm]" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print the figures as JSON" },
    { "tune", FLAG_SWITCH, &tune, 0, 0, NULL, "time every algorithm of every operation and print a comm table" },
    { "write", FLAG_STRING, &write_path, 0, 0, "FILE", "write the comm table to this file" },
    { "print-steps", FLAG_STRING, &print_steps, 0, 0, "OP", "print the steps of an operation on -n ranks without starting them" },
    { "count", FLAG_INT, &count, 0, STEPS_COUNT_MOST, "N", "elements of the buffer whose steps are printed [2 per rank]" },
    { "rank", FLAG_INT, &rank_shown, 0, STEPS_RANKS_MOST - 1, "R", "print only the steps of this rank" },
    { 0 },
};

/* nccl-tests' names, and an earlier one of ours. */
static const struct flag_alias aliases[] = {
    { 'o', NULL, "op" },
    { 'b', "minbytes", "min" },
    { 'e', "maxbytes", "max" },
    { 'f', "stepfactor", "factor" },
    { 'i', NULL, "stepbytes" },
    { 'd', "datatype", "type" },
    { 'r', NULL, "root" },
    { 'c', NULL, "check" },
    { 0, "iters", "iterations" },
    { 'w', "warmup_iters", "warmup" },
    { 'g', NULL, "ngpus" },
    { 't', NULL, "nthreads" },
    { 0, "choices", "comm-table" }, /* its name in earlier versions */
    { 0, NULL, NULL },
};

/* ---- usage ---- */

/* With -g the arguments are those of nccl-tests, where -n counts iterations; otherwise -n counts ranks, as in every command. */
static ls_status complete(struct invocation *in)
{
    int64_t n = in->config.launch.ranks;
    bool started = in->world.launcher != LAUNCHER_NONE;
    bool short_sizes = step_text || strcmp(min_text, "1KiB") != 0 || strcmp(max_text, "256MiB") != 0;

    if (in->earlier_ranks)
        return ls_fail(LS_EINVAL,
                       "-n %" PRId64 " and -n %" PRId64 " are both given: -n counts ranks, and --iterations timed calls; write -n %" PRId64
                       " --iterations %" PRId64,
                       in->earlier_ranks, n, MIN(in->earlier_ranks, n), MAX(in->earlier_ranks, n));
    if (threads && !gpus)
        return ls_fail(LS_EINVAL, "%s %" PRId64 " needs -g, which sets the ranks", args_as_written(in, "nthreads"), threads);
    if (gpus && n && !in->short_ranks)
        return ls_fail(LS_EINVAL, "--launch.ranks=%" PRId64 " and %s %" PRId64 " both set the ranks; leave one out", n,
                       args_as_written(in, "ngpus"), gpus);
    if (gpus && n && iterations)
        return ls_fail(LS_EINVAL, "-n %" PRId64 " and %s %" PRId64 " are both given, and with %s both count iterations; leave one out", n,
                       args_as_written(in, "iterations"), iterations, args_as_written(in, "ngpus"));
    if (gpus * MAX(threads, (int64_t)1) > LS_MESH_RANKS_MOST)
        return ls_fail(LS_EINVAL, "-g %" PRId64 " with -t %" PRId64 " are too many ranks; at most %d are possible", gpus, threads,
                       LS_MESH_RANKS_MOST);
    if (gpus && n) iterations = n;
    if (!iterations) iterations = USUAL_ITERATIONS;
    if (gpus && (n || !started)) in->config.launch.ranks = started ? 0 : gpus * MAX(threads, (int64_t)1);
    if (!gpus && started && n > 0 && n != in->world.size)
        return ls_fail(LS_EINVAL,
                       "-n %" PRId64 ": %d ranks were started, and -n counts ranks; write --iters %" PRId64
                       ", or add -g 1, with which -n counts iterations as in nccl-tests",
                       n, in->world.size, n);
    if (!gpus && short_sizes && n > NCCL_RANKS_MOST && !started)
        return ls_fail(LS_EINVAL,
                       "-n %" PRId64 " would start that many ranks; for iterations write --iters %" PRId64
                       ", or -g RANKS, with which -n counts iterations as in nccl-tests",
                       n, n);
    return LS_OK;
}

/* Writes the flag for an argument that is an operation or a number of ranks. */
static bool meant(const char *argument, char *out, size_t room)
{
    ls_collective op;
    ls_redop redop;
    int64_t n;

    if (text_read_int(argument, &n) && n > 0)
        snprintf(out, room, "-n %" PRId64, n);
    else if (strcmp(argument, "sendrecv") == 0 || comm_read_op("--op", argument, &op, &redop) == LS_OK)
        snprintf(out, room, "--op=%s", argument);
    else
        return false;
    return true;
}

static ls_status check_algorithm(void)
{
    if (!algorithm_name) return LS_OK;
    ls_status st = algorithm_force(request.op, algorithm_name);
    if (st != LS_OK) return ls_fail_at(st, "--algorithm");
    request.algorithm = algorithm_named(request.op, algorithm_name);
    return LS_OK;
}

static ls_status check_steps(const struct invocation *in, int ranks)
{
    LS_TRY(comm_read_op("--print-steps", print_steps, &request.op, NULL));
    LS_TRY(check_algorithm());
    if (ranks > STEPS_RANKS_MOST) return ls_fail(LS_EINVAL, "-n %d: steps can be printed for at most %d ranks", ranks, STEPS_RANKS_MOST);
    if (count == 0) count = 2 * ranks;
    if (!request.algorithm) request.algorithm = algorithm_choose(request.op, (size_t)count * 4, ranks, false);
    if (!request.algorithm) return ls_fail(LS_EINVAL, "--print-steps: %s is a single message and has no steps", print_steps);
    if (rank_shown >= ranks) return ls_fail(LS_EINVAL, "--rank %" PRId64 ": there are %d ranks, numbered from 0", rank_shown, ranks);
    if (root >= ranks)
        return ls_fail(LS_EINVAL, "%s %" PRId64 ": there are %d ranks, numbered from 0", args_as_written(in, "root"), root, ranks);
    return LS_OK;
}

static ls_status cmd_bench_comm_check_sizes(const struct invocation *in)
{
    const char *min = args_as_written(in, "min"), *max = args_as_written(in, "max"), *step = args_as_written(in, "stepbytes");

    LS_TRY(comm_read_bytes(min, min_text, &request.min));
    LS_TRY(comm_read_bytes(max, max_text, &request.max));
    if (request.min > request.max) return ls_fail(LS_EINVAL, "%s %s is more than %s %s", min, min_text, max, max_text);
    if (step_text && (factor || tune))
        return ls_fail(LS_EINVAL, "%s cannot be combined with %s", step, factor ? args_as_written(in, "factor") : "--tune");
    if (step_text) LS_TRY(comm_read_bytes(step, step_text, &request.step));
    if (!factor) factor = USUAL_FACTOR;
    return LS_OK;
}

static bool sums(void) { return request.op == LS_COLLECTIVE_ALL_REDUCE || request.op == LS_COLLECTIVE_REDUCE_SCATTER; }

static ls_status check_reduction(const struct invocation *in, int64_t ranks, const struct comm_words *given)
{
    const char *of = args_as_written(in, "root");

    if (given->redop && !sums())
        return ls_fail(LS_EINVAL, "%s %s applies only to all_reduce and reduce_scatter: %s reduces nothing; leave it out",
                       given->redop_flag, given->redop, operation);
    if (request.redop == LS_AVG && checks && (ranks & (ranks - 1)))
        return ls_fail(LS_EINVAL,
                       "%s avg with -n %" PRId64 ": the mean is not exact, so results cannot be compared; use -c 0, or 2, 4 or 8 ranks",
                       given->redop_flag, ranks);
    if (root && request.op != LS_COLLECTIVE_BROADCAST) return ls_fail(LS_EINVAL, "%s %" PRId64 " needs --op broadcast", of, root);
    if (root >= ranks && ranks > 1)
        return ls_fail(LS_EINVAL, "%s %" PRId64 ": there are %" PRId64 " ranks (-n), numbered from 0", of, root, ranks);
    return LS_OK;
}

static ls_status check_times(const struct invocation *in, int64_t ranks)
{
    const char *type = args_as_written(in, "type");
    struct comm_words given;

    LS_TRY(comm_sort_words(&op_words, &given));
    operation = given.op ? given.op : "all_reduce";
    if (strcmp(operation, "sendrecv") == 0)
        request.op = LS_COLLECTIVE_SEND;
    else
        LS_TRY(comm_read_op(given.op_flag, operation, &request.op, &request.redop));
    if (given.redop) LS_TRY(comm_read_op(given.redop_flag, given.redop, &request.op, &request.redop));
    if (strcmp(operation, "sendrecv") != 0 && (!comm_times_has(request.op) || request.op == LS_COLLECTIVE_SEND))
        return ls_fail(LS_EINVAL, "%s: %s has no bytes to time%s", given.op_flag, operation,
                       request.op == LS_COLLECTIVE_BARRIER ? "" : "; sendrecv does both");
    LS_TRY(check_algorithm());
    LS_TRY(cmd_bench_comm_check_sizes(in));
    LS_TRY(comm_read_type(type, type_name, &request.type));
    LS_TRY(check_reduction(in, ranks, &given));
    if (strcmp(bench_comm_memory, "comm") != 0 && strcmp(bench_comm_memory, "plain") != 0)
        return ls_fail(LS_EINVAL, "--memory: '%s' is neither comm nor plain", bench_comm_memory);
    bool half = request.type == LS_BF16 || request.type == LS_F16;
    if (half && sums() && request.algorithm && !request.algorithm->half)
        return ls_fail(LS_EINVAL, "--algorithm %s rounds %s between its steps; use direct, which sums in f32, or %s f32", algorithm_name,
                       type_name, type);
    if (ranks < 2)
        return ls_fail(LS_EINVAL, "a single rank sends nothing, so there is nothing to measure; start more, as in: lockstep bench comm %s",
                       gpus ? "-g 2 (with -g, -n counts iterations)" : "-n 2");
    return LS_OK;
}

static ls_status check_comm(const struct invocation *in)
{
    if (print_steps && (tune || json)) return ls_fail(LS_EINVAL, "--print-steps cannot be combined with --tune or --json");
    if (!print_steps && (count > 0 || rank_shown >= 0)) return ls_fail(LS_EINVAL, "--count and --rank apply only to --print-steps");
    if (tune && (json || algorithm_name)) return ls_fail(LS_EINVAL, "--tune cannot be combined with --json or --algorithm");
    if (write_path && !tune) return ls_fail(LS_EINVAL, "--write applies only to --tune");
    if (table_path && (tune || algorithm_name)) return ls_fail(LS_EINVAL, "--comm-table cannot be combined with --tune or --algorithm");
    if (table_path) LS_TRY(algorithm_load_table(table_path));
    if (!print_steps && (tune || algorithm_name || table_path) && in->config.run.device_facts.memory)
        return ls_fail(LS_EINVAL, "--%s applies only to run.device=cpu: on a GPU launch.comm chooses what makes the calls",
                       tune             ? "tune"
                       : algorithm_name ? "algorithm"
                                        : "comm-table");
    return print_steps ? check_steps(in, (int)in->config.launch.ranks) : check_times(in, in->config.launch.ranks);
}

/* ---- the table ---- */

/* "all_reduce", "sendrecv" */
static const char *timed_name(const struct comm_times *t) { return t->op == LS_COLLECTIVE_SEND ? "sendrecv" : ls_collective_name(t->op); }

struct row {
    size_t bytes, count;
    double algbw[2], busbw[2];
    struct comm_time time[2];
}; /* index 0: separate buffers, 1: in place; bandwidths in GB/s */

/* What makes the calls: a transport, or on a GPU what launch.comm has chosen. */
static const char *made_by(const struct comm_times *t, const struct ranks *r)
{
    return r->native ? r->collectives : ls_comm_transport(t->comm);
}

static const char *algorithm_used(void) { return algorithm_name ? algorithm_name : "by the comm table"; }

static void bench_comm_put_head(const struct comm_times *t, const struct ranks *r)
{
    printf("# lockstep bench comm: %s of %d ranks over %s", timed_name(t), t->n, made_by(t, r));
    if (!r->native) printf("%s, algorithm %s", t->device ? ", staged through the host" : "", algorithm_used());
    printf(", %s memory", bench_comm_memory);
    if (t->device) printf(" of device %s, each call waited for by the host", t->device->name);
    puts("");
    if (r->collectives_why[0]) printf("# %s: %s\n", r->collectives, r->collectives_why);
    printf("# %d untimed calls, then %d timed calls, one after another; time: the slowest rank's median, minimum and maximum\n", t->warmup,
           t->iterations);
    if (t->op == LS_COLLECTIVE_BROADCAST) puts("# a broadcast has one buffer: both halves are in place");
    if (t->op == LS_COLLECTIVE_SEND) puts("# sendrecv needs two buffers: neither half is in place");
    if (t->unchecked) puts("# values are not checked (-c 0)");
    puts("#\n#                                                              out-of-place                       in-place          "
         "      out-of-place          in-place\n"
         "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
         "      min       max       min       max\n"
         "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       "
         "     (us)      (us)      (us)      (us)");
}

static void put_us(double seconds, int width)
{
    double us = seconds * 1e6;

    printf("  %*.*f", width, us < 100 ? 2 : us < 10000 ? 1 : 0, us);
}

static void put_row(const struct comm_times *t, const struct row *r)
{
    printf("%12zu  %12zu  %8s  %6s  %6d", r->bytes, r->count, comm_type_name(t->type), sums() ? comm_redop_name(t->redop) : "none",
           t->op == LS_COLLECTIVE_BROADCAST ? t->root : -1);
    for (int i = 0; i < 2; i++) {
        put_us(r->time[i].seconds, 7);
        printf("  %6.2f  %6.2f", r->algbw[i], r->busbw[i]);
        if (t->unchecked)
            printf("  %5s", "N/A");
        else
            printf("  %5" PRId64, r->time[i].wrong);
    }
    for (int i = 0; i < 2; i++) {
        put_us(r->time[i].least, i ? 8 : 7);
        put_us(r->time[i].most, 8);
    }
    printf("\n");
    fflush(stdout);
}

static void put_json_row(const struct comm_times *t, const struct ranks *ranks, const struct row *r, struct json_out *j)
{
    static const char *const names[] = { "out_of_place", "in_place" };

    json_begin_object(j, NULL);
    json_put_string(j, "op", timed_name(t));
    if (sums()) json_put_string(j, "redop", comm_redop_name(t->redop));
    json_put_int(j, "ranks", t->n);
    if (t->device) json_put_string(j, "device", t->device->name);
    json_put_string(j, "transport", made_by(t, ranks));
    if (!ranks->native) json_put_string(j, "algorithm", algorithm_used());
    json_put_string(j, "memory", bench_comm_memory);
    json_put_string(j, "type", ls_dtype_name(t->type));
    json_put_int(j, "bytes", (int64_t)r->bytes);
    json_put_int(j, "count", (int64_t)r->count);
    for (int i = 0; i < 2; i++) {
        json_begin_object(j, names[i]);
        json_put_real(j, "seconds", r->time[i].seconds);
        json_put_real(j, "min_seconds", r->time[i].least);
        json_put_real(j, "max_seconds", r->time[i].most);
        json_put_real(j, "algbw", r->algbw[i]);
        json_put_real(j, "busbw", r->busbw[i]);
        if (!t->unchecked) json_put_int(j, "wrong", r->time[i].wrong);
        json_end_object(j);
    }
    json_end_object(j);
}

static ls_status take_row(const struct comm_times *t, size_t bytes, struct row *out)
{
    out->count = comm_times_count(t, bytes);
    out->bytes = comm_times_bytes(t, out->count);
    for (int i = 0; i < 2; i++) {
        LS_TRY(comm_times_take(t, out->count, i, &out->time[i]));
        out->algbw[i] = (double)out->bytes / out->time[i].seconds * 1e-9;
        out->busbw[i] = out->algbw[i] * comm_times_bus(t->op, t->n);
    }
    return LS_OK;
}

static ls_status cmd_bench_comm_measure(const struct comm_times *t, const struct ranks *ranks, struct json_out *j)
{
    double bus = 0;
    int64_t wrong = 0;
    int rows = 0;

    for (size_t bytes = request.min; bytes <= request.max; bytes = request.step ? bytes + request.step : bytes * (size_t)factor) {
        struct row r;

        LS_TRY(take_row(t, bytes, &r));
        bus += r.busbw[0] + r.busbw[1];
        wrong += r.time[0].wrong + r.time[1].wrong;
        rows += 2;
        if (t->rank == 0 && json)
            put_json_row(t, ranks, &r, j);
        else if (t->rank == 0)
            put_row(t, &r);
        if (bytes > SIZE_MAX / (size_t)factor || bytes > SIZE_MAX - request.step) break;
    }
    if (t->rank == 0 && !json && !t->unchecked) printf("# Out of bounds values : %" PRId64 " %s\n", wrong, wrong ? "FAILED" : "OK");
    if (t->rank == 0 && !json) printf("# Avg bus bandwidth    : %g\n", bus / rows);
    return comm_times_verdict(t, wrong);
}

static ls_status measure_and_print(const struct comm_times *t, const struct ranks *r)
{
    struct json_out j = { 0 };

    if (t->rank == 0 && !json) bench_comm_put_head(t, r);
    if (json) json_begin_array(&j, NULL);
    ls_status st = cmd_bench_comm_measure(t, r, &j);
    if (json) json_end_array(&j);
    if (st == LS_OK && json) st = json_out_status(&j);
    if (st == LS_OK && json && t->rank == 0) puts(j.text);
    json_out_free(&j);
    return st;
}

/* ---- tuning ---- */

static ls_status tune_and_write(struct comm_times *t)
{
    struct text table = { 0 };
    ls_status st = comm_tune(t, request.min, request.max, (size_t)factor, &table);

    if (st == LS_OK && t->rank == 0 && write_path)
        st = file_write(write_path, table.data, table.bytes);
    else if (st == LS_OK && t->rank == 0)
        printf("\n%s", table.data);
    text_free(&table);
    return st;
}

/* ---- the command ---- */

/* Opens the device that has the buffers, unless it is the processor, and the groups of its collectives that the operation needs. */
static ls_status open_device(const struct invocation *in, struct comm_times *t, struct ranks *r)
{
    const struct device *d = device_find(config_device(&in->config));
    bool exchanges = t->op == LS_COLLECTIVE_ALL_TO_ALL, messages = t->op == LS_COLLECTIVE_SEND;

    if (!d) return LS_EUNSUPPORTED;
    if (d->immediate) return LS_OK;
    t->device = d;
    LS_TRY(rank_devices_compare(&in->config, &in->world, r));
    if (!r->native) return LS_OK;
    return comm_open_native(
        t->comm, d, r->native,
        &(struct native_spec){
            .collectives = !exchanges && !messages, .exchanges = exchanges, .step = messages, .share = 1, .shares = messages ? 2 : 1 });
}

static ls_status run_times(const struct invocation *in)
{
    const struct world *w = &in->world;
    struct ranks r = RANKS_ALONE;
    struct comm_times t = {
        .rank = w->rank,
        .n = w->size,
        .op = request.op,
        .type = request.type,
        .redop = request.redop,
        .root = (int)root,
        .unchecked = checks == 0,
        .plain = strcmp(bench_comm_memory, "plain") == 0,
        .warmup = (int)warmup,
        .iterations = (int)iterations,
    };

    LS_TRY(ls_comm_open(w->size > 1 ? w->where : "shm:alone", w->rank, w->size, &t.comm));
    ls_comm_set_timeout(t.comm, in->config.launch.timeout);
    r = (struct ranks){ .comm = t.comm, .rank = t.rank, .size = t.n };
    ls_status st = open_device(in, &t, &r);
    if (st == LS_OK) st = comm_times_open(&t, request.max);
    if (st == LS_OK) st = tune ? tune_and_write(&t) : measure_and_print(&t, &r);
    if (st == LS_EPEER) comm_fail(t.comm, st); /* a device has failed: the other ranks end with its line */
    comm_times_close(&t);
    ls_comm_close(&t.comm);
    return st;
}

static ls_status run_comm(struct invocation *in)
{
    if (!print_steps) return run_times(in);
    if (in->world.rank > 0) return LS_OK;
    return comm_steps_print(request.algorithm, (int)in->config.launch.ranks, (size_t)count, (int)root, (int)rank_shown);
}

static ls_status launch_comm(struct invocation *in) { return print_steps ? run_comm(in) : launching_run(in, NULL, NULL, NULL); }

const struct command command_bench_comm = {
    .name = "bench comm",
    .arguments = "",
    .summary = "time collectives between ranks, or print their steps",
    .verb = VERB_BENCH_COMM,
    .flags = bench_comm_flags,
    .aliases = aliases,
    .complete = complete,
    .meant = meant,
    .n_counts = "the number of ranks, as in -n 4 (with -g: of iterations)",
    .check = check_comm,
    .run = run_comm,
    .launch = launch_comm,
    .examples = "  lockstep bench comm -n 4\n"
                "  lockstep bench comm -g 4 -b 8 -e 128M -f 2 -n 50 -w 5 -c 1 -o sum -d float      as nccl-tests' all_reduce_perf\n"
                "  lockstep bench comm -n 2 --op reduce_scatter -o max\n"
                "  lockstep bench comm -n 2 --op sendrecv\n"
                "  lockstep bench comm -n 2 --op all_gather --min 1KiB --max 64MiB --type bf16 --json\n"
                "  lockstep bench comm --print-steps all_reduce -n 4 --algorithm ring\n"
                "  lockstep bench comm -n 4 --tune --write comm.table\n",
};
