/* predictions.c - numbers as a reader types them, how good they are, and with which sizes a card asks. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/rng.h"
#include "learn/learn.h"

enum { NUMBER_ROOM = 256 };
static const double EXACT = 1e-6; /* relative error that a tolerance of 0 allows */

int learn_rating_of(const struct card *c, double predicted, double measured)
{
    double off = fabs(predicted - measured), size = c->expected == 0 ? fmax(1, fabs(measured)) : fabs(measured);

    if (off <= fmax(c->tolerance, EXACT) * size) return 5;
    if (off <= fmax(3 * c->tolerance, 0.05) * size) return 4;
    if (off <= 0.25 * size) return 3;
    return measured != 0 && predicted / measured >= 0.5 && predicted / measured <= 2 ? 2 : 1;
}

/* Takes the commas between thousands out of "1,234.5", in place; false if there is one elsewhere. */
static bool drop_commas(char *number)
{
    size_t digits = strspn(number, "+-") + strspn(number + strspn(number, "+-"), "0123456789"), sign = strspn(number, "+-");
    char *to = number + digits, *from = to;

    if (!strchr(number, ',')) return true;
    if (digits == sign || digits - sign > 3) return false;
    while (*from == ',' && strspn(from + 1, "0123456789") >= 3) {
        memmove(to, from + 1, 3);
        to += 3;
        from += 4;
        if (isdigit((unsigned char)*from)) return false;
    }
    memmove(to, from, strlen(from) + 1);
    return !strchr(number, ',');
}

static void cut_spaces(char *text)
{
    size_t n = strlen(text);

    while (n && text[n - 1] == ' ') text[--n] = '\0';
}

bool learn_read_number(const char *text, const char *unit, double *out)
{
    char plain[NUMBER_ROOM];
    size_t length = unit ? strlen(unit) : 0;

    snprintf(plain, sizeof plain, "%s", text + strspn(text, " "));
    cut_spaces(plain);
    size_t n = strlen(plain);
    if (length && n > length && strcasecmp(plain + n - length, unit) == 0) plain[n - length] = '\0';
    cut_spaces(plain);
    return drop_commas(plain) && text_read_real(plain, out);
}

bool learn_in_topic(const struct learn *l, const struct card *c) { return !l->topic || strcasecmp(l->topic, c->topic) == 0; }

int learn_variant(const struct learn *l, const struct card *c, int nth)
{
    int variants = card_variants(c);

    if (nth == 0 || variants == 1) return 0;
    return (int)(rng_u32((uint64_t)l->seed, rng_stream(c->id), (uint64_t)nth) % (uint32_t)variants);
}

int learn_other_variant(const struct learn *l, const struct card *c, int variant, int nth)
{
    int variants = card_variants(c);

    if (variants == 1) return 0;
    return (variant + 1 + (int)(rng_u32((uint64_t)l->seed, rng_stream(c->id), (uint64_t)nth) % (uint32_t)(variants - 1))) % variants;
}
