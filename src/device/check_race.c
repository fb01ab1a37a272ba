/* check_race.c - which operations come before which, and pairs that touch the same bytes without an order: see check.h.
 *
 * A record is an access that later ones are compared with. One that an ordered, wider and not weaker access follows is dropped: whatever is
 * not ordered with it is not ordered with that one either.
 */
#include "device/check.h"

#include <stdio.h>
#include "base/base.h"

static struct check_records host_records;
static const char *const *stream_names;
static check_race_fn *on_race;
static void *on_race_ctx;

void check_on_race(check_race_fn *fn, void *ctx)
{
    on_race = fn;
    on_race_ctx = ctx;
}

void check_streams_named(const char *const *names) { stream_names = names; }

void check_clock_merge(struct check_clock *to, const struct check_clock *from)
{
    for (int s = 0; s < CHECK_STREAMS; s++) to->at[s] = MAX(to->at[s], from->at[s]);
}

bool check_clock_covers(const struct check_clock *c, const struct check_clock *what)
{
    for (int s = 0; s < CHECK_STREAMS; s++)
        if (what->at[s] > c->at[s]) return false;
    return true;
}

static bool is_before(const struct check_record *r, const struct check_clock *c) { return r->number <= c->at[r->stream]; }

static void report_race(const struct check_record *x, const struct check_record *y, const struct check_block *b)
{
    char line[400];

    snprintf(line, sizeof line,
             "%s on stream '%s' %s bytes [%zu, %zu) of %s, and %s on stream '%s' %s [%zu, %zu) in no order: a wait is missing", x->name,
             stream_names[x->stream], x->write ? "writes" : "reads", x->begin, x->end, b ? mem_category_name(b->category) : "host memory",
             y->name, stream_names[y->stream], y->write ? "writes" : "reads", y->begin, y->end);
    if (!on_race) check_die("%s", line);
    on_race(on_race_ctx, line);
}

static ls_status records_add(struct check_records *all, struct check_record r)
{
    if (all->n == all->room) {
        int room = all->room ? 2 * all->room : 16;
        struct check_record *grown = mem_resize(all->at, (size_t)room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        all->at = grown;
        all->room = room;
    }
    all->at[all->n++] = r;
    return LS_OK;
}

static void check_race_compare(struct check_records *all, const struct check_record *r, const struct check_clock *before,
                               const struct check_clock *host, const struct check_block *b)
{
    int kept = 0;

    for (int k = 0; k < all->n; k++) {
        const struct check_record x = all->at[k];
        bool ordered = is_before(&x, before);

        if (is_before(&x, host)) continue;
        if (!ordered && (x.write || r->write) && x.begin < r->end && r->begin < x.end) report_race(&x, r, b);
        if (!ordered || x.begin < r->begin || x.end > r->end || (x.write && !r->write)) all->at[kept++] = x;
    }
    all->n = kept;
}

ls_status check_touch(const char *name, int stream, uint32_t number, const struct check_clock *before, const struct check_clock *host,
                      const struct device_access *a)
{
    struct check_block *b = check_block_of(a->data, a->bytes);
    struct check_records *all = b ? &b->records : &host_records;
    size_t begin = (size_t)((uintptr_t)a->data - (b ? (uintptr_t)b->visible : 0));
    struct check_record r = { name, begin, begin + a->bytes, number, stream, a->write };

    check_race_compare(all, &r, before, host, b);
    return records_add(all, r);
}

void check_forget_all(void)
{
    struct check_block *b;

    for (int i = 0; (b = check_block_at(i)); i++) b->records.n = 0;
    mem_free(host_records.at);
    host_records = (struct check_records){ 0 };
}
