/* test_nccl_groups.c - properties of NCCL only, on its stub: memory that is registered with its communicators, and its rounding. */
#include "native_rank.h"

/* ---- memory ---- */

/* Memory for communication is registered with the communicators for collectives, of which each comm has one, as long as both are there;
 * other memory is not. */
static void body_memory(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, ctx);
    ls_comm *second, *third;
    char *y;

    check_groups(1, 3); /* with two communicators for messages */
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, cuda, &counted, &for_collectives));
    check_groups(2, 4);
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &third));
    RANKS_TRY(comm_open_native(third, cuda, &counted, &for_exchanges));
    check_groups(2, 5);
    ls_comm_close(&third);
    check_groups(2, 4);
    char *x = device_block(MEM_COMMUNICATION, ROOM);
    check_groups(4, 4);
    RANKS_CHECK((y = cuda->alloc(MEM_ACTIVATIONS, ROOM)) != NULL);
    check_groups(4, 4);
    cuda->free(x);
    cuda->free(y);
    RANKS_CHECK(!cuda->alloc(MEM_COMMUNICATION, (size_t)2 << 30)); /* more than exists, which is not a failure of the device */
    RANKS_CHECK(strstr(ls_errmsg(), "needed for communication") && strstr(ls_errmsg(), "; NCCL's communicators took 14680064"));
    RANKS_TRY(cuda->sync());
    check_groups(2, 4);
    ls_comm_close(&second);
    check_groups(1, 3);
    rank_close(&r);
}

/* ---- numbers ---- */

static double element_read(ls_dtype t, const void *p)
{
    float x;

    if (t == LS_F32) return *(const float *)p;
    reduce_widen(&x, p, 1, t);
    return x;
}

/* x of each rank, reduced by NCCL and by the host; both are the same on all ranks. */
static void reduce_both(struct rank *r, ls_dtype type, ls_redop redop, double x, double *nccl, double *host)
{
    size_t bytes = ls_dtype_bytes(type);
    struct call_args a = { .op = LS_COLLECTIVE_ALL_REDUCE, .send = r->want, .recv = r->want, .count = 1, .type = type, .redop = redop };

    comm_element_set(type, r->want, 0, x);
    RANKS_TRY(cuda->copy_in(r->stream, r->device, r->want, bytes));
    RANKS_TRY(operation_run(r->comm, &a, NULL));
    *host = element_read(type, r->want);
    a.send = a.recv = r->device;
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->stream, &a));
    RANKS_TRY(cuda->copy_out(r->stream, r->host, r->device, bytes));
    RANKS_TRY(cuda->stream_sync(r->stream));
    *nccl = element_read(type, r->host);
}

/* Rule 5 of collectives.h: where NCCL's results differ from the host's. */
static void body_numbers(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, ctx);
    double nccl, host;

    reduce_both(&r, LS_BF16, LS_SUM, rank == 0 ? 256 : 1, &nccl, &host); /* between 256 and 512 bf16 has the even numbers */
    RANKS_CHECK(nccl == 256 && host == (n == 2 ? 256 : n == 3 ? 258 : 260));
    reduce_both(&r, LS_F32, LS_SUM, rank == 0 ? 256 : 1, &nccl, &host);
    RANKS_CHECK(nccl == 255 + n && host == nccl);
    reduce_both(&r, LS_F32, LS_AVG, 7, &nccl, &host); /* 7 * fl(1 / 3) is rounded */
    RANKS_CHECK(host == 7 && (nccl == 7) == (n != 3));
    reduce_both(&r, LS_F32, LS_MAX, rank == 1 ? NAN : rank, &nccl, &host);
    RANKS_CHECK(nccl == (n == 2 ? 0 : n - 1) && isnan(host));
    rank_close(&r);
}

/* ---- tests ---- */

TEST_RANKS(test_memory, body_memory, &for_both, 1)
TEST_RANKS(test_numbers, body_numbers, &for_collectives, 1)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_memory), cmocka_unit_test(test_numbers) };

    folder_open();
    return folder_close(cmocka_run_group_tests(tests, NULL, NULL));
}
