/* check.c - checks that the cards' numbers are what their runs measure. */
#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "learn/answer.h"
#include "learn/learn.h"

static void put_check_number(double x)
{
    if (isfinite(x))
        printf("%12.6g ", x);
    else
        printf("%12s ", "-");
}

static void put_check(const struct card *c, int variant, const char *verdict, const struct answer *a)
{
    char *run = card_fill(c, c->run, variant);

    printf("%-6s %5.1f s  %-8s ", c->id, a->seconds, verdict);
    put_check_number(variant == 0 ? c->expected : NAN);
    put_check_number(a->measured);
    printf(" lockstep %s\n", run ? run : c->run);
    fflush(stdout);
    mem_free(run);
}

/* Counts one more wrong card in *bad. */
static ls_status check_variant(const struct card *c, int variant, struct answer_cache *cache, int *bad)
{
    struct answer a;
    ls_status st = answer_run(c, variant, cache, NULL, NULL, &a);

    if (st != LS_OK && st != LS_EFORMAT) return st;
    bool off = card_has_number(c) && variant == 0 && st == LS_OK && !a.code && learn_rating_of(c, c->expected, a.measured) < 5;
    put_check(c, variant, a.code ? "fails" : st != LS_OK ? "no row" : off ? "is off" : "ok", &a);
    if (st != LS_OK) printf("       %s\n", ls_errmsg());
    *bad += a.code || st != LS_OK || off;
    return LS_OK;
}

ls_status learn_check(struct learn *l, bool all_sizes)
{
    struct answer_cache cache = { 0 };
    int bad = 0, cards = 0;
    ls_status st = LS_OK;

    printf("%-6s %7s  %-8s %12s %12s\n", "card", "took", "", "expected", "measured");
    for (size_t i = 0; st == LS_OK && i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];

        if (!learn_in_topic(l, c)) continue;
        cards++;
        for (int v = 0; st == LS_OK && v < (all_sizes ? card_variants(c) : 1); v++) st = check_variant(c, v, &cache, &bad);
    }
    answer_cache_free(&cache);
    if (st != LS_OK) return st;
    printf("%d cards, %d wrong\n", cards, bad);
    return bad ? ls_fail(LS_EFORMAT, "%d card%s wrong", bad, bad == 1 ? " is" : "s are") : LS_OK;
}
