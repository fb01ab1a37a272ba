/* test_carried_gathers.c - zero 1 and 2: the gathers of an update's parameters are in flight until the next step reads them. The bits are
 * those of a run that waits at once, each wait comes just before the first reader, and everything else that accesses parameters waits
 * first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "comm/comm.h"
#include "helper_distributed.h"
#include "helper_forked.h"
#include "ir/program.h"
#include "runtime/store_parts.h"

static struct layout carried_gathers_layout_of(enum net net, int zero, int accumulate)
{
    struct layout l = { .net = net, .optimizer = LS_ADAMW, .type = LS_F32, .accumulate = accumulate, .data = LS_DATA_PARALLEL_DEFAULTS };

    l.data.zero = zero;
    l.data.bucket_bytes = 3000;
    l.data.first_bucket_bytes = 1000;
    if (net == NET_EVEN) {
        l.meshed = true;
        l.mesh = (ls_mesh_shape)LS_MESH_DEFAULTS;
        l.partition = (ls_partition_options)LS_PARTITION_DEFAULTS;
        l.mesh.dp = l.mesh.ep = 2;
    }
    return l;
}

/* ---- the program ---- */

static bool reads_group(const ls_program *p, const struct instruction *i, int group)
{
    for (int k = 0; k < i->nin; k++) {
        const struct value *root = &p->values[p->values[i->in[k].id].root];

        if (i->in[k].id && root->role == LS_ROLE_PARAMETER && root->param >= 0 && store_unit_of(p->store, (size_t)root->param) == group)
            return true;
    }
    return false;
}

/* Groups are gathered in the order in which they are waited for, and nothing reads one before its wait. Returns how many there are. */
static int check_program(const ls_program *p)
{
    int order[64], n = 0, started = 0;

    for (int s = SEG_FORWARD; s < SEGMENTS; s++)
        for (int k = 0; k < p->list[s].n; k++) {
            const struct instruction *i = &p->list[s].at[k];

            if (instruction_is_wait(i) && instruction_is_carried(i)) {
                const struct instruction *next = i + 1;

                order[n++] = instruction_exchange(i)->carried - 1;
                while (instruction_is_view(next) || instruction_is_exchange(next))
                    next++;
                RANKS_CHECK(s < SEG_OPTIMIZER && reads_group(p, next, order[n - 1]));
            } else if (instruction_is_start(i) && instruction_is_carried(i)) {
                RANKS_CHECK(s == SEG_OPTIMIZER && started < n && instruction_exchange(i)->carried - 1 == order[started++]);
            } else if (p->results.carries && s < SEG_OPTIMIZER && !instruction_is_view(i)) {
                for (int g = 0; g < store_units(p->store); g++) {
                    int seen = 0;

                    while (seen < n && order[seen] != g) seen++;
                    RANKS_CHECK(seen < n || !reads_group(p, i, g));
                }
            }
        }
    RANKS_CHECK(started == n);
    return n;
}

static int in_flight(const ls_store *s)
{
    int n = 0;

    for (int g = 0; g < s->units; g++) n += s->unit[g]->gathering;
    return n;
}

/* ---- bits ---- */

static void check_bits(ls_comm *comm, void *ctx)
{
    static struct outcome with, without;
    struct layout l = *(struct layout *)ctx;

    threads_set(1);
    RANKS_TRY(distributed_train(&l, comm, &with));
    l.data.overlap = 0;
    RANKS_TRY(distributed_train(&l, comm, &without));
    RANKS_CHECK(memcmp(with.loss, without.loss, sizeof with.loss) == 0 && memcmp(with.norm, without.norm, sizeof with.norm) == 0);
    RANKS_CHECK(with.count == without.count && memcmp(with.weight, without.weight, with.count * sizeof *with.weight) == 0);
}

static void bits_are_those_of_waiting_at_once(void **state)
{
    static const enum net nets[] = { NET_GPT2, NET_LLAMA_TIED, NET_IMAGE, NET_EVEN };

    (void)state;
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++)
        for (int zero = 1; zero <= 2; zero++) {
            struct layout l = carried_gathers_layout_of(nets[k], zero, nets[k] == NET_IMAGE ? 1 : 2);

            forked_run(2, check_bits, &l);
            if (nets[k] == NET_GPT2) {
                l.device = "check";
                forked_run(3, check_bits, &l);
            }
        }
}

/* ---- which programs wait ---- */

/* A program without waits, which reads one parameter. */
static ls_status open_reader(ls_store *s, ls_comm *comm, const struct layout *l, ls_program **out)
{
    const ls_model *m = distributed_model(l->net);

    LS_TRY(ls_program_new(s, out));
    ls_output(*out, "logits", ls_model_logits(*out, m, ls_input(*out, "tokens", LS_I32, 2, (size_t[]){ 1, 3 })));
    LS_TRY(ls_data_parallel(*out, comm, &l->data));
    LS_TRY(ls_program_compile(*out, NULL));
    return ls_program_write(*out, "tokens", (int32_t[]){ 1, 5, 9 }, LS_I32, 3);
}

static void check_waits(ls_comm *comm, void *ctx)
{
    struct layout l = *(struct layout *)ctx;
    static float whole[DIST_ELEMENTS];
    struct training s;
    ls_program *reader;
    double loss;

    threads_set(1);
    RANKS_TRY(distributed_open(&l, comm, false, &s));
    RANKS_TRY(open_reader(s.store, comm, &l, &reader));
    int n = check_program(s.program);
    RANKS_CHECK(n > 3 && n == store_units(s.store) && check_program(reader) == 0);
    RANKS_TRY(distributed_step(&s, &l, 0, &loss));
    RANKS_CHECK(in_flight(s.store) == n);
    RANKS_TRY(ls_program_run(s.program, LS_OPTIMIZER_STEP)); /* waits for all, and starts them again */
    RANKS_CHECK(in_flight(s.store) == n);
    RANKS_TRY(ls_store_read(s.store, 0, "parameter", whole, LS_F32, ls_store_size(s.store, 0, 0) * ls_store_size(s.store, 0, 1)));
    RANKS_CHECK(in_flight(s.store) == 0);
    RANKS_TRY(distributed_step(&s, &l, 1, &loss));
    RANKS_TRY(ls_program_run(reader, LS_FORWARD));
    RANKS_CHECK(in_flight(s.store) == 0);
    RANKS_TRY(distributed_step(&s, &l, 2, &loss));
    RANKS_TRY(ls_store_write(s.store, 0, "parameter", whole, LS_F32, ls_store_size(s.store, 0, 0) * ls_store_size(s.store, 0, 1)));
    RANKS_CHECK(in_flight(s.store) == 0);
    RANKS_TRY(distributed_step(&s, &l, 3, &loss));
    RANKS_CHECK(in_flight(s.store) == n && ls_store_value(s.store, 0) && in_flight(s.store) == 0);
    RANKS_TRY(distributed_step(&s, &l, 4, &loss));
    ls_program_release(&reader);
    distributed_close(&s); /* with all in flight */
}

static void everybody_else_waits_first(void **state)
{
    (void)state;
    for (int zero = 1; zero <= 2; zero++) {
        struct layout l = carried_gathers_layout_of(NET_LLAMA_TIED, zero, 1);

        forked_run(3, check_waits, &l);
        l.device = "check";
        forked_run(2, check_waits, &l);
    }
}

/* ---- programs with nothing to carry ---- */

static void check_none(ls_comm *comm, void *ctx)
{
    struct layout l = carried_gathers_layout_of(NET_LLAMA, 1, 2);
    struct training s;

    (void)ctx;
    l.data.overlap = 0;
    RANKS_TRY(distributed_open(&l, comm, false, &s));
    RANKS_CHECK(check_program(s.program) == 0);
    distributed_close(&s);
    l = carried_gathers_layout_of(NET_LLAMA, 3, 2);
    RANKS_TRY(distributed_open(&l, comm, false, &s));
    RANKS_CHECK(check_program(s.program) == 0);
    distributed_close(&s);
}

static void nothing_is_carried_without_overlap(void **state)
{
    (void)state;
    forked_run(2, check_none, NULL);
}

/* ---- a rank that is lost in between ---- */

static void check_lost(ls_comm *comm, void *ctx)
{
    struct layout l = carried_gathers_layout_of(NET_LLAMA, 2, 1);
    struct training s;
    char byte = 0;
    double loss;

    (void)ctx;
    threads_set(1);
    RANKS_TRY(distributed_open(&l, comm, false, &s));
    RANKS_TRY(distributed_step(&s, &l, 0, &loss));
    if (ls_comm_rank(comm) == 1) { /* after the other has finished its step */
        RANKS_TRY(ls_recv(comm, &byte, 1, LS_U8, 0, NULL));
        comm_fail(comm, ls_fail(LS_EIO, "the disk is full"));
        _Exit(0);
    }
    RANKS_TRY(ls_send(comm, &byte, 1, LS_U8, 1, NULL));
    ls_status st = distributed_step(&s, &l, 1, &loss);
    RANKS_CHECK(st == LS_EPEER || st == LS_EIO);
    RANKS_CHECK(strstr(ls_errmsg(), "rank 1") && strstr(ls_errmsg(), "the disk is full"));
    distributed_close(&s);
    _Exit(0); /* without a barrier: one rank has ended */
}

static void lost_rank_is_named(void **state)
{
    (void)state;
    forked_run(2, check_lost, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_waiting_at_once),
        cmocka_unit_test(everybody_else_waits_first),
        cmocka_unit_test(nothing_is_carried_without_overlap),
        cmocka_unit_test(lost_rank_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
