/* bpe_merge.c - the two ways to merge a pre-token: by search for a short one, by a heap for a long one.
 *
 * Short (n <= SHORT_MOST): keeps the possible merge of each pair of neighbors and searches for the best each time: O(n^2) with a tiny
 * constant. Long: positions form a linked list, possible merges a heap by (rank, position). An entry is stale once its tokens have changed,
 * and is dropped when it comes up.
 * O(n log n), because a pre-token can be a megabyte without a break.
 */
#include "data/bpe_merge.h"

enum { SHORT_MOST = 64 };
static const uint32_t NONE = UINT32_MAX;

struct option {
    uint32_t rank;
    int32_t id;
};

static struct option option_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge *m = bpe_find_merge(b, left, right);

    return m ? (struct option){ m->rank, m->id } : (struct option){ NONE, -1 };
}

static size_t merge_short(const struct bpe *b, int32_t *id, size_t n)
{
    struct option option[SHORT_MOST]; /* option[i]: the possible merge of id[i] and id[i + 1] */

    for (size_t i = 0; i + 1 < n; i++) option[i] = option_of(b, id[i], id[i + 1]);
    for (;;) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++)
            if (option[i].rank < option[best].rank) best = i;
        if (n < 2 || option[best].rank == NONE) return n;

        id[best] = option[best].id;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(option + best, option + best + 1, (n - best - 1) * sizeof *option);
        if (best > 0) option[best - 1] = option_of(b, id[best - 1], id[best]);
        if (best + 1 < n) option[best] = option_of(b, id[best], id[best + 1]);
    }
}

static bool bpe_merge_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct merge_work *w, struct candidate c)
{
    size_t i = w->heap_count++;

    for (; i > 0 && bpe_merge_before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct candidate heap_pop(struct merge_work *w)
{
    struct candidate top = w->heap[0], last = w->heap[--w->heap_count];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < w->heap_count; i = child) {
        if (child + 1 < w->heap_count && bpe_merge_before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!bpe_merge_before(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static void consider(const struct bpe *b, struct merge_work *w, const int32_t *id, uint32_t at)
{
    int32_t left = id[at], right = id[w->link[at].next];
    struct option o = option_of(b, left, right);

    if (o.rank != NONE) heap_push(w, (struct candidate){ o.rank, at, left, right, o.id });
}

/* Makes room for every possible candidate: n - 1 at first, two more per merge, at most n - 1 merges. */
static ls_status prepare(struct merge_work *w, size_t n)
{
    void *link = w->link, *heap = w->heap;

    if (n >= NONE) return ls_fail(LS_EINVAL, "a pre-token is too long: %zu bytes without a break", n);
    LS_TRY(array_grow(&link, &w->link_room, n, sizeof *w->link));
    w->link = link;
    LS_TRY(array_grow(&heap, &w->heap_room, 3 * n, sizeof *w->heap));
    w->heap = heap;
    w->heap_count = 0;
    for (uint32_t i = 0; i < n; i++) w->link[i] = (struct merge_link){ i - 1, i + 1 }; /* 0 - 1 is NONE */
    w->link[n - 1].next = NONE;
    return LS_OK;
}

/* Merges the token at c.at with its right neighbor, whose position becomes -1: no longer in use. */
static void bpe_merge_apply(const struct bpe *b, struct merge_work *w, int32_t *id, struct candidate c)
{
    uint32_t gone = w->link[c.at].next, next = w->link[gone].next, prev = w->link[c.at].prev;

    id[c.at] = c.id;
    id[gone] = -1;
    w->link[c.at].next = next;
    if (next != NONE) {
        w->link[next].prev = c.at;
        consider(b, w, id, c.at);
    }
    if (prev != NONE) consider(b, w, id, prev);
}

ls_status merge_tokens(const struct bpe *b, struct merge_work *w, int32_t *id, size_t *n)
{
    size_t left = 0;

    if (*n <= SHORT_MOST) {
        *n = merge_short(b, id, *n);
        return LS_OK;
    }
    LS_TRY(prepare(w, *n));
    for (uint32_t i = 0; i + 1 < *n; i++) consider(b, w, id, i);
    while (w->heap_count > 0) {
        struct candidate c = heap_pop(w);
        uint32_t next = w->link[c.at].next;

        if (id[c.at] == c.left && next != NONE && id[next] == c.right) bpe_merge_apply(b, w, id, c);
    }
    for (size_t i = 0; i < *n; i++)
        if (id[i] >= 0) id[left++] = id[i];
    *n = left;
    return LS_OK;
}

void merge_work_free(struct merge_work *w)
{
    mem_free(w->link);
    mem_free(w->heap);
    *w = (struct merge_work){ 0 };
}
