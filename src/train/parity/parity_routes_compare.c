/* parity_routes_compare.c - summarizes how the choices of experts of two sides differ. */
#include "train/parity/parity_routes.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

struct routes_rows {
    struct file_map map;
    struct parity_routes_head head;
    const int32_t *row;
};

static double margin_of(const int32_t *row)
{
    float margin;

    memcpy(&margin, &row[PARITY_ROUTE_MARGIN], sizeof margin);
    return margin;
}

/* Writes "1, 3 (full)". A full expert drops the token. */
static void routes_put_choice(char *text, size_t room, const int32_t *experts, size_t n)
{
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < n && at + 1 < room; i++)
        at += (size_t)snprintf(text + at, room - at, "%s%d%s", i ? ", " : "", experts[i] < 0 ? ~experts[i] : experts[i],
                               experts[i] < 0 ? " (full)" : "");
}

static void parity_routes_compare_note(struct parity_rerouted *sum, const int32_t *row, double margin)
{
    sum->margin = margin;
    sum->layer = row[PARITY_ROUTE_LAYER];
    sum->sample = row[PARITY_ROUTE_SAMPLE];
    sum->token = row[PARITY_ROUTE_TOKEN];
}

static void add_beyond(struct parity_rerouted *sum, const int32_t *row, const int32_t *other, size_t chosen, uint64_t step)
{
    char mine[96], theirs[96];

    if (sum->beyond++) return;
    parity_routes_compare_note(sum, row, margin_of(row));
    sum->step = step;
    routes_put_choice(mine, sizeof mine, row + PARITY_ROUTE_HEAD, chosen);
    routes_put_choice(theirs, sizeof theirs, other + PARITY_ROUTE_HEAD, chosen);
    snprintf(sum->text, sizeof sum->text, "%s instead of %s", mine, theirs);
}

static void add_step(const struct routes_rows *own, const struct routes_rows *other, uint64_t step, struct parity_rerouted *sum)
{
    size_t width = own->head.width;

    sum->tokens += own->head.count;
    sum->threshold = own->head.threshold;
    for (size_t i = 0; i < own->head.count; i++) {
        const int32_t *row = own->row + i * width;
        double margin = margin_of(row);

        switch (row[PARITY_ROUTE_KIND]) {
        case ROUTE_BEYOND: add_beyond(sum, row, other->row + i * width, width - PARITY_ROUTE_HEAD, step); break;
        case ROUTE_TAKEN:
            sum->taken++;
            if (!sum->beyond && (sum->layer < 0 || margin > sum->margin)) parity_routes_compare_note(sum, row, margin);
            break;
        case ROUTE_DROPPED: sum->dropped++; break;
        default: break;
        }
    }
}

static ls_status open_rows(const char *path, uint64_t step, struct routes_rows *out)
{
    char *name = parity_routes_path(path, step);
    ls_status st = name ? file_map_open(name, &out->map) : LS_ENOMEM;

    if (st == LS_OK && out->map.bytes >= sizeof out->head) memcpy(&out->head, out->map.data, sizeof out->head);
    if (st == LS_OK && (out->map.bytes < sizeof out->head || out->head.width <= PARITY_ROUTE_HEAD ||
                        (out->map.bytes - sizeof out->head) / out->head.width / sizeof *out->row != out->head.count))
        st = ls_fail(LS_EFORMAT, "%s: not a file of expert choices", name);
    if (st == LS_OK) out->row = (const int32_t *)(const void *)(out->map.data + sizeof out->head);
    mem_free(name);
    return st;
}

static ls_status compare_step(const char *path, const char *reference, uint64_t step, struct parity_rerouted *sum)
{
    struct routes_rows own = { 0 }, other = { 0 };
    ls_status st = open_rows(path, step, &own);

    if (st == LS_OK) st = open_rows(reference, step, &other);
    if (st == LS_OK && (own.head.count != other.head.count || own.head.width != other.head.width))
        st = ls_fail(LS_EFORMAT, "%s and %s have expert choices for different tokens", path, reference);
    if (st == LS_OK) add_step(&own, &other, step, sum);
    file_map_close(&own.map);
    file_map_close(&other.map);
    return st;
}

ls_status parity_routes_compare(const char *path, const char *reference, uint64_t steps, struct parity_rerouted *out)
{
    struct parity_rerouted sum = { .layer = -1 };

    for (uint64_t step = 0; step < steps; step++) {
        char *name = parity_routes_path(path, step);
        bool made = name && file_exists(name);

        if (!name) return LS_ENOMEM;
        mem_free(name);
        if (made) LS_TRY(compare_step(path, reference, step, &sum));
    }
    *out = sum;
    return LS_OK;
}
