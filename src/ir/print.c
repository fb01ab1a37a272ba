/* print.c - a program as text. */
#include "ir/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

struct sink {
    char *text;
    size_t bytes, room;
    bool failed;
};

static void print_put(struct sink *s, const char *fmt, ...) LS_PRINTF(2, 3);
static void print_put(struct sink *s, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    n = MIN(n, (int)sizeof line - 1);
    if (s->failed) return;
    if (s->bytes + (size_t)n + 1 > s->room) {
        size_t room = 2 * (s->room + sizeof line);
        char *grown = mem_resize(s->text, room);

        if (!grown) {
            s->failed = true;
            return;
        }
        s->text = grown;
        s->room = room;
    }
    memcpy(s->text + s->bytes, line, (size_t)n + 1);
    s->bytes += (size_t)n;
}

static ls_status print_finish(struct sink *s, char **text)
{
    if (s->failed) {
        mem_free(s->text);
        return LS_ENOMEM;
    }
    *text = s->text;
    return LS_OK;
}

/* "1.50 M", "3.22 G": three figures with a power-of-1000 suffix. */
static const char *scaled(char *text, double x)
{
    static const char suffix[] = " kMGTPE";
    int k = 0;

    while (x >= 999.5 && k < 6) {
        x /= 1000;
        k++;
    }
    sprintf(text, x >= 99.5 ? "%.0f%c" : x >= 9.95 ? "%.1f%c" : "%.2f%c", x, suffix[k]);
    if (!k) text[strlen(text) - 1] = 0;
    return text;
}

/* " tp:S1" sharded along dim 1, " cp:Z1" in zigzag chunks, " tp:P" a partial sum, " tp:PM" a partial max, " tp:~P"
 * replicated with a partial gradient. */
static const char *placement(const struct value *v, char *text)
{
    int n = 0;

    text[0] = 0;
    for (int a = 0; a < LS_AXES; a++) {
        const ls_placement *at = &v->place[a];

        if (at->kind == LS_SHARD)
            n += sprintf(text + n, " %s:%c%d", axis_name((ls_axis)a), at->zigzag ? 'Z' : 'S', at->dim);
        else if (at->kind == LS_PARTIAL || at->partial_gradient)
            n += sprintf(text + n, " %s:%s", axis_name((ls_axis)a), at->kind != LS_PARTIAL ? "~P" : at->redop == LS_MAX ? "PM" : "P");
    }
    return text;
}

/* "%12[8,256,256]" for values of the program, "wte.weight[50257,768]" for values with a name of their own. */
static void put_operand(struct sink *s, const ls_program *p, ls_value x)
{
    const struct value *v = &p->values[x.id];
    char shape[96], place[64], id[16];

    snprintf(id, sizeof id, "%%%d", x.id);
    if (x.id) print_put(s, " %s%s%s", v->role == LS_ROLE_ACTIVATION ? id : v->name, value_shape(v, shape), placement(v, place));
}

/* Lists the values whose bytes are free after position `at`. */
static void put_freed(struct sink *s, const ls_program *p, const struct instruction *i, int at)
{
    const char *lead = "   frees";

    for (int k = 0; !instruction_is_view(i) && k < i->nin + i->nout; k++) {
        ls_value x = k < i->nin ? i->in[k] : i->out[k - i->nin];
        const struct value *root = &p->values[p->values[x.id].root];

        if (x.id && (root->role == LS_ROLE_ACTIVATION || root->role == LS_ROLE_COMMUNICATION) && root->last == at &&
            p->values[i->out[0].id].shares != p->values[x.id].root) {
            if (root->role == LS_ROLE_COMMUNICATION)
                print_put(s, "%s %s", lead, root->name);
            else
                print_put(s, "%s %%%d", lead, p->values[x.id].root);
            lead = "";
        }
    }
}

static const char *when_text(const struct instruction *i)
{
    return i->when == LS_WHEN_LAST ? "   last micro-batch only" : i->when == LS_WHEN_NOT_LAST ? "   not in the last micro-batch" : "";
}

const char *instruction_kernel_name(const struct instruction *i)
{
    if (instruction_is_exchange(i)) return ls_comm_transport(instruction_exchange(i)->comm);
    return i->kernel ? i->kernel->name : "-";
}

/* "   tp 27.0 MiB f32 over 4 ranks, #3"; a message: "to rank 1 of 4" */
static void put_exchange(struct sink *s, const ls_program *p, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);
    ls_dtype type = p->values[i->nout ? i->out[0].id : i->in[0].id].dtype;

    print_put(s, "   %s %.1f MiB %s ", axis_name(e->axis), (double)(e->total * ls_dtype_bytes(type)) / (1 << 20), ls_dtype_name(type));
    if (e->op == LS_COLLECTIVE_SEND || e->op == LS_COLLECTIVE_RECV)
        print_put(s, "%s rank %d of %d, #%d", e->op == LS_COLLECTIVE_SEND ? "to" : "from", e->root, ls_comm_size(e->comm), e->id);
    else
        print_put(s, "over %d ranks, #%d", ls_comm_size(e->comm), e->id);
}

/* "   tp dim 1 of 1024 over 2 ranks" */
static void put_move(struct sink *s, const struct move *m)
{
    print_put(s, "   %s", axis_name(m->axis));
    if (m->kind != MOVE_IDENTITY && m->kind != MOVE_ALL_REDUCE) print_put(s, " dim %d of %zu", m->dim, m->full);
    if (m->kind == MOVE_ALL_TO_ALL) print_put(s, " for dim %d of %zu", m->dim2, m->full2);
    print_put(s, " over %d ranks%s", ls_comm_size(m->comm), m->zigzag ? ", zigzag" : "");
}

/* "   stream 2 after 12, 15"; nothing on a device without streams. */
static void put_stream(struct sink *s, const ls_program *p, const struct instruction *i)
{
    if (!p->results.nstreams || i->stream < 0) return;
    print_put(s, "   stream %d", i->stream);
    for (int k = 0; k < i->waits; k++) print_put(s, "%s %d", k ? "," : " after", p->results.wait[i->first_wait + k]);
}

static void put_instruction(struct sink *s, const ls_program *p, const struct instruction *i, int number)
{
    char bytes[16], flops[16], live[16];

    print_put(s, "%5d  %-11s  %-19s  %-9s  %7sB  %7s  %7sB  ", number, phase_name(i->phase), instruction_name(i),
              instruction_kernel_name(i), scaled(bytes, (double)instruction_bytes(p, i)), i->flops > 0 ? scaled(flops, i->flops) : "-",
              scaled(live, (double)i->live));
    for (int k = 0; k < i->nout; k++) put_operand(s, p, i->out[k]);
    print_put(s, "  <-");
    for (int k = 0; k < i->nin; k++) put_operand(s, p, i->in[k]);
    if (instruction_is_exchange(i)) put_exchange(s, p, i);
    if (op_payload(i->op) == PAYLOAD_move) put_move(s, instruction_move(i));
    print_put(s, "%s", when_text(i));
    put_stream(s, p, i);
    put_freed(s, p, i, number);
    print_put(s, "\n");
}

static void put_totals(struct sink *s, const ls_program *p)
{
    ls_cost c = ls_program_cost(p);
    char a[16], b[16], d[16], e[16];

    print_put(s, "\nparameters %sB  gradients %sB  optimizer %sB\n", scaled(a, (double)c.parameters), scaled(b, (double)c.gradients),
              scaled(d, (double)c.optimizer));
    if (c.communication || c.offload)
        print_put(s, "communication %sB  offload %sB\n", scaled(a, (double)c.communication), scaled(b, (double)c.offload));
    if (p->arguments.options.slots)
        print_put(s, "activations %sB: %d slots of %sB and %sB that they share; %sB live at the peak\n", scaled(a, (double)c.activations),
                  p->arguments.options.slots, scaled(b, (double)p->results.arena_bytes[ARENA_SLOT]),
                  scaled(d, (double)p->results.arena_bytes[ARENA_ACTIVATIONS]), scaled(e, (double)c.live_peak));
    else
        print_put(s, "activations %sB in one arena, of which %sB live at the peak\n", scaled(a, (double)c.activations),
                  scaled(b, (double)c.live_peak));
    print_put(s, "FLOPs: forward %s  backward %s  recomputed %s  model total %s\n", scaled(a, c.forward_flops), scaled(b, c.backward_flops),
              scaled(d, c.recompute_flops), scaled(e, c.model_flops));
}

ls_status ls_program_text(const ls_program *p, char **text)
{
    struct sink s = { 0 };
    int number = 0;

    LS_TRY(ls_program_status(p));
    for (int seg = 0; seg < SEGMENTS; seg++) {
        int block = -1;

        if (!p->list[seg].n) continue;
        print_put(&s, "%s%s: %d instructions\n", seg ? "\n" : "", segment_name((enum segment)seg), p->list[seg].n);
        print_put(&s, "%5s  %-11s  %-19s  %-9s  %8s  %7s  %8s   values\n", "#", "phase", "op", "kernel", "bytes", "FLOPs", "live");
        for (int n = 0; n < p->list[seg].n; n++, number++) {
            const struct instruction *i = &p->list[seg].at[n];

            if (i->block != block) print_put(&s, "  -- %s\n", i->block ? p->blocks[i->block] : "(outside blocks)");
            block = i->block;
            put_instruction(&s, p, i, number);
        }
    }
    put_totals(&s, p);
    return print_finish(&s, text);
}
