/* parity_report.c - prints the results of `lockstep parity` as a table or as JSON. */
#include "cli/parity_report.h"

#include <inttypes.h>
#include <stdio.h>
#include "base/base.h"
#include "base/json.h"
#include "cli/terminal.h"

/* ---- a comparison ---- */

static void put_difference(struct json_out *j, const char *key, const struct parity_result *r, const struct parity_difference *d)
{
    json_begin_object(j, key);
    json_put_string(j, "kind", parity_kind_name(d->kind));
    json_put_string(j, "direction", parity_direction(r, d->kind));
    json_put_int(j, "step", (int64_t)d->step);
    json_put_string(j, "name", d->name);
    json_put_int(j, "element", (int64_t)d->element);
    json_put_real(j, "a", d->a);
    json_put_real(j, "b", d->b);
    json_put_real(j, "scale", d->scale);
    if (d->gradient_rms > 0) json_put_real(j, "gradient_rms", d->gradient_rms);
    json_put_real(j, "relative", d->relative);
    json_put_real(j, "allowed", d->allowed);
    json_put_real(j, "ulp", d->ulp);
    if (d->mean_allowed > 0) json_put_real(j, "mean", d->mean);
    if (d->mean_allowed > 0) json_put_real(j, "mean_allowed", d->mean_allowed);
    if (d->side) json_put_string(j, "side", (char[]){ d->side, '\0' });
    if (d->side) json_put_real(j, "expected", d->expected);
    json_put_real(j, "of_allowed", d->of_allowed);
    json_end_object(j);
}

/* Puts the summary of the expert choices of the side that followed the other. */
static void put_routes(struct json_out *j, const struct parity_rerouted *e)
{
    json_begin_object(j, "experts");
    json_put_int(j, "choices", (int64_t)e->tokens);
    json_put_int(j, "taken", (int64_t)e->taken);
    json_put_int(j, "drops_taken", (int64_t)e->dropped);
    json_put_int(j, "beyond", (int64_t)e->beyond);
    json_put_real(j, "margin", e->margin);
    json_put_real(j, "allowed", e->threshold);
    json_put_int(j, "step", (int64_t)e->step);
    json_put_int(j, "layer", e->layer);
    json_put_int(j, "sample", e->sample);
    json_put_int(j, "token", e->token);
    json_end_object(j);
}

static ls_status parity_report_put_json(const struct parity_result *r, const struct parity_rerouted *e, bool checkpoint)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_bool(&j, "equal", r->equal && !e->beyond);
    json_put_int(&j, "steps", (int64_t)r->steps);
    json_put_int(&j, "tensors", (int64_t)r->tensors);
    if (checkpoint) json_put_int(&j, "states", (int64_t)r->states);
    json_put_int(&j, "compared", (int64_t)r->compared);
    json_put_int(&j, "same_bits", (int64_t)r->same_bits);
    json_put_int(&j, "gates_taken", (int64_t)r->taken);
    if (e->tokens) put_routes(&j, e);
    if (!r->equal) put_difference(&j, "first", r, &r->first);
    json_begin_object(&j, "largest");
    for (int k = 0; k < PARITY_KINDS; k++)
        if (r->largest[k].of_allowed > 0) put_difference(&j, parity_kind_name((enum parity_kind)k), r, &r->largest[k]);
    json_end_object(&j);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static void put_routes_text(const struct parity_rerouted *e)
{
    if (!e->taken && !e->dropped) return;
    printf("  %" PRIu64 " of %" PRIu64
           " choices of experts differed from the reference's within rounding and were replaced by them: the logits differ by\n"
           "  at most %.1e of their root mean square (layer %" PRId64 ", sample %" PRId64 ", token %" PRId64 "), %.1e allowed\n",
           e->taken, e->tokens, e->margin, e->layer, e->sample, e->token, e->threshold);
    if (e->dropped) printf("  %" PRIu64 " more tokens kept their experts and were dropped or kept as in the reference\n", e->dropped);
}

static void parity_report_put_table(const struct parity_result *r, const struct parity_rerouted *e, bool checkpoint)
{
    if (r->equal && !e->beyond)
        printf("%sequal%s: %" PRIu64 " steps, %" PRIu64 " tensors; %" PRIu64 " of %" PRIu64 " values compared have the same bits\n",
               terminal_style(STYLE_GREEN), terminal_style(STYLE_PLAIN), r->steps, r->tensors, r->same_bits, r->compared);
    if (r->equal && checkpoint) printf("  %" PRIu64 " parameters and optimizer states of the checkpoint have the same bits\n", r->states);
    if (r->taken) printf("  %" PRIu64 " inputs of ReLUs within rounding of zero were given the reference's sign\n", r->taken);
    if (!e->beyond) put_routes_text(e);
    printf("  %-10s %14s %10s %12s  %s\n", "", "largest error", "allowed", "ulp", "in");
    for (int k = 0; k < PARITY_KINDS; k++) {
        const struct parity_difference *d = &r->largest[k];

        if (d->of_allowed > 0)
            printf("  %-10s %14.2e %10.1e %12.1f  %s, step %" PRIu64 "\n", parity_kind_name((enum parity_kind)k), d->relative, d->allowed,
                   d->ulp, d->name, d->step);
        if (d->of_allowed > 0 && d->mean_allowed > 0)
            printf("  %-10s %14.2e %10.1e %12s  root mean square error of that gradient\n", "", d->mean, d->mean_allowed, "");
    }
}

static ls_status fail_routes(const struct parity_rerouted *e)
{
    return ls_fail(LS_EINVAL,
                   "the layouts differ first in step %" PRIu64 ", experts of layer %" PRId64 " (forward): sample %" PRId64
                   ", token %" PRId64 " goes to %s, whose logits differ by %.2e of their root mean square (%.1e allowed); %" PRIu64
                   " of %" PRIu64 " choices differ by more than rounding",
                   e->step, e->layer, e->sample, e->token, e->text, e->margin, e->threshold, e->beyond, e->tokens);
}

ls_status parity_report(const struct parity_result *r, const struct parity_rerouted *e, bool checkpoint, bool json)
{
    const struct parity_difference *d = &r->first;
    const char *direction = parity_direction(r, d->kind), *noun = parity_noun(d);
    char rule[64] = "";

    if (json)
        LS_TRY(parity_report_put_json(r, e, checkpoint));
    else
        parity_report_put_table(r, e, checkpoint);
    if (e->beyond && (r->equal || (d->kind != PARITY_START && e->step <= d->step))) return fail_routes(e);
    if (r->equal) return LS_OK;
    if (d->copies)
        return ls_fail(LS_EINVAL,
                       "the layouts differ first in step %" PRIu64
                       ", %s of '%s' (%s): %.0f elements on other ranks differ from rank 0's in a, %.0f in b",
                       d->step, noun, d->name, direction, d->a, d->b);
    if (d->side) snprintf(rule, sizeof rule, ", expected %.9g in %c", d->expected, d->side);
    return ls_fail(LS_EINVAL,
                   "the layouts differ first in step %" PRIu64
                   ", %s of '%s' (%s): a %.9g, b %.9g in element %zu%s, %.2e of its scale (%.1e allowed), %.0f ulp",
                   d->step, noun, d->name, direction, d->a, d->b, d->element, rule, d->relative, d->allowed, d->ulp);
}

/* ---- drift ---- */

static ls_status put_drift_json(const struct parity_drifts *all)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_begin_array(&j, "drift");
    for (uint64_t i = 0; i < all->steps; i++) {
        const struct parity_drift *d = &all->step[i];

        json_begin_object(&j, NULL);
        json_put_int(&j, "step", (int64_t)(all->first + i));
        json_put_real(&j, "loss", d->loss);
        json_put_real(&j, "norm", d->norm);
        json_put_real(&j, "gradient", d->gradient);
        json_put_string(&j, "gradient_name", d->gradient_name);
        json_put_real(&j, "weight", d->weight);
        json_put_string(&j, "weight_name", d->weight_name);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_begin_array(&j, "gradient_is_rounding");
    for (size_t n = 0; n < all->roundings; n++) json_put_string(&j, NULL, all->rounding[n].name);
    json_end_array(&j);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static void put_drift_table(const struct parity_drifts *all)
{
    printf("drift of b from a: relative difference of loss and norm; root mean square in the gradient and weight that differ most\n"
           "%6s %10s %10s %10s %10s  %s\n",
           "step", "loss", "norm", "gradient", "weight", "weight of");
    for (uint64_t i = 0; i < all->steps; i++) {
        const struct parity_drift *d = &all->step[i];

        printf("%6" PRIu64 " %10.2e %10.2e %10.2e %10.2e  %s\n", all->first + i, d->loss, d->norm, d->gradient, d->weight, d->weight_name);
    }
    if (all->roundings)
        printf("left out because the gradient is only rounding: %zu tensor%s, the first is %s\n", all->roundings,
               all->roundings == 1 ? "" : "s", all->rounding[0].name);
}

ls_status parity_report_drift(const struct parity_drifts *all, bool json)
{
    if (json) return put_drift_json(all);
    put_drift_table(all);
    return LS_OK;
}
